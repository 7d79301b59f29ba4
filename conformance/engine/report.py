"""What a run says about each function: a ledger that is kept while it runs, a table, JSON and one page of HTML.

Verdicts: right (asked, and nothing failed), wrong, raises, hangs, mutates, not deterministic, dialect (it differs, as a
known library does), missing, not asked (it is there, and no test of this run called it and came to its end), expected
(it fails as was said beforehand), unexpectedly right (it does not).

Which function a failed test blames: the one that broke a rule of the guard or raised; else the one whose name comes
first in the message; else the one called last. A share of a bound is that of the function called last.
"""

import collections
import copy
import dataclasses
import html
import json
import math
import re
from typing import Any, NamedTuple

from routelaws.conformance.bounds import SLACK_CHECKS, SLACK_SHARE

VERDICTS = (
    "right", "wrong", "dialect", "raises", "hangs", "mutates", "not deterministic", "missing", "not asked", "expected",
    "unexpectedly right",
)  # fmt: skip
BAD = ("hangs", "raises", "mutates", "not deterministic", "wrong", "dialect")
"""From the one that explains most to the one that explains least."""
CUT = 500
"""Characters of a message that the terminal shows; JSON and HTML have all of it."""
FAULTS = 5
"""Faults of one function that the terminal shows besides the first; JSON and HTML have all of them."""
STRICT = ("missing", "unexpectedly right")
"""Wrong only where that was asked for, which `Row.failed` then says."""


class Trouble(NamedTuple):
    """One failed test and the function that it blames ("" where it called none)."""

    backend: str
    function: str
    kind: str
    detail: str
    test: str
    replay: str = ""  # the file that holds the failing call, where they are exported


@dataclasses.dataclass
class Call:
    """One guarded call: what it was given, and what came of it."""

    function: str
    arguments: tuple
    keywords: dict[str, Any]
    precision: str | None
    static: tuple[str, ...] | None  # keywords that were constants of a compiled function; None if it was not compiled
    returned: bool = False
    result: Any = None


KEPT = 200
"""Calls of one example that are kept; a test that makes more is a loop, and its last calls are as good as any."""


class Slack(NamedTuple):
    """A bound that is looser than what it judges needs."""

    bound: str
    share: float  # the worst that was used of it
    checks: int


class Ledger:
    """What one process has seen: calls, shares of bounds and troubles.

    Where `keeps` is true, it holds the calls of the example that runs, for `replay.write.export`.
    """

    def __init__(self):
        self.examples: dict[tuple[str, str], int] = {}
        self.shares: dict[tuple[str, str], float] = {}
        self.troubles: list[Trouble] = []
        self.bounds: dict[tuple[str, str], tuple[int, float]] = {}  # checks and worst share, by backend and bound
        self.keeps, self.broken = False, {}
        self.not_offered: dict[tuple[str, str, str], int] = {}
        self.compared: dict[tuple[str, str], int] = {}  # tests that came to their end, by backend and function
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

    def keep(self, function: str, arguments, keywords: dict, precision: str | None, static=None) -> Call | None:
        """Hold what a call is given, and return that; a generator of random numbers as it is before the call."""
        if not self.keeps:
            return None

        def now(value):
            return copy.deepcopy(value) if type(value).__name__ == "Generator" else value

        given = tuple(map(now, arguments)), {name: now(value) for name, value in keywords.items()}
        self.calls.append(Call(function, *given, precision, None if static is None else tuple(static)))
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

    def blame(self, error: BaseException, backend: str, test: str) -> Trouble:
        """Write down which function a failed test blames, and for what."""
        while isinstance(error, BaseExceptionGroup):
            named = [one for one in error.exceptions if hasattr(one, "kind")]
            if "Flaky" in type(error).__name__ and not named:
                break
            error, *others = named or error.exceptions
            for other in () if named else others:  # Hypothesis has found several faults in one property
                self.blame(other, backend, test)
        self.blamed = error
        text = " ".join(str(error).split()) or type(error).__name__
        places = {path: re.search(rf"\b{path.rpartition('.')[2]}\b", text) for _, path in self.recent}
        named = min((found.start(), path) for path, found in places.items() if found) if any(places.values()) else None
        function = named[1] if named else self.recent[-1][1] if self.recent else ""
        kind, detail = "wrong", _plain(str(error)) or text
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
        return {
            "examples": [[*key, value] for key, value in self.examples.items()],
            "shares": [[*key, value] for key, value in self.shares.items()],
            "not_offered": [[*key, value] for key, value in self.not_offered.items()],
            "compared": [[*key, value] for key, value in self.compared.items()],
            "options": [[*key, value] for key, value in self.options.items()],
            "bounds": [[*key, *value] for key, value in self.bounds.items()],
            "troubles": [list(trouble) for trouble in self.troubles],
        }

    def add(self, lists: dict) -> None:
        """Add what another process has seen."""
        for backend, function, count in lists["examples"]:
            self.examples[backend, function] = self.examples.get((backend, function), 0) + count
        for backend, function, share in lists["shares"]:
            self.shares[backend, function] = max(self.shares.get((backend, function), 0.0), share)
        for *key, count in lists["not_offered"]:
            self.not_offered[tuple(key)] = self.not_offered.get(tuple(key), 0) + count
        for *key, count in lists["compared"]:
            self.compared[tuple(key)] = self.compared.get(tuple(key), 0) + count
        for *key, answered in lists["options"]:
            self.options[tuple(key)] = self.options.get(tuple(key), False) or answered
        for backend, name, more, share in lists["bounds"]:
            checks, worst = self.bounds.get((backend, name), (0, 0.0))
            self.bounds[backend, name] = checks + more, max(worst, share)
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

    Where a test says in words what is wrong, of pytest's account, which follows, only a comparison of numbers is kept.
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


def slack_lines(slack) -> list[str]:
    """Return what to say of bounds that are too slack to find anything."""
    if not slack:
        return []
    head = f"slack bounds: {len(slack)}, none of which was used by more than {SLACK_SHARE:g} of it"
    return [head, *(f"    {one.bound:40} worst share {one.share:.1e} in {one.checks} checks" for one in slack)]


class Row(NamedTuple):
    """What is said of one public function of the reference."""

    function: str
    verdict: str  # one of VERDICTS
    examples: int  # calls in this run
    share: float | None  # the worst share of a bound after one of its calls; None where nothing was compared so
    failed: int  # tests that blame it
    detail: str  # the first of what they say
    test: str  # the first of these tests
    left_out: str = ""  # which calls it declined, if any
    besides: tuple[str, ...] = ()  # the other faults, one for each; some may follow from the first
    replay: str = ""  # the file that holds the call of that test, where failures are exported
    defaults: str = ""  # which differ from the reference's
    unchecked: str = ""  # options of the reference's function that no call had, and why


class Report(NamedTuple):
    """What is said of one backend.

    Example:
        >>> row = Row("notation.softmax", "wrong", 3, 2.5, 1, "error 5, allowed 2", "test_softmax")
        >>> report = Report("mine", {"version": "1"}, (row,), ())
        >>> report.exit_code, report.implemented, report["softmax"].verdict
        (1, 1, 'wrong')
    """

    backend: str
    header: dict[str, str]
    rows: tuple[Row, ...]
    outside: tuple[Trouble, ...]  # failed tests that called no function
    slack: tuple[Slack, ...] = ()  # bounds that it shows to be too slack; of our own twin only

    @property
    def exit_code(self) -> int:
        """0 when nothing is wrong, 1 when something is."""
        bad = any(row.verdict in BAD or row.verdict in STRICT and row.failed for row in self.rows)
        return int(bad or bool(self.outside))

    @property
    def implemented(self) -> int:
        return sum(row.verdict != "missing" for row in self.rows)

    def __getitem__(self, name):
        """Return the row of a function, by its path or its last name."""
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        return next(row for row in self.rows if name in (row.function, row.function.rpartition(".")[2]))

    def counts(self) -> dict[str, int]:
        """Return how many functions have each verdict, zeros left out."""
        found = {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICTS}
        return {verdict: count for verdict, count in found.items() if count}

    def rooms(self) -> list[str]:
        """Return how many functions of each file or folder are there, those apart of which there is none."""
        counts = {}
        for row in self.rows:
            there, of = counts.get(row.function.partition(".")[0], (0, 0))
            counts[row.function.partition(".")[0]] = there + (row.verdict != "missing"), of + 1
        some = [f"{room} {there} of {of}" for room, (there, of) in counts.items() if there]
        none = [room for room, (there, _) in counts.items() if not there]
        return [*some, *([f"none of {', '.join(none)}"] if none else [])]

    def lines(self) -> list[str]:
        """Return the lines of the table for a terminal."""
        summary = f"{self.implemented} of {len(self.rows)} functions implemented: {', '.join(self.rooms())}"
        lines = [f"{key:14} {value}" for key, value in self.header.items()] + ["", summary, ""]
        lines.append(f"{'function':46} {'calls':>7} {'worst share':>11}  verdict")
        for row in self.rows:
            if row.verdict in ("missing", "not asked") and not row.failed and not row.left_out:
                continue
            lines.append(f"{row.function:46} {row.examples:7} {_share(row.share):>11}  {row.verdict}")
            if row.detail:
                tests = f"{row.failed} failed test{'s' * (row.failed > 1)}, the first {row.test}"
                lines += [f"    {row.detail[:CUT]}", *([f"    {tests}"] if row.test else [])]
            lines += [f"    besides {other[:CUT]}" for other in row.besides[:FAULTS]]
            lines += [f"    and {len(row.besides) - FAULTS} more (all of them: --json)"] * (len(row.besides) > FAULTS)
            lines += [f"    {row.left_out[:CUT]}"] if row.left_out else []
            lines += [f"    {row.unchecked}"] if row.unchecked else []
            lines += [f"    defaults differ: {row.defaults}"] if row.defaults else []
            lines += [f"    replay: {row.replay}"] if row.replay else []
        lines += [f"outside of any function: {trouble.test}: {trouble.detail[:CUT]}" for trouble in self.outside]
        for verdict in ("not asked", "missing"):
            names = [row.function for row in self.rows if row.verdict == verdict]
            if names:
                some = ", ".join(names[:6]) + (", ... (all of them: --json)" if len(names) > 6 else "")
                lines += [f"{verdict}: {len(names)}: {some}"]
        lines += slack_lines(self.slack)
        return [*lines, "", ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items())]

    def as_dict(self) -> dict:
        """Return what JSON can hold; a share that is not finite is text."""
        rows = [row._asdict() | {"share": _finite(row.share)} for row in self.rows]
        return {
            "backend": self.backend,
            "header": self.header,
            "implemented": self.implemented,
            "of": len(self.rows),
            "counts": self.counts(),
            "exit_code": self.exit_code,
            "functions": rows,
            "outside": [trouble._asdict() for trouble in self.outside],
            "slack_bounds": [slack._asdict() for slack in self.slack],
        }


def _finite(share: float | None):
    return share if share is None or math.isfinite(share) else str(share)


def _share(share: float | None) -> str:
    return "-" if share is None else "0" if share == 0 else f"{share:.2g}" if share < 1e4 else f"{share:.0e}"


def build(
    backend,
    ledger: Ledger,
    header: dict,
    functions,
    expected: dict[str, str],
    *,
    strict: bool = False,
    slack: tuple[Slack, ...] = (),
) -> Report:
    """Return the report of one backend.

    Args:
        backend: a `backends.Backend`.
        ledger: of the whole run.
        header: what to say first.
        functions: paths of the reference's functions that belong in the report.
        expected: reasons by path of functions that may fail.
        strict: one of these that is right counts as a failure.
        slack: bounds to warn of.
    """
    own = [trouble for trouble in ledger.troubles if trouble.backend == backend.name]
    functions = list(dict.fromkeys([*functions, *(trouble.function for trouble in own if trouble.function)]))
    rows = [_row(path, backend, ledger, [t for t in own if t.function == path], expected) for path in functions]
    if strict:
        rows = [row._replace(failed=1) if row.verdict == "unexpectedly right" else row for row in rows]
    return Report(backend.name, header, tuple(rows), tuple(t for t in own if not t.function), slack)


def _row(path: str, backend, ledger: Ledger, troubles: list[Trouble], expected: dict[str, str]) -> Row:
    examples = ledger.examples.get((backend.name, path), 0)
    share = ledger.shares.get((backend.name, path))
    there = path in backend.functions
    left_out = _left_out(ledger, backend.name, path)
    verdict, detail, test, file, besides = "right" if examples else "not asked", "", "", "", ()
    if examples and left_out and share is None and (backend.name, path) not in ledger.compared:
        verdict, detail = (
            "not asked",
            f"{examples} calls were answered, but each of their tests had to leave others out",
        )
    if not there:
        verdict = "missing"
        if path in backend.require:
            return Row(path, "missing", 0, None, max(1, len(troubles)), "is required, and it is not there", "")
    if troubles:
        first, spoken = _first(troubles)
        others = [trouble for trouble in troubles if trouble is not first and trouble is not spoken]
        verdict, detail, test = first.kind, first.detail, first.test
        if spoken and first.kind == "wrong":  # what differs has a name: say that, before it is called a mistake
            others, first = [trouble for trouble in troubles if trouble is not spoken], spoken
            verdict, detail, test = "dialect", spoken.detail, spoken.test
        elif spoken:
            detail = f"{detail}; apart from that {spoken.detail}"
        besides = _distinct(others, first.detail)
        file = first.replay or next((trouble.replay for trouble in troubles if trouble.replay), "")
        if path in expected:
            verdict, detail = "expected", f"{expected[path]} ({verdict}: {first.detail})"
    elif path in expected and examples:
        verdict, detail = "unexpectedly right", f"was expected to fail ({expected[path]}), and nothing failed"
    defaults, unchecked = (backend.other_defaults(path), _unchecked(ledger, backend, path)) if there else ("", "")
    tests = len({trouble.test for trouble in troubles})
    return Row(path, verdict, examples, share, tests, detail, test, left_out, besides, file, defaults, unchecked)


def _first(troubles: list[Trouble]) -> tuple[Trouble, Trouble | None]:
    """Return the trouble that explains most, and the one that found which library does so, None without one.

    Of equal ones a test of dialects that knows no such library comes last: the others say what is wrong in plain words.
    """
    first = min(
        troubles,
        key=lambda one: (BAD.index(one.kind) if one.kind in BAD else len(BAD), "test_dialects" in one.test),
    )
    return first, next((trouble for trouble in troubles if names_a_dialect(trouble)), None)


def _distinct(troubles: list[Trouble], *known: str) -> tuple[str, ...]:
    """Return one line for each fault that is not known already: its test, and what differed."""
    found = {trouble.detail: f"{trouble.test}: {trouble.detail}" for trouble in reversed(troubles)}
    return tuple(found[detail] for detail in reversed(found) if detail not in known)


def _unchecked(ledger: Ledger, backend, path: str) -> str:
    """Return which options of the reference's function no answered call had, "" if none or if nothing was asked."""
    if not ledger.examples.get((backend.name, path)):
        return ""
    seen = {key[2]: answered for key, answered in ledger.options.items() if key[:2] == (backend.name, path)}
    lacking = backend.lacking(path)
    without = [name for name in backend.options(path) if name in lacking or seen.get(name) is False]
    never = [name for name in backend.options(path) if name not in seen and name not in without]
    never = never if (backend.name, path) in ledger.compared else []  # else it broke down before they had their turn
    parts = [f"not offered by your function, so not checked: {', '.join(without)}"] if without else []
    return "; ".join(parts + ([f"offered, never checked: {', '.join(never)}"] if never else []))


def _left_out(ledger: Ledger, backend: str, path: str) -> str:
    """Return which calls a function declined and how many, "" if none."""
    counts = {key[2]: count for key, count in ledger.not_offered.items() if key[:2] == (backend, path)}
    reasons = {}  # each option by itself, since tests draw many combinations
    for reason in sorted(counts, key=lambda reason: -counts[reason]):
        word, _, options = reason.partition(" ")
        reasons |= dict.fromkeys([f"option {name}" for name in options.split(", ")] if word == "option" else [reason])
    many = sum(counts.values())
    return f"not offered, {many} call{'s' * (many > 1)} left out: {'; '.join(reasons)}" if counts else ""


def names_a_dialect(trouble: Trouble) -> bool:
    """Whether a failed test found which other library does as this function does."""
    return "test_dialects" in trouble.test and "; as in " in trouble.detail


def write_json(reports, path: str) -> None:
    """Write {"reports": [...]} with one entry for each backend."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"reports": [report.as_dict() for report in reports]}, file, indent=1, allow_nan=False)
        file.write("\n")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>routelaws conformance</title><style>
body {{ font: 16px/1.5 sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ddd; }}
.number {{ text-align: right; }} .bad {{ font-weight: bold; color: #a00; }} .right {{ color: #060; }}
small {{ display: block; color: #444; overflow-wrap: anywhere; }}
</style></head><body>
<h1>Conformance with routelaws.reference</h1>
<p>The worst share is the largest error over the error that is allowed; above 1 is a failure.</p>
{body}
</body></html>
"""


def _section(report: Report) -> str:
    def cell(value, kind=""):
        return f'<td class="{kind}">{html.escape(str(value))}</td>'

    def row(row: Row) -> str:
        texts = (
            row.detail,
            row.test,
            *row.besides,
            row.left_out,
            row.unchecked,
            row.replay and f"replay: {row.replay}",
            row.defaults and f"defaults differ: {row.defaults}",
        )
        small = "".join(f"<small>{html.escape(text)}</small>" for text in texts if text)
        kind = "bad" if row.verdict in BAD or row.failed else "right" if row.verdict == "right" else ""
        numbers = cell(row.examples, "number") + cell(_share(row.share), "number")
        verdict = f'<td><span class="{kind}">{row.verdict}</span>{small}</td>'
        return f"<tr>{cell(row.function)}{numbers}{verdict}</tr>"

    head = "".join(f"<tr>{cell(key)}{cell(value)}</tr>" for key, value in report.header.items())
    outside = "".join(f"<p class=bad>{html.escape(f'{t.test}: {t.detail}')}</p>" for t in report.outside)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts().items())
    slack = "".join(f"<p><small>{html.escape(line)}</small></p>" for line in slack_lines(report.slack))
    return "\n".join(
        [
            f"<h2>{html.escape(report.backend)}</h2><table>{head}</table>",
            f"<p>{report.implemented} of {len(report.rows)} functions implemented: {counts}.</p>{outside}",
            "<table><tr><th>function<th class=number>calls<th class=number>worst share<th>verdict</tr>",
            *map(row, report.rows),
            "</table>",
            slack,
        ]
    )


def write_html(reports, path: str) -> None:
    """Write one page with a table for each backend."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(body="\n".join(map(_section, reports))))
