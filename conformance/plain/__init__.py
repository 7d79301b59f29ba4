"""A third implementation of the model, in plain Python: only lists, floats and `math`.

The reference and the fast twin may share a mistake. This implementation uses only the papers' formulas and our
documented choices, and shares no line of code with the twins. Tests compare both twins with it. It is slow and
readable:

    settings.py     a configuration
    arithmetic.py   vectors and matrices as lists, LayerNorm, GELU, softmax
    model.py        embedding, attention with relative positions, blocks, logits
    routing.py      experts and gates of each token, and dropped tokens
    initial.py      shapes and initial standard deviations of all weights
    losses.py       cross-entropy, and the other terms of the training loss

A vector is a list of floats, and a matrix is a list of rows. Parameters are nested dicts of nested lists, with the same
names as in the twins. Nothing is imported from the twins, so routed blocks, numbers of experts and defaults are
computed here.
"""
