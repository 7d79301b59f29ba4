"""The report of a run on each function: a table, JSON and one page of HTML, made from its ledger.

Verdicts of a function:

    right               the function computes the reference's function, in the dialect of the row
    differs             the function has another valid design, which explains every call; the row names it
    unexplained         the function differs from ours, and no design that we know explains its calls
    defect              the function violates a rule for all designs; `kind` names the rule (`DEFECTS`)
    not askable         the function declined every call, or its answers fit several dialects
    missing             the backend lacks the function; this is a failure if `--require` names the function
    not asked           the backend has the function, but no test of this run called it
    expected            the function fails, and the list of known failures contains it
    unexpectedly right  the function passes, but the list of known failures contains it; a failure with `--strict`

Exit codes of a report: 0 all right, 3 differences but no defect, 1 a defect.
"""

import json
import math
import re
import textwrap
from types import MappingProxyType
from typing import NamedTuple

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.bounds import SLACK_SHARE
from routelaws.conformance.dialects.judge import UNEXPLAINED
from routelaws.conformance.engine.ledger import Ledger, Slack, Trouble
from routelaws.conformance.engine.stances import ACTIVATED

OUR_DIALECTS = {
    "routers.top_k.top_k_router": "softmax over all experts", "routers.top_k.switch_router": "softmax over all experts",
    "routers.top_k.gshard_router": "softmax over chosen", "notation.top_k_indices": "ties: lower index",
    "experts.expert_capacity": "ours", "experts.dispatch": "choice", "balance.auxiliary_loss": "assignments",
}  # fmt: skip
"""Dialects of the reference's defaults, for the rows of our own backends."""
VERDICTS = (
    "right", "differs", "unexplained", "defect", "not askable", "missing", "not asked", "expected", "unexpectedly right"
)  # fmt: skip
DEFECTS = {
    "hangs": "it does not return within the time limit",
    "raises": "it raises an error for most inputs that every design accepts",
    "mutates": "it changes an input array",
    "not deterministic": "the same input gives two results in evaluation",
    "state": "an earlier call changes the result of a later call",
    "not finite": "finite input gives NaN or infinity",
    "out of range": "an index is not an expert, an expert is chosen twice, or an output is beyond every combination",
    "excluded": "an expert outside the chosen groups, or an unavailable expert, is chosen, or its -inf makes NaN",
    "overfull": "an expert keeps more tokens than its capacity",
    "mixed": "the output of a token contains other tokens, for example because they share a slot",
    "size": "a call with more than 256 experts or 1,024 tokens is wrong, but smaller calls are not",
    "idle": "an expert never runs, or never gets a gradient",
    "padding": "padded tokens take slots or change the result of real tokens",
    "no gradient": "a required gradient is zero or missing",
    "documentation": "the computed design differs from the documented one",
    "form": "the shape or dtype of a result is wrong",
    "wrong": "the value contradicts the definition",
}
"""Kinds of defects and their rules. If tests find several, the report begins with the kind that is first here."""
KINDS = (*DEFECTS, "dialect", "unexplained")
DESIGNS = ("routers.", "balance.", "experts.", "routed_block.")
"""Functions with several valid designs. If only their values differ from ours, no known design explains them."""
DEFINED = (
    "balance.expert_counts", "balance.load_statistics", "balance.mean_probability", "balance.update_bias",
    "balance.value_at_balance", "experts.combine", "experts.kept_gates", "experts.silu",
)  # fmt: skip
"""Functions of `DESIGNS` whose known designs are all in the table of dialects. Other values are a defect."""
NEEDS = {"jit": "compiles", "grad": "differentiates", "torch": "differentiates"}
"""{capability: what a test does with a function to test it}."""
CUT, WIDTH = 900, 116
"""Maximum number of characters of a message in the terminal, and of a line; JSON and HTML have the whole message."""
FAULTS = 5
"""Maximum number of further faults of one function in the terminal; JSON and HTML have all faults."""
STRICT = ("missing", "unexpectedly right")
"""Verdicts that can be failures. Such a row is a failure if `Row.failed` > 0: with `--require` or `--strict`."""


def slack_lines(slack) -> list[str]:
    if not slack:
        return []
    head = f"slack bounds: {len(slack)}; every check used at most {SLACK_SHARE:g} of its bound"
    return [head, *(f"    {bound.bound:40} worst share {bound.share:.1e} in {bound.checks} checks" for bound in slack)]


def verdict_of(kind: str, path: str) -> str:
    """Return "defect", "differs" or "unexplained" for a fault of a function."""
    if kind == "wrong" and path.startswith(DESIGNS) and path not in DEFINED:
        return "unexplained"
    return {"dialect": "differs", "unexplained": "unexplained"}.get(kind, "defect")


class Row(NamedTuple):
    """The verdict on one public function of the reference; JSON has the same fields.

    `dialect` is the design of the function, or the nearest design. `inputs` is the number of answered inputs that
    determined the design. `script` is a program that repeats the first fault.
    """

    function: str
    verdict: str  # one of VERDICTS
    examples: int  # calls in this run
    share: float | None  # largest error / bound after calls of the function; None if no bound was checked
    failed: int  # number of tests that found a fault in the function
    detail: str  # message of the first fault
    test: str  # test of the first fault
    left_out: str = ""  # the calls that the function declined, if any
    besides: tuple[str, ...] = ()  # the other faults; the first fault may have caused some of them
    file: str = ""  # file with the call of a failed test, if failures are exported
    defaults: str = ""  # defaults of the function that differ from the defaults of the reference
    unchecked: str = ""  # options of the reference's function that no call used, and why
    kind: str = ""  # one of KINDS if the verdict is "defect", "differs", "unexplained" or "expected"
    dialect: str = ""
    inputs: int | None = None
    script: str = ""


class Report(NamedTuple):
    """The verdicts on one backend.

    JSON: {"reports": [{"backend", "header", "facts", "implemented", "of", "counts", "exit_code", "functions": [fields
    of `Row`], "outside": [...], "slack_bounds": [...]}]}. `facts` are properties of the backend that are no faults,
    such as {"ties": "arbitrary", "choice": "unsorted"}.

    Example:
        >>> row = Row("notation.softmax", "defect", 3, 2.5, 1, "error 5, allowed 2", "test_softmax", kind="wrong")
        >>> report = Report("mine", {"version": "1"}, (row,), ())
        >>> report.exit_code, report.implemented, report["softmax"].verdict
        (1, 1, 'defect')
    """

    backend: str
    header: dict[str, str]
    rows: tuple[Row, ...]
    outside: tuple[Trouble, ...]  # failed tests that called no function
    slack: tuple[Slack, ...] = ()  # bounds that are too loose; only for our own twin
    facts: dict[str, str] = MappingProxyType({})

    @property
    def exit_code(self) -> int:
        """Return 0 if all is right, 3 for differences but no defect, or 1 for a defect."""
        bad = any(row.verdict == "defect" or row.verdict in STRICT and row.failed for row in self.rows)
        differs = any(row.verdict in ("differs", "unexplained") for row in self.rows)
        return 1 if bad or self.outside else 3 if differs else 0

    @property
    def implemented(self) -> int:
        return sum(row.verdict != "missing" for row in self.rows)

    def __getitem__(self, name):
        """Return the row of a function, by its path or by its last name.

        Raises:
            KeyError: the name is unknown.
        """
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        for row in self.rows:
            if name in (row.function, row.function.rpartition(".")[2]):
                return row
        raise KeyError(f"{name} is no function of this report")

    def counts(self) -> dict[str, int]:
        """Return the number of functions with each verdict, without zeros."""
        counts = {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICTS}
        return {verdict: count for verdict, count in counts.items() if count}

    def rooms(self) -> list[str]:
        """Return, as text, the number of present functions in each file or folder."""
        counts = {}
        for row in self.rows:
            there, of = counts.get(row.function.partition(".")[0], (0, 0))
            counts[row.function.partition(".")[0]] = there + (row.verdict != "missing"), of + 1
        some = [f"{room} {there} of {of}" for room, (there, of) in counts.items() if there]
        none = [room for room, (there, _) in counts.items() if not there]
        return [*some, *([f"none of {', '.join(none)}"] if none else [])]

    def lines(self, width: int = WIDTH) -> list[str]:
        summary = f"{self.implemented} of {len(self.rows)} functions implemented: {', '.join(self.rooms())}"
        lines = [f"{key:14} {value}" for key, value in self.header.items()] + ["", summary, ""]
        lines.append(f"{'function':46} {'calls':>7} {'worst share':>11}  verdict")
        for row in self.rows:
            if row.verdict in ("missing", "not asked") and not row.failed and not row.left_out:
                continue
            lines.append(f"{row.function:46} {row.examples:7} {share_in_words(row.share):>11}  {headline(row)}")
            if row.detail:
                tests = f"{row.failed} failed test{'s' * (row.failed > 1)}, the first {row.test}"
                lines += [*wrapped(row.detail, width), *([f"    {tests}"] if row.test else [])]
            lines += [line for fault in row.besides[:FAULTS] for line in wrapped(f"besides {fault}", width)]
            lines += [f"    and {len(row.besides) - FAULTS} more (all of them: --json)"] * (len(row.besides) > FAULTS)
            lines += wrapped(row.left_out, width) if row.left_out else []
            lines += [f"    {row.unchecked}"] if row.unchecked else []
            lines += [f"    defaults differ: {row.defaults}"] if row.defaults else []
            lines += [f"    call: {row.file}"] if row.file else []
            lines += [f"    | {line}" for line in row.script.splitlines()]
        lines += [f"fact: {name}: {fact}" for name, fact in self.facts.items()]
        lines += [f"outside of any function: {trouble.test}: {trouble.detail[:CUT]}" for trouble in self.outside]
        for words, names in self.others().items():
            some = ", ".join(names[:6]) + (", ... (all of them: --json)" if len(names) > 6 else "")
            lines += [f"{words}: {some}"]
        lines += slack_lines(self.slack)
        return [*lines, "", ", ".join(f"{count} {verdict}" for verdict, count in self.found().items())]

    def found(self) -> dict[str, int]:
        """Return `counts`; of missing functions, only the required ones."""
        needed = sum(row.verdict == "missing" and row.failed > 0 for row in self.rows)
        counts = self.counts() | ({"missing": needed} if "missing" in self.counts() else {})
        return {verdict: count for verdict, count in counts.items() if count} or self.counts()

    def others(self) -> dict[str, list[str]]:
        """Return {sentence: functions} of the functions that no test called."""
        rows = {
            "not asked": [row.function for row in self.rows if row.verdict == "not asked"],
            "not in the backend": [row.function for row in self.rows if row.verdict == "missing"],
        }
        return {f"{words}: {len(names)}": names for words, names in rows.items() if names}

    def as_dict(self) -> dict:
        """Return the report as a dict for JSON, with a non-finite share as a string."""
        rows = [row._asdict() | {"share": _finite(row.share)} for row in self.rows]
        return {
            "backend": self.backend,
            "header": self.header,
            "facts": dict(self.facts),
            "implemented": self.implemented,
            "of": len(self.rows),
            "counts": self.counts(),
            "exit_code": self.exit_code,
            "functions": rows,
            "outside": [trouble._asdict() for trouble in self.outside],
            "slack_bounds": [slack._asdict() for slack in self.slack],
        }


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return a message as lines for the terminal, without the end of a long one."""
    text = text if len(text) <= CUT else f"{text[:CUT]} ... (all of it: --json)"
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)


def headline(row: Row) -> str:
    """Return a verdict in one line, such as "right (dialect softmax, 21 inputs)" or "defect (hangs)"."""
    parts = [row.kind] if row.verdict == "defect" else []
    nearest = row.verdict in ("differs", "unexplained") or row.kind in ("not deterministic", "state")
    parts += [f"{'nearest' if nearest else 'dialect'} {row.dialect}"] if row.dialect else []
    parts += [f"{row.inputs} inputs"] if row.dialect and row.inputs else []
    return f"{row.verdict} ({', '.join(parts)})" if parts else row.verdict


def _finite(share: float | None):
    return share if share is None or math.isfinite(share) else str(share)


def share_in_words(share: float | None) -> str:
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
        header: {key: value} of the first lines.
        expected: {path: reason} of functions that are expected to fail.
        strict: whether the success of a function in `expected` counts as a failure.
        slack: bounds to warn of.
    """
    troubles = [trouble for trouble in ledger.troubles if trouble.backend == backend.name]
    functions = list(dict.fromkeys([*functions, *(trouble.function for trouble in troubles if trouble.function)]))
    rows = [_row(path, backend, ledger, [t for t in troubles if t.function == path], expected) for path in functions]
    if strict:
        rows = [row._replace(failed=1) if row.verdict == "unexpectedly right" else row for row in rows]
    outside = tuple(trouble for trouble in troubles if not trouble.function)
    return Report(backend.name, header, tuple(rows), outside, slack, _facts(ledger, backend.name))


def _facts(ledger: Ledger, backend: str) -> dict[str, str]:
    """Return {fact: value} of a backend. If functions have different values, the value names the functions."""
    facts = {}
    found = [
        (*key, fact, value) for key, finding in ledger.findings.items() for fact, value in finding["facts"].items()
    ]
    for name, path, fact, value in [*found, *((*key, value) for key, value in ledger.facts.items())]:
        if name == backend:
            facts.setdefault(fact, {}).setdefault(value, []).append(path.rpartition(".")[2])
    return {
        fact: next(iter(values)) if len(values) == 1 else "; ".join(f"{v} ({', '.join(p)})" for v, p in values.items())
        for fact, values in sorted(facts.items())
    }


def _row(path: str, backend, ledger: Ledger, troubles: list[Trouble], expected: dict[str, str]) -> Row:
    examples = ledger.examples.get((backend.name, path), 0)
    without = _without(ledger, backend, path) if examples else []
    left_out = _left_out(ledger, backend, path, without)
    row = Row(path, "right" if examples else "not asked", examples, ledger.shares.get((backend.name, path)), 0, "", "")
    if left_out and row.share is None and (backend.name, path) not in ledger.compared:
        words = f"it answered {examples} calls, but every test also needs calls that it declined" * bool(examples)
        row = row._replace(verdict="not askable", detail=words)
    if path not in backend.functions:
        if path in backend.require:
            return Row(path, "missing", 0, None, max(1, len(troubles)), "is required, but missing", "")
        row = row._replace(verdict="missing")
    finding = ledger.findings.get((backend.name, path))
    if troubles:
        row = _blamed(row, troubles, finding["causes"] if finding else [])
        if path in expected:
            row = row._replace(verdict="expected", detail=f"{expected[path]} ({row.kind}: {row.detail})")
    elif path in expected and examples:
        words = f"was expected to fail ({expected[path]}), but nothing failed"
        row = row._replace(verdict="unexpectedly right", detail=words)
    row = _found(row, finding) if finding else row
    if row.verdict == "right" and backend.is_ours:
        row = row._replace(dialect=OUR_DIALECTS.get(path, ""))
    row = row._replace(left_out=left_out)
    if path not in backend.functions:
        return row
    unchecked = _unchecked(ledger, backend, path, without) if examples else ""
    return row._replace(defaults=backend.other_defaults(path), unchecked=unchecked)


def _found(row: Row, finding: dict) -> Row:
    """Add the result of the search for a design to a row."""
    row = row._replace(dialect=finding["dialect"], inputs=finding["inputs"] or None)
    row = row._replace(script=finding["script"] or row.script)
    row = row._replace(besides=(*finding["besides"], *row.besides))
    unclear = finding["verdict"] == "not askable"  # the function may still have passed all later tests
    if row.verdict in ("not askable", "not asked") or row.verdict == "right" and not unclear:
        row = row._replace(**{name: finding[name] for name in ("verdict", "kind", "detail")})
    return row


def _blamed(row: Row, troubles: list[Trouble], causes: list[str]) -> Row:
    """Add the faults that failed tests blame on a function to its row. `causes` explain differences with options."""
    first, spoken = _first(troubles)
    rest = [trouble for trouble in troubles if trouble is not first and trouble is not spoken]
    kind, detail = first.kind, first.detail
    if spoken and kind == "wrong" and (first is spoken or row.function not in ACTIVATED):
        # The known design explains the other faults. Tests of ACTIVATED have the known activation already.
        rest, first = [trouble for trouble in troubles if trouble is not spoken], spoken
        kind, detail = "dialect", spoken.detail
    elif causes and kind == "wrong":
        kind, detail = "dialect", f"{', '.join(causes)}: {detail}"
    elif spoken:
        detail = f"{detail}; apart from that {spoken.detail}"
    verdict = verdict_of(kind, row.function)
    if verdict == "unexplained" and not detail.startswith(UNEXPLAINED):
        detail = f"{UNEXPLAINED}: {detail}"
    return row._replace(
        verdict=verdict,
        kind=kind,
        failed=len({trouble.test for trouble in troubles}),
        detail=detail,
        test=first.test,
        besides=_distinct(rest, first.detail),
        script=first.script,
        file=first.file or next((trouble.file for trouble in troubles if trouble.file), ""),
    )


def _first(troubles: list[Trouble]) -> tuple[Trouble, Trouble | None]:
    """Return the plainest fault with the earliest kind in `KINDS`, and a fault that names a dialect, or None.

    It is None, too, if another difference has no name, because the dialect then explains a part only.
    """
    first = min(
        troubles,
        key=lambda fault: (
            KINDS.index(fault.kind) if fault.kind in KINDS else len(KINDS),
            "test_designs" not in fault.test,
            "test_dialects" in fault.test,
            not fault.script,
            "inf" in fault.script or "nan" in fault.script,
            len(fault.script),
        ),
    )
    of_dialects = [trouble for trouble in troubles if "test_dialects" in trouble.test]
    return first, of_dialects[0] if of_dialects and all(map(names_a_dialect, of_dialects)) else None


def _distinct(troubles: list[Trouble], *known: str) -> tuple[str, ...]:
    """Return the test and the message of each fault, in one line, without repeated and known messages."""
    lines = {trouble.detail: f"{trouble.test}: {trouble.detail}" for trouble in reversed(troubles)}
    return tuple(lines[detail] for detail in reversed(lines) if detail not in known)


def _seen(ledger: Ledger, backend, path: str) -> dict[str, bool]:
    """Return {option: whether a call with it was answered}."""
    return {key[2]: answered for key, answered in ledger.options.items() if key[:2] == (backend.name, path)}


def _without(ledger: Ledger, backend, path: str) -> list[str]:
    """Return the options that a function lacks, or declined in every call."""
    seen, lacking = _seen(ledger, backend, path), backend.lacking(path)
    return [name for name in backend.options(path) if name in lacking or seen.get(name) is False]


def _unchecked(ledger: Ledger, backend, path: str, without: list[str]) -> str:
    """List the options that no answered call used, and the capabilities that were not tested; "" if there are none.

    `without` is the result of `_without`.
    """
    seen = _seen(ledger, backend, path)
    never = [name for name in backend.options(path) if name not in seen and name not in without]
    reasons = [(each, ledger.capabilities.get((backend.name, path, each), f"no test of this run {does} it"))
               for each, does in NEEDS.items() if each in (backend.named_capabilities or ())]  # fmt: skip
    never = never if (backend.name, path) in ledger.compared else []  # else it failed before a test could check them
    parts = [f"not offered by your function, so not checked: {', '.join(without)}"] if without else []
    parts += [f"offered, but never checked: {', '.join(never)}"] if never else []
    return "; ".join(parts + [f"{each}: not tested, because {reason}" for each, reason in reasons if reason])


def _left_out(ledger: Ledger, backend, path: str, without: list[str]) -> str:
    """Return the number of declined calls of a function and the reasons; "" if there are none.

    Options that `_unchecked` lists are one reason.
    """
    counts = {key[2]: count for key, count in ledger.not_offered.items() if key[:2] == (backend.name, path)}
    reasons = {}  # list each option separately, because tests draw many combinations
    for reason in sorted(counts, key=lambda reason: -counts[reason]):
        word, _, options = reason.partition(" ")
        if options.startswith("all: "):
            reasons["they would be compared with a design that your function does not have"] = None
            continue
        names = options.split(", ") if word == "option" else []
        shown = ["the options below" if name in without else f"option {name}" for name in names]
        reasons |= dict.fromkeys(shown or [reason])
    many = sum(counts.values())
    return f"{many} call{'s' * (many > 1)} left out: {'; '.join(reasons)}" if counts else ""


def names_a_dialect(trouble: Trouble) -> bool:
    """Return whether a failed test identified another library with this behaviour."""
    return "test_dialects" in trouble.test and bool(re.search("; as in | known dialects. It is ", trouble.detail))


def write_json(reports, path: str) -> None:
    content = {"reports": [report.as_dict() for report in reports]}
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
