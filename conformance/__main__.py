"""`python -m routelaws.conformance --backend my.module`: compare the functions of a backend with the reference.

Exit codes: 0 all right, 3 differences but no defect, 1 a defect, 2 the suite cannot run. With --parity: 0 the same, 3
other experts, gates or outputs, 1 a defect of one program, 2 it cannot run.
"""

import argparse
import importlib.util
import inspect
import os
import random
import sys
import tempfile
import typing

from routelaws.conformance.engine.names import full_names, public_functions

QUICK_COMPILE = "--xla_backend_optimization_level=0"
"""An XLA flag for operations outside compiled functions; `harness` sets the options of compiled functions."""


def parser() -> argparse.ArgumentParser:
    summary, _, codes = __doc__.partition("\n\n")
    arguments = argparse.ArgumentParser(prog="python -m routelaws.conformance", description=summary, epilog=codes)
    add = arguments.add_argument
    add(
        "--backend",
        action="append",
        metavar="NAME",
        help="the backend to test: a module, module:attribute, transformers:CLASS (or the folder of a saved model), or "
        "an entry point of the group routelaws.backends; may be repeated; default: $ROUTELAWS_BACKEND, else "
        "routelaws.accelerated",
    )
    add("--parity", metavar="NAME", help="compare the router of this backend with the router of --backend, and stop")
    add("--only", action="append", metavar="FUNCTION[,...]", default=[], help="test only these functions")
    add(
        "--require",
        action="append",
        metavar="FUNCTION[,...]",
        default=[],
        help="fail if one of these functions is missing",
    )
    add(
        "--profile",
        choices=("quick", "default", "nightly"),
        default=os.environ.get("ROUTELAWS_PROFILE", "quick"),
        help="number of examples per property: quick 8, default 40, nightly 400; quick skips the slow tests",
    )
    add(
        "--shuffle",
        type=int,
        nargs="?",
        const=-1,
        metavar="SEED",
        help="run the tests in random order; the report names the seed, and the same seed repeats the order",
    )
    add("--time-limit", type=float, metavar="SECONDS", help="time limit of one call; default: 60")
    add("--json", metavar="FILE", help="write the report as JSON")
    add("--html", metavar="FILE", help="write the report as a page")
    add("--export-failing", metavar="FOLDER", help="write the failing calls to this folder, as .npz files")
    add(
        "--known-failures",
        metavar="FILE",
        help="text file of functions that may fail, one `path: reason` per line",
    )
    add("--strict", action="store_true", help="fail if a function in --known-failures is right")
    add("--suite-version", metavar="X", help="fail if another version of the suite is installed")
    add("--processes", "-n", metavar="N", help="run in N processes (needs pytest-xdist)")
    add("--list", action="store_true", help="print the names of the functions and stop")
    add(
        "--show",
        action="append",
        metavar="FUNCTION[,...]",
        default=[],
        help="print the source of these reference functions and of their result types, and stop",
    )
    add("--verbose", "-v", action="store_true", help="show the failed tests as pytest does")
    return arguments


def main(arguments=None) -> int:
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kept = os.path.abspath(options.export_failing or folder)  # not in the working directory
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(kept, "hypothesis"))
        names = options.backend or [os.environ.get("ROUTELAWS_BACKEND") or "routelaws.accelerated"]
        runs_tests = not (options.list or options.show)
        if runs_tests and options.profile == "quick" and all(name.partition(".")[0] == "routelaws" for name in names):
            _compile_quickly(folder if options.processes else None)
        return _run(options, names)


def _compile_quickly(folder: str | None) -> None:
    """Compile our own twin as fast as possible.

    JAX reads these settings when it is imported.

    Args:
        folder: cache of compiled programs for several processes. None for one process, which repeats few programs:
            writing all of them takes longer than compiling those again.
    """
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILE}".strip()
    if folder and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }


PACKAGES = ("filelock", "hypothesis", "jax", "numba", "pytest")
"""Packages that the suite needs besides NumPy, whatever framework a backend has."""


def _run(options, names) -> int:
    lacking = " ".join(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    if lacking:
        print(f"the suite needs packages that are not installed; run: pip install {lacking}", file=sys.stderr)
        return 2
    from routelaws.conformance.engine import backends, runner
    from routelaws.conformance.engine.options import Options

    try:
        if options.parity:
            return _compare(options, names)
        if options.list:
            print("\n".join(public_functions()), flush=True)
            return 0
        if options.show:
            print("\n\n".join(map(_source, full_names(_names(options.show)))), flush=True)
            return 0
        runner.check_version(options.suite_version)
        if options.processes and importlib.util.find_spec("xdist") is None:
            raise backends.BackendError("--processes needs pytest-xdist: pip install pytest-xdist")
        run_options = Options.made(
            names,
            profile=options.profile,
            only=_names(options.only),
            require=_names(options.require),
            time_limit=options.time_limit,
            shuffle=random.randrange(10**6) if options.shuffle == -1 else options.shuffle,
            known_failures=options.known_failures,
            strict=options.strict,
            json=options.json and os.path.abspath(options.json),
            html=options.html and os.path.abspath(options.html),
            export_failing=options.export_failing,
        )
        code, _ = runner.run_suite(run_options, processes=options.processes, verbose=options.verbose)
        return code
    except BrokenPipeError:  # a reader such as `head` has closed the pipe; discard the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except backends.BackendError as error:
        print(error, file=sys.stderr)
        return 2


WITH_PARITY = ("backend", "html", "json", "parity", "profile", "time_limit")
"""Options that --parity uses, and the profile, whose default may come from the environment."""


def _compare(options, names) -> int:
    """Compare two backends, and write the reports."""
    from routelaws.conformance import parity
    from routelaws.conformance.engine import backends
    from routelaws.conformance.engine.options import check_report

    idle = [name for name, value in vars(options).items() if value and name not in WITH_PARITY]
    if idle:
        raise backends.BackendError(f"--{idle[0].replace('_', '-')} has no effect with --parity; omit it")
    if len(names) != 1:
        raise backends.BackendError(f"--parity compares two backends, not {len(names) + 1}; give one --backend")
    for file in filter(None, (options.json, options.html)):
        check_report(file)
    result = parity.compare(options.parity, names[0], time_limit=options.time_limit or backends.TIME_LIMIT)
    print("\n".join(parity.lines(result)), flush=True)
    for write, file in ((parity.write_json, options.json), (parity.write_html, options.html)):
        if file:
            write(result, os.path.abspath(file))
    return result.exit_code


def _names(groups) -> list[str]:
    return [name for group in groups for name in group.split(",")]


def _source(path: str) -> str:
    """Return the source of a reference function, after the source of the record that it returns."""

    function = public_functions()[path]
    record = typing.get_type_hints(function).get("return")
    parts = [record, function] if hasattr(record, "_fields") else [function]
    return "\n\n".join([f"# {path}", *map(inspect.getsource, parts)])


if __name__ == "__main__":
    sys.exit(main())
