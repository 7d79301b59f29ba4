"""The observers of a run: they get the events of training."""

from collections.abc import Callable

Watch = Callable[..., None]
"""Called as watch(kind, **fields):

    watch("start", run=)                               of a sweep or a command: the run with this hyper_id begins
    watch("step", step=, loss=, tokens_per_second=)    a compiled call is done
    watch("evaluation", step=, loss=)                  the validation text was evaluated
    watch("finished", run=), watch("failed", run=, line=)
    watch("say", line=)                                a line for the user

In a sweep every call has `run=hyper_id`.
"""


def silent(kind: str, **fields) -> None:
    """The `Watch` that ignores every event."""


def telling(tell: Callable[[str], None]) -> Watch:
    """Return a `Watch` that passes on only lines for the user."""
    return lambda kind, line="", **fields: tell(line) if kind == "say" else None
