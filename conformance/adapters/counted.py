"""What adapters share: options that a library has not, torch's arrays, and fields that no library returns.

Nothing here imports a library: arrays are counted with the operators that torch and JAX have in common.
"""

OWN_CHOICE = "experts other than its own choice"
"""What a balance loss that chooses by itself cannot be asked about."""


def decline(**options) -> None:
    """Raise NotImplementedError for the first option that has a value other than None or False.

    Example:
        >>> decline(held=None, mask=None)
        >>> decline(held=None, bias=0.5)
        Traceback (most recent call last):
        ...
        NotImplementedError: option bias
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"option {name}")


def allow(name: str, value, *allowed) -> None:
    """Raise NotImplementedError unless an option has one of the values that the library has; None is its default.

    Example:
        >>> allow("score", "softmax", "softmax")
        >>> allow("normalisation", None, "sum")
        >>> allow("order", "priority", "choice", "token")
        Traceback (most recent call last):
        ...
        NotImplementedError: order 'priority', only 'choice', 'token'
    """
    if value is not None and value not in allowed:
        raise NotImplementedError(f"{name} {value!r}, only {', '.join(map(repr, allowed))}")


def routing(expert, gate, chosen) -> dict:
    """Return a routing as the reference has it.

    Args:
        expert: [T, k] integers.
        gate: [T, k].
        chosen: [T, E] floats, 1 at the experts of each token and 0 elsewhere; torch's or JAX's.
    """
    plan = chosen / expert.shape[0] / expert.shape[1]
    load = plan.sum(0)
    residual = abs(chosen.shape[1] * load - 1).max()
    return {"expert": expert, "gate": gate, "load": load, "plan": plan, "residual": residual}
