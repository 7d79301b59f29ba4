"""Runs the suite with pytest on the files of the installed package, from any folder."""

import os
from pathlib import Path

import pytest

import routelaws
from routelaws.conformance.engine import backends, plugin
from routelaws.conformance.engine.report import Report

FOLDER = Path(__file__).parents[1] / "suite"


def suite_files(only=()) -> list[str]:
    """Return the test files, or those that hold the name of one of these functions or of its file."""
    names = {part for path in only for part in path.split(".")[-2:]}
    found = sorted(FOLDER.glob("test_*.py"))
    return [str(file) for file in found if not names or any(name in file.read_text("utf-8") for name in names)]


def check_version(wanted: str | None) -> None:
    """Raise a BackendError where another version of the suite is installed than was asked for."""
    if wanted and wanted != routelaws.__version__:
        raise backends.BackendError(f"suite version {wanted} was asked for, {routelaws.__version__} is installed")


class _Keep:
    """Keeps the reports of a run."""

    def __init__(self):
        self.reports: list[Report] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self, config):
        if plugin.SUITE in config.stash:
            self.reports = config.stash[plugin.SUITE].reports()


def run_suite(
    names,
    *,
    profile: str = "quick",
    require=(),
    only=(),
    time_limit: float | None = None,
    export_failing: str | None = None,
    known_failures: str | None = None,
    strict: bool = False,
    options=(),
    verbose: bool = False,
) -> tuple[int, list[Report]]:
    """Run the suite in this process and return (exit code, reports).

    Args:
        names: of the backends.
        profile: "quick" (which leaves the slow tests out), "default" or "nightly".
        require: functions that have to be there.
        only: the only functions to test.
        time_limit: seconds for one call.
        export_failing: folder for the failing calls, as files that `replay` runs again.
        known_failures: text file of functions that may fail.
        strict: one of these that does not fail counts as a failure.
        options: further options of pytest.
        verbose: show the failed tests as pytest does.

    Returns:
        0 when nothing is wrong, 1 when something is, 2 when what was asked cannot be done; and a report for each
        backend.
    """
    only, require = backends.full_names(only), backends.full_names(require)
    arguments = [
        "-c",
        os.devnull,
        f"--rootdir={FOLDER}",
        "--import-mode=importlib",
        "-p",
        plugin.NAME,
        "-q",
        "-p",
        "no:cacheprovider",
        f"--tb={'short' if verbose else 'no'}",
        "--no-header",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        f"--routelaws-profile={profile}",
    ]
    arguments += ["-r", "fEs" if verbose else "N"]
    arguments += ["-m", "not slow"] if profile == "quick" else []
    arguments += [f"--routelaws-backend={name}" for name in names]
    arguments += [f"--routelaws-require={name}" for name in require]
    arguments += [f"--routelaws-only={name}" for name in only]
    arguments += [
        f"--routelaws-{name}={value}"
        for name, value in (
            ("time-limit", time_limit),
            ("export-failing", export_failing),
            ("known-failures", known_failures),
        )
        if value
    ]
    arguments += ["--routelaws-strict"] if strict else []
    keep = _Keep()
    code = int(pytest.main([*arguments, *options, *suite_files(only)], plugins=[keep]))
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and keep.reports:
        code = max(one.exit_code for one in keep.reports)
    return {0: 0, int(pytest.ExitCode.USAGE_ERROR): 2}.get(code, 1), keep.reports


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
    """Run the suite on a namespace and return what it says of each function.

    Args:
        namespace: an object with the reference's public names, as many as it has; or the name of one.
        profile: "quick", "default" or "nightly".
        require: functions that have to be there.
        only: the only functions to test; all without it.
        expected_failures: reasons by name of functions that may be wrong.
        known_failures: path of a text file with more of these, `path: reason` in each line.
        strict: one of these that does not fail counts as a failure.
        export_failing: folder for the failing calls, as files for `replay.load`; made where it is not there.
        time_limit: seconds for one call.
        suite_version: fail where another version is installed.

    Raises:
        BackendError: a name is not of the reference, the backend cannot be found, has none of the functions or cannot
            be run, a file cannot be read or a folder written, or another version is installed.
    """
    check_version(suite_version)
    if known_failures:
        plugin.known_failures(str(known_failures))
    plugin.folder_for(export_failing)
    expected = dict(expected_failures or {})
    paths = dict(zip(backends.full_names(expected), expected.values(), strict=True))
    name = namespace if isinstance(namespace, str) else getattr(namespace, "__name__", type(namespace).__name__)
    plugin.EXPECTED.update(paths)
    if name is not namespace:
        backends.OBJECTS[name] = namespace
    try:
        _, reports = run_suite(
            [name],
            profile=profile,
            require=require,
            only=only,
            time_limit=time_limit,
            export_failing=export_failing,
            known_failures=known_failures,
            strict=strict,
        )
    finally:
        plugin.EXPECTED.clear()
        backends.OBJECTS.pop(name, None)
    if not reports:
        raise backends.BackendError(f"backend {name} could not be run; pytest says why")
    return reports[0]
