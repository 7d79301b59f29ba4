"""The model once more, in plain Python: lists, floats and `math`, nothing else.

Two implementations that agree may share a mistake. This one is written from the papers' formulas and the stated choices
alone, shares no line with the other two, and tests compare both with it. It is slow and it is meant to be read:

    settings.py     a configuration
    arithmetic.py   vectors and matrices as lists, LayerNorm, GELU, softmax
    model.py        embedding, attention with relative positions, blocks, logits
    routing.py      which experts work on which token, with what gate, and who is dropped
    initial.py      shapes of all weights and their deviations at the start
    losses.py       cross-entropy, and everything that training adds to it

A vector is a list of floats, a matrix a list of rows. Parameters are nested dicts of nested lists, with the names of
the library. Nothing is imported from the library: which block is routed, how many experts there are and what a field
means that was not given is worked out here.
"""
