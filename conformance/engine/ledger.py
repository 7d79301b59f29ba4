"""What a run has seen of each function, written down while it runs: calls, shares of bounds, and faults.

Which function a failed test blames: the one that broke a rule of the guard or raised; else the one whose name comes
first in the message; else the one called last. A share of a bound is that of the function called last.
"""

import collections
import copy
import dataclasses
import operator
import re
from typing import Any, NamedTuple

from routelaws.conformance.bounds import SLACK_CHECKS, SLACK_SHARE


class Trouble(NamedTuple):
    """One failed test and the function that it blames ("" where it called none)."""

    backend: str
    function: str
    kind: str
    detail: str
    test: str
    file: str = ""  # that holds the failing call, where they are exported
    script: str = ""  # that repeats the failing call, where its arguments are few numbers


@dataclasses.dataclass
class Call:
    """One guarded call: what it was given, and what came of it."""

    function: str
    arguments: tuple
    keywords: dict[str, Any]
    precision: str | None
    returned: bool = False
    result: Any = None


NOT_FINITE = re.compile(r"expected -?\d\S*, found -?(nan|inf)\b")
"""What a comparison says where a finite number is expected and none is found."""

KEPT = 200
"""Calls of one example that are kept; a test that makes more is a loop, and its last calls are as good as any."""


MERGED = {
    "examples": operator.add,
    "shares": max,
    "not_offered": operator.add,
    "compared": operator.add,
    "options": operator.or_,
    "findings": lambda ours, theirs: ours,
    "bounds": lambda ours, theirs: (ours[0] + theirs[0], max(ours[1], theirs[1])),
}
"""How the records of two processes become one, by field of `Ledger`."""


class Slack(NamedTuple):
    """A bound that is looser than what it judges needs."""

    bound: str
    share: float  # the worst that was used of it
    checks: int


class Ledger:
    """What one process has seen: calls, shares of bounds and troubles.

    Where `keeps` is true, it holds the calls of the example that runs, for `failing_calls.export`.
    """

    def __init__(self):
        self.examples: dict[tuple[str, str], int] = {}
        self.shares: dict[tuple[str, str], float] = {}
        self.troubles: list[Trouble] = []
        self.bounds: dict[tuple[str, str], tuple[int, float]] = {}  # checks and worst share, by backend and bound
        self.keeps, self.broken = False, {}
        self.not_offered: dict[tuple[str, str, str], int] = {}
        self.compared: dict[tuple[str, str], int] = {}  # tests that came to their end, by backend and function
        self.findings: dict[tuple[str, str], dict] = {}  # by backend and function: see `stances.as_row`
        self.options: dict[tuple[str, str, str], bool] = {}  # by backend, function and option: answered, or declined
        self.test = 0  # how many tests have begun
        self.begin()

    def begin(self, plain: str = "") -> None:
        """Forget what belongs to one test; `plain` is the backend of a test that calls it without a guard."""
        self.test += 1
        self.recent, self.left_out, self.plain = [], "", plain
        self.raised = collections.deque(maxlen=16)  # errors, with who raised each and the shapes it was given
        self.blamed, self.failed = None, collections.deque(maxlen=16)
        self.begin_example()

    def begin_example(self) -> None:
        self.calls = collections.deque(maxlen=KEPT)

    def keep(self, function: str, arguments, keywords: dict, precision: str | None) -> Call | None:
        """Hold what a call is given, and return that; a generator of random numbers as it is before the call."""
        if not self.keeps:
            return None

        def now(value):
            return copy.deepcopy(value) if type(value).__name__ == "Generator" else value

        given = tuple(map(now, arguments)), {name: now(value) for name, value in keywords.items()}
        self.calls.append(Call(function, *given, precision))
        return self.calls[-1]

    def broke(self, backend: str, function: str) -> None:
        """Hold the call in which a function first broke a rule of the guard: no later one gets so far."""
        if self.calls and self.calls[-1].function == function:
            self.broken.setdefault((backend, function), self.calls[-1])

    def called(self, backend: str, function: str) -> None:
        self.examples[backend, function] = self.examples.get((backend, function), 0) + 1
        if (backend, function) in self.recent:
            self.recent.remove((backend, function))
        self.recent.append((backend, function))

    def answered(self, backend: str, function: str, options) -> None:
        """Write down which options stood in a call that was answered, other than at the reference's defaults."""
        self.options.update({(backend, function, option): True for option in options})

    def declined(self, backend: str, function: str, reason: str, options=()) -> None:
        """Take back a call of `called` that asked for what the function does not offer: these options, or one of."""
        for option in options:
            self.options.setdefault((backend, function, option), False)
        self.examples[backend, function] -= 1
        self.not_offered[backend, function, reason] = self.not_offered.get((backend, function, reason), 0) + 1

    def ended(self) -> None:
        """A test has passed: what it called was compared to the end."""
        for key in set(self.recent):
            self.compared[key] = self.compared.get(key, 0) + 1

    def share(self, name: str, share: float) -> None:
        """Listen to `bounds.check`."""
        backend = self.recent[-1][0] if self.recent else self.plain
        if self.recent:
            self.shares[self.recent[-1]] = max(self.shares.get(self.recent[-1], 0.0), float(share))
        if backend:
            checks, worst = self.bounds.get((backend, name), (0, 0.0))
            self.bounds[backend, name] = checks + 1, max(worst, float(share))

    def blame(self, error: BaseException, backend: str, test: str, asked=()) -> Trouble:
        """Write down which function a failed test blames, and for what; of those that it asks for, if any was called.

        A test that does not ask for a function is not run for it with `--only`, so it decides no verdict on it either.
        """
        while isinstance(error, BaseExceptionGroup):
            named = [one for one in error.exceptions if hasattr(one, "kind")]
            if "Flaky" in type(error).__name__ and not named:
                break
            error, *others = named or error.exceptions
            for other in () if named else others:  # Hypothesis has found several faults in one property
                self.blame(other, backend, test, asked)
        self.blamed = error
        text = " ".join(str(error).split()) or type(error).__name__
        called = [path for _, path in self.recent]
        called = [path for path in called if path in asked] or called
        places = {path: re.search(rf"\b{path.rpartition('.')[2]}\b", text) for path in called}
        named = min((found.start(), path) for path, found in places.items() if found) if any(places.values()) else None
        function = named[1] if named else called[-1] if called else ""
        kind, detail = "not finite" if NOT_FINITE.search(text) else "wrong", _plain(str(error)) or text
        if hasattr(error, "kind"):
            function, kind, detail = error.path, error.kind, error.detail
        elif "Flaky" in type(error).__name__:
            kind, detail = "not deterministic", "gave two results for the same example"
        elif calls := [call for call in self.raised if call[0] is error]:
            _, function, shapes = calls[0]
            kind, detail = "raises", f"raised {type(error).__name__}: {text}" + f"; given {shapes}" * bool(shapes)
        self.troubles.append(Trouble(backend, function, kind, detail, test))
        return self.troubles[-1]

    def as_lists(self) -> dict:
        """Return plain lists, for another process."""
        counted = {name: [[list(key), value] for key, value in getattr(self, name).items()] for name in MERGED}
        return counted | {"troubles": [list(trouble) for trouble in self.troubles]}

    def add(self, lists: dict) -> None:
        """Add what another process has seen."""
        for name, merge in MERGED.items():
            seen = getattr(self, name)
            for key, value in lists[name]:
                key, value = tuple(key), tuple(value) if isinstance(value, list) else value
                seen[key] = merge(seen[key], value) if key in seen else value
        self.troubles += [Trouble(*trouble) for trouble in lists["troubles"]]

    def slack(self, backend: str) -> tuple[Slack, ...]:
        """Return the bounds of which a backend never used much, the loosest first; those never used at all apart."""
        found = [
            Slack(name, worst, checks)
            for (whose, name), (checks, worst) in self.bounds.items()
            if whose == backend and 0 < worst < SLACK_SHARE and checks >= SLACK_CHECKS
        ]
        return tuple(sorted(found, key=lambda one: (one.share, one.bound)))


def _plain(text: str) -> str:
    """Return the message of a failed assertion in one line, functions by their names instead of their addresses.

    If a test explains the fault itself, keep only the comparison of numbers of pytest's account, which follows.
    """
    words, _, account = text.partition("\nassert ")
    compared = account.partition("\n")[0]
    if compared and re.fullmatch(r"[-\w.+ ()]+ (==|!=|<=?|>=?|is|is not) [-\w.+ ()]+", compared):
        words = f"{words}: asserted {compared}"
    names, kept = {}, []
    for line in words.splitlines():
        found = re.fullmatch(r"\s*\+\s+where (<.+ at 0x[0-9a-f]+>) = <.+ at 0x[0-9a-f]+>\.(\w+)", line)
        if found:
            names[found[1]] = found[2]
        else:
            kept.append(line)
    found = " ".join(" ".join(kept).split())
    for address, name in names.items():
        found = found.replace(address, name)
    return re.sub(r" at 0x[0-9a-f]+", "", found)
