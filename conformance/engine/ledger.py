"""Records of a run for each function: calls, the largest error as a share of its bound, and faults.

A failed test blames the function that raised an exception or broke a rule of `guard`, which checks each call. Otherwise
it blames the first function that the message names, or else the last called function. Functions that the marks of the
test name come first. A share (error / bound) belongs to the last called function.
"""

import collections
import copy
import dataclasses
import operator
import re
from typing import Any, NamedTuple

from routelaws.conformance.bounds import SLACK_CHECKS, SLACK_SHARE


class Trouble(NamedTuple):
    """One failed test and the function that it blames, or "" if the test called no function."""

    backend: str
    function: str
    kind: str
    detail: str
    test: str
    file: str = ""  # file with the failing call, if exported
    script: str = ""  # program that repeats the failing call, if its input is small


@dataclasses.dataclass
class Call:
    """One guarded call: its arguments and its result."""

    function: str
    arguments: tuple
    keywords: dict[str, Any]
    precision: str | None
    returned: bool = False
    result: Any = None


NOT_FINITE = re.compile(r"expected -?\d\S*, found -?(nan|inf)\b|of the plan .* is -?(nan|inf)\b")
"""The message of a comparison that found nan or inf instead of a finite number."""

KEPT = 200
"""Maximum number of stored calls of one example; earlier calls are dropped."""


MERGED = {
    "examples": operator.add,
    "shares": max,
    "not_offered": operator.add,
    "compared": operator.add,
    "options": operator.or_,
    "capabilities": lambda ours, theirs: ours and theirs,
    "findings": lambda ours, theirs: ours,
    "facts": lambda ours, theirs: ours,
    "bounds": lambda ours, theirs: (ours[0] + theirs[0], max(ours[1], theirs[1])),
}
"""Functions that merge the records of two processes, by field of `Ledger`."""


class Slack(NamedTuple):
    """A bound that is too loose, with its largest share and its number of checks."""

    bound: str
    share: float  # largest used share of the bound
    checks: int


class Ledger:
    """The records of one process: calls, shares of bounds and faults.

    With `keeps`, it stores the calls of the current example for `failing_calls.export`.
    """

    def __init__(self):
        self.examples: dict[tuple[str, str], int] = {}
        self.shares: dict[tuple[str, str], float] = {}
        self.troubles: list[Trouble] = []
        self.bounds: dict[tuple[str, str], tuple[int, float]] = {}  # checks and worst share, by backend and bound
        self.keeps, self.broken = False, {}
        self.not_offered: dict[tuple[str, str, str], int] = {}
        self.compared: dict[tuple[str, str], int] = {}  # {(backend, function): finished tests}
        self.findings: dict[tuple[str, str], dict] = {}  # {(backend, function): row}, see `stances.as_row`
        self.facts: dict[tuple[str, str, str], str] = {}  # {(backend, function, fact): value}
        self.options: dict[tuple[str, str, str], bool] = {}  # {(backend, function, option): answered}
        self.capabilities: dict[tuple[str, str, str], str] = {}  # "" if tested, else the reason why not
        self.test = 0  # number of started tests
        self.begin()

    def begin(self, plain: str = "") -> None:
        """Start a new test. `plain` is the name of the backend if the test uses our module without a guard."""
        self.test += 1
        self.recent, self.left_out, self.plain = [], "", plain
        self.raised = collections.deque(maxlen=16)  # errors, each with its origin and the shapes of its arguments
        self.blamed, self.failed = None, collections.deque(maxlen=16)
        self.begin_example()

    def begin_example(self) -> None:
        self.calls = collections.deque(maxlen=KEPT)

    def keep(self, function: str, arguments, keywords: dict, precision: str | None) -> Call | None:
        """Store and return the arguments of a call; copy a random generator before the call changes it."""
        if not self.keeps:
            return None

        def now(value):
            return copy.deepcopy(value) if type(value).__name__ == "Generator" else value

        inputs = tuple(map(now, arguments)), {name: now(value) for name, value in keywords.items()}
        self.calls.append(Call(function, *inputs, precision))
        return self.calls[-1]

    def broke(self, backend: str, function: str) -> None:
        if self.calls and self.calls[-1].function == function:
            self.broken.setdefault((backend, function), self.calls[-1])

    def called(self, backend: str, function: str) -> None:
        self.examples[backend, function] = self.examples.get((backend, function), 0) + 1
        if (backend, function) in self.recent:
            self.recent.remove((backend, function))
        self.recent.append((backend, function))

    def answered(self, backend: str, function: str, options) -> None:
        """Record the options of an answered call that differ from the reference's defaults."""
        self.options.update({(backend, function, option): True for option in options})

    def declined(self, backend: str, function: str, reason: str, options=()) -> None:
        """Count a call as declined instead of called."""
        for option in options:
            self.options.setdefault((backend, function, option), False)
        self.examples[backend, function] -= 1
        self.not_offered[backend, function, reason] = self.not_offered.get((backend, function, reason), 0) + 1

    def ended(self) -> None:
        """Record a passed test: all its calls were compared."""
        for key in set(self.recent):
            self.compared[key] = self.compared.get(key, 0) + 1

    def share(self, name: str, share: float) -> None:
        """Record a share reported by `bounds.check`."""
        backend = self.recent[-1][0] if self.recent else self.plain
        if self.recent:
            self.shares[self.recent[-1]] = max(self.shares.get(self.recent[-1], 0.0), float(share))
        if backend:
            checks, worst = self.bounds.get((backend, name), (0, 0.0))
            self.bounds[backend, name] = checks + 1, max(worst, float(share))

    def blame(self, error: BaseException, backend: str, test: str, asked=()) -> Trouble:
        """Record the fault of a failed test, with the function that the test blames.

        `asked` has the functions that the marks of the test name. The blame prefers them if the test called any.
        """
        while isinstance(error, BaseExceptionGroup):
            named = [inner for inner in error.exceptions if hasattr(inner, "kind")]
            if "Flaky" in type(error).__name__ and not named:
                break
            error, *others = named or error.exceptions
            for further in () if named else others:  # Hypothesis can find several faults with one test
                self.blame(further, backend, test, asked)
        self.blamed = error
        text = " ".join(str(error).split()) or type(error).__name__
        called = [path for _, path in self.recent]
        called = [path for path in called if path in asked] or called
        places = {path: re.search(rf"\b{path.rpartition('.')[2]}\b", text) for path in called}
        named = min((match.start(), path) for path, match in places.items() if match) if any(places.values()) else None
        function = named[1] if named else called[-1] if called else ""
        kind, detail = "not finite" if NOT_FINITE.search(text) else "wrong", _plain(str(error)) or text
        if hasattr(error, "kind"):
            function, kind, detail = error.path, error.kind, error.detail
        elif "Flaky" in type(error).__name__:
            kind, detail = "not deterministic", "gave two results for the same example"
        elif calls := [call for call in self.raised if call[0] is error]:
            _, function, shapes = calls[0]
            kind, detail = (
                "raises",
                f"raised {type(error).__name__}: {text}" + (f"; given {shapes}") * bool(shapes),
            )
        self.troubles.append(Trouble(backend, function, kind, detail, test))
        return self.troubles[-1]

    def as_lists(self) -> dict:
        counted = {name: [[list(key), value] for key, value in getattr(self, name).items()] for name in MERGED}
        return counted | {"troubles": [list(trouble) for trouble in self.troubles]}

    def add(self, lists: dict) -> None:
        for name, merge in MERGED.items():
            seen = getattr(self, name)
            for key, value in lists[name]:
                key, value = tuple(key), tuple(value) if isinstance(value, list) else value
                seen[key] = merge(seen[key], value) if key in seen else value
        self.troubles += [Trouble(*trouble) for trouble in lists["troubles"]]

    def slack(self, backend: str) -> tuple[Slack, ...]:
        """Return a backend's bounds whose largest share is below `SLACK_SHARE`, the smallest share first."""
        bounds_used = [
            Slack(name, worst, checks)
            for (whose, name), (checks, worst) in self.bounds.items()
            if whose == backend and 0 < worst < SLACK_SHARE and checks >= SLACK_CHECKS
        ]
        return tuple(sorted(bounds_used, key=lambda bound: (bound.share, bound.bound)))


def _plain(text: str) -> str:
    """Return the message of a failed assertion in one line, with function names instead of addresses.

    Of the details that pytest adds to a message of the test, keep only the comparison of numbers.
    """
    words, _, account = text.partition("\nassert ")
    compared = account.partition("\n")[0]
    if compared and re.fullmatch(r"[-\w.+ ()]+ (==|!=|<=?|>=?|is|is not) [-\w.+ ()]+", compared):
        words = f"{words}: asserted {compared}"
    names, kept = {}, []
    for line in words.splitlines():
        text_line = re.fullmatch(r"\s*\+\s+where (<.+ at 0x[0-9a-f]+>) = <.+ at 0x[0-9a-f]+>\.(\w+)", line)
        if text_line:
            names[text_line[1]] = text_line[2]
        else:
            kept.append(line)
    text_line = " ".join(" ".join(kept).split())
    for address, name in names.items():
        text_line = text_line.replace(address, name)
    return re.sub(r" at 0x[0-9a-f]+", "", text_line)
