"""Property tests that compare a backend with the reference: `python -m routelaws.conformance`, or `check_backend`."""

__all__ = ["check_backend"]


def __getattr__(name):
    if name == "check_backend":
        from routelaws.conformance.engine.runner import check_backend

        return check_backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
