"""The model once more, in plain Python: lists, floats and `math`, nothing else.

Two implementations that agree may share a mistake. This one uses only the papers' formulas and our documented choices,
and shares no line with the other two; tests compare both with it. It is slow and readable:

    settings.py     a configuration
    arithmetic.py   vectors and matrices as lists, LayerNorm, GELU, softmax
    model.py        embedding, attention with relative positions, blocks, logits
    routing.py      experts and gates of each token, and dropped tokens
    initial.py      shapes of all weights and their deviations at the start
    losses.py       cross-entropy, and the other terms of the training loss

A vector is a list of floats, a matrix a list of rows. Parameters are nested dicts of nested lists, with the names of
the library. Nothing is imported from the library: routed blocks, numbers of experts and defaults are computed here.
"""
