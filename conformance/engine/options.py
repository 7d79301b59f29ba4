"""What one run of the suite is asked: one frozen record, whoever asks.

`python -m routelaws.conformance`, `check_backend` and the options of pytest each make an `Options`. The plugin reads
nothing else; under pytest-xdist it is handed to every process as JSON.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from routelaws.conformance.engine.backends import OURS, TIME_LIMIT
from routelaws.conformance.engine.names import BackendError, full_names

PROFILES = ("quick", "default", "nightly")


@dataclasses.dataclass(frozen=True)
class Options:
    """What one run of the suite is asked.

    Fields:
        backends: names of the namespaces under test; () in this repository's own tests, where it is the plain module.
        profile: "quick" (8 examples of a property), "default" (40) or "nightly" (400).
        only: paths of the only functions to test; () for all.
        require: paths of functions that have to be there.
        time_limit: seconds for one call.
        expected: reasons by path of functions that may fail.
        shuffle: the seed of the order in which the tests run; None for that of the files.
        strict: whether one of these that does not fail counts as a failure.
        json, html: files for the report; "" for none.
        export_failing: the folder for failing calls as it was named; "" for none.
        leave_others: whether tests that ask for no backend are left out.
    """

    backends: tuple[str, ...] = ()
    profile: str = "quick"
    only: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    time_limit: float = TIME_LIMIT
    expected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shuffle: int | None = None
    strict: bool = False
    json: str = ""
    html: str = ""
    export_failing: str = ""
    leave_others: bool = True

    @classmethod
    def made(cls, names, *, only=(), require=(), time_limit=None, expected=None, known_failures=None, **more):
        """Return the options, with functions given by their last names and a file of known failures.

        Raises:
            BackendError: a function is not of the reference, a file cannot be read, or a file or folder cannot be
                written.
        """
        if more.get("profile", "quick") not in PROFILES:
            raise BackendError(f"profile is {more['profile']!r}; allowed: {', '.join(PROFILES)}")
        named = dict(expected or {})
        reasons = dict(zip(full_names(named), named.values(), strict=True))
        folder_for(more.get("export_failing"))
        for file in filter(None, (more.get("json"), more.get("html"))):
            check_report(file)
        return cls(
            backends=tuple(dict.fromkeys(names)),
            only=full_names(only),
            require=full_names(require),
            time_limit=TIME_LIMIT if time_limit is None else time_limit,
            expected=(known_failures_of(known_failures) if known_failures else {}) | reasons,
            **{name: str(value) if name in ("json", "html", "export_failing") else value
               for name, value in more.items() if value is not None},
        )  # fmt: skip

    @classmethod
    def of_pytest(cls, config) -> "Options":
        """Return the options of pytest's command line, with ROUTELAWS_BACKEND and ROUTELAWS_PROFILE behind them."""

        def given(name):
            return config.getoption(f"--routelaws-{name}", default=None)

        variable = os.environ.get("ROUTELAWS_BACKEND", "")
        return cls.made(
            given("backend") or [name for name in [variable] if name and name != OURS],
            profile=given("profile") or os.environ.get("ROUTELAWS_PROFILE", "quick"),
            only=given("only") or (),
            require=given("require") or (),
            time_limit=given("time-limit"),
            known_failures=given("known-failures"),
            shuffle=given("shuffle"),
            strict=bool(given("strict")),
            json=given("json"),
            html=given("html"),
            export_failing=given("export-failing"),
            leave_others=bool(given("backend")),
        )


def known_failures_of(file) -> dict[str, str]:
    """Return the reasons by path of the functions that a text file says may fail.

    One function in each line, `path: reason`; what follows a # is a comment, and empty lines are nothing.

    Raises:
        BackendError: the file cannot be read, or a line has no reason, no name of a function, or one that was there.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError(f"known failures {file}: it cannot be read ({error})") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, _, reason = (part.strip() for part in line.partition("#")[0].partition(":"))
        if not name and not reason:
            continue
        where = f"known failures {file}, line {number}"
        if not name or not reason:
            raise BackendError(f"{where}: {line.strip()!r}; a line is `path: reason`")
        try:
            (path,) = full_names([name])
        except BackendError as error:
            raise BackendError(f"{where}: {error}") from error
        if path in found:
            raise BackendError(f"{where}: {path} stands there twice")
        found[path] = reason
    return found


def folder_for(path) -> str:
    """Return a folder for the failing calls as an absolute path, made where it is not there; "" without one.

    Raises:
        BackendError: no folder can be made there, or nothing can be written in it.
    """
    if not path:
        return ""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise BackendError(f"--export-failing {path}: no folder can be made ({error.strerror})") from error
    if not os.access(path, os.W_OK):
        raise BackendError(f"--export-failing {path}: nothing can be written there")
    return os.path.abspath(path)


def check_report(file) -> None:
    """Refuse a file for a report that could not be written, before the tests have run for it.

    Raises:
        BackendError: its folder is not there, it is a folder itself, or nothing can be written there.
    """
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {Path(file).parent}"
        raise BackendError(f"report {file}: it cannot be written ({why})")
    if path.exists() and not path.is_file():
        raise BackendError(f"report {file}: it cannot be written (it is no file)")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BackendError(f"report {file}: nothing can be written there")
