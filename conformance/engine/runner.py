"""Run the suite of the installed package with pytest, from any folder."""

import dataclasses
import functools
import json
import os
import sys
from pathlib import Path

import pytest

import routelaws
from routelaws.conformance.engine import backends, plugin
from routelaws.conformance.engine.options import Options
from routelaws.conformance.engine.report import Report

FOLDER = Path(__file__).parents[1] / "suite"


def suite_files(only=()) -> list[str]:
    """Return all test files, or only the files that can test one of these functions.

    A file can test a function if its text contains one of three names: the function, the function's file, or a table of
    functions.
    """
    names = {part for path in only for part in path.split(".")[-2:]}
    tables = ("public_functions", "functions_of_scores", "stances.JUDGED", "dialects.FUNCTIONS")
    return [file for file, text in _texts().items() if not names or any(name in text for name in (*names, *tables))]


@functools.cache
def _texts() -> dict[str, str]:
    files = sorted(FOLDER.rglob("test_*.py"), key=lambda file: file.name)
    return {str(file): file.read_text("utf-8") for file in files}


def check_version(wanted: str | None) -> None:
    """Raise a BackendError if another version of the suite is installed."""
    if wanted and wanted != routelaws.__version__:
        raise backends.BackendError(f"--suite-version {wanted}: version {routelaws.__version__} is installed")


class _Run:
    """A pytest plugin that passes the options to all processes and keeps the reports."""

    def __init__(self, options: Options):
        self.options, self.reports = options, []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config):
        config.stash[plugin.OPTIONS] = self.options

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["routelaws"] = json.dumps(dataclasses.asdict(self.options))

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self, config):
        if plugin.SUITE in config.stash:
            self.reports = config.stash[plugin.SUITE].reports()


def run_suite(options: Options, *, processes: str | None = None, verbose: bool = False) -> tuple[int, list[Report]]:
    """Run the suite and return (exit code, reports).

    Args:
        processes: number of processes for option -n of pytest-xdist; None for this process.
        verbose: show failed tests as pytest does.

    Returns:
        The exit code, and a report for each backend. The exit code is 0 if all is right, 3 for differences but no
        defect, 1 for a defect, and 2 if the suite cannot run.
    """
    arguments = ["-c", os.devnull, f"--rootdir={FOLDER}", "--import-mode=importlib", "-p", plugin.NAME, "-q"]
    arguments += ["-p", "no:cacheprovider", "--no-header", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += ["-p", "no:unraisableexception"]  # this plugin collects all garbage twice at the end
    arguments += [f"--tb={'short' if verbose else 'no'}", "-r", "fEs" if verbose else "N"]
    arguments += ["-m", "not slow"] if options.profile == "quick" else []
    arguments += ["-n", processes, "--dist", "loadfile"] if processes else []
    _forget_other_examples(options.profile)
    run = _Run(options)
    code = int(pytest.main([*arguments, *suite_files(options.only)], plugins=[run]))
    codes = {report.exit_code for report in run.reports}
    if codes and code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        code = 1 if 1 in codes else max(codes) or code % 5  # a failed test is an error even if it blames no backend
    return {0: 0, 3: 3, int(pytest.ExitCode.USAGE_ERROR): 2}.get(int(code), 1), run.reports


_drawn_for: list[str] = []
"""The profile of the imported test files, because importing a file sets its number of examples."""


def _forget_other_examples(profile: str) -> None:
    """Remove imported test files of another profile: their number of examples is fixed."""
    if _drawn_for != [profile]:
        for name in [name for name in sys.modules if name.rpartition(".")[2].startswith("test_")]:
            if FOLDER.name in name.split("."):
                del sys.modules[name]
    _drawn_for[:] = [profile]


def check_backend(
    namespace,
    *,
    profile: str = "quick",
    require=(),
    only=(),
    expected_failures=None,
    known_failures=None,
    strict: bool = False,
    export_failing=None,
    time_limit: float | None = None,
    suite_version: str | None = None,
) -> Report:
    """Run the suite on a namespace and return its report.

    Args:
        namespace: an object with some of the reference's public names, or the name of a backend.
        profile: "quick", "default" or "nightly".
        require: required functions.
        only: the functions to test; all if empty.
        expected_failures: {name: reason} of functions that are expected to fail.
        known_failures: text file with further functions that are expected to fail, one `path: reason` per line.
        strict: whether the success of a function that is expected to fail counts as a failure.
        export_failing: folder for failing calls as `.npz` files; created if missing.
        time_limit: seconds for one call.
        suite_version: the required version of routelaws.

    Raises:
        BackendError: a name is unknown, the backend cannot be found or run, or it has none of the functions. The error
            also means that a file cannot be read, a folder cannot be written, or another version is installed.
    """
    check_version(suite_version)
    name = namespace if isinstance(namespace, str) else getattr(namespace, "__name__", type(namespace).__name__)
    options = Options.made(
        [name],
        profile=profile,
        only=only,
        require=require,
        time_limit=time_limit,
        expected=expected_failures,
        known_failures=known_failures,
        strict=strict,
        export_failing=export_failing,
    )
    if name is not namespace:
        backends.OBJECTS[name] = namespace
    try:
        _, reports = run_suite(options)
    finally:
        backends.OBJECTS.pop(name, None)
    if not reports:
        raise backends.BackendError(f"backend {name} could not be run; see pytest's output above")
    return reports[0]
