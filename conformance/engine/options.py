"""The options of one run of the suite, as a frozen record.

`python -m routelaws.conformance`, `check_backend` and pytest's command line each make an `Options`. The plugin reads
all its options from this record, and pytest-xdist passes the record to every process as JSON.
"""

import dataclasses
import datetime
import os
import re
from collections.abc import Mapping
from pathlib import Path

from routelaws.conformance.engine.backends import OURS, TIME_LIMIT
from routelaws.conformance.engine.names import BackendError, full_names

PROFILES = ("quick", "default", "nightly")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one run of the suite.

    Fields:
        backends: names of the namespaces under test; () for `routelaws.accelerated` without a guard.
        profile: "quick" (8 examples of a property), "default" (40) or "nightly" (400).
        only: paths of the functions to test; () for all.
        require: paths of required functions.
        time_limit: seconds for one call.
        expected: {path: reason} of functions that are expected to fail.
        shuffle: the seed of the test order; None for the order of the files.
        strict: whether the success of a function in `expected` counts as a failure.
        json, html: files for the report; "" for none.
        export_failing: the folder for failing calls, as the user wrote it; "" for none.
        leave_others: whether to skip tests without a backend.
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
        """Return the options, with full paths of functions and with the contents of the file of known failures.

        Raises:
            BackendError: a function is unknown, a file cannot be read, or a file or folder cannot be written.
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
        """Return the options of pytest's command line.

        If it names no backend or no profile, the value of ROUTELAWS_BACKEND or ROUTELAWS_PROFILE is used.
        """

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
    """Return {path: reason} of the functions that are expected to fail, from a text file.

    Each line is `path: reason`, and # starts a comment. A reason may end with `until YYYY-MM-DD`, the last day.

    Raises:
        BackendError: the file cannot be read, a line has no function or no reason, or a function is repeated; or the
            date of a line is past.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError(f"known failures {file}: it cannot be read ({error})") from error
    reasons = {}
    for number, line in enumerate(lines, 1):
        name, _, reason = (part.strip() for part in line.partition("#")[0].partition(":"))
        if not name and not reason:
            continue
        where = f"known failures {file}, line {number}"
        if not name or not reason:
            raise BackendError(f"{where}: {line.strip()!r}; write `path: reason`")
        if last := re.search(r"\buntil (\d{4}-\d\d-\d\d)$", reason):
            if last[1] < datetime.date.today().isoformat():
                raise BackendError(f"{where}: {name} expired on {last[1]}; remove the line, or write a later date")
        try:
            (path,) = full_names([name])
        except BackendError as error:
            raise BackendError(f"{where}: {error}") from error
        if path in reasons:
            raise BackendError(f"{where}: {path} appears twice")
        reasons[path] = reason
    return reasons


def folder_for(path) -> str:
    """Create the folder for failing calls and return its absolute path. Return "" if `path` is empty.

    Raises:
        BackendError: the folder cannot be created or written to.
    """
    if not path:
        return ""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise BackendError(f"--export-failing {path}: the folder cannot be created ({error.strerror})") from error
    if not os.access(path, os.W_OK):
        raise BackendError(f"--export-failing {path}: the folder is not writable")
    return os.path.abspath(path)


def check_report(file) -> None:
    """Check that the file of a report can be written.

    Raises:
        BackendError: the folder of the file is missing, the file is a folder, or the file is not writable.
    """
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {Path(file).parent}"
        raise BackendError(f"report {file}: it cannot be written ({why})")
    if path.exists() and not path.is_file():
        raise BackendError(f"report {file}: it cannot be written (it is not a regular file)")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BackendError(f"report {file}: the folder is not writable")
