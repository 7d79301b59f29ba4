"""Parity: do two programs run the same experts? `python -m routelaws.conformance --parity A --backend B`.

Both backends route the same inputs. For each group of inputs, a report has the share of tokens with the same set of
experts, and with the same order, and the largest differences of gates and of outputs. Expert e returns unit vector e,
so an output is a row of gates [E]. The report names a cause only if it explains every token of its group:

    tie rule          the k-th and the next logit are equal, and the programs choose different ones
    rounding          of logits, scores, gates or expert numbers, as if computed or stored in a lower precision
    design            renormalisation, score, scale, groups, temperature, or a gate that is the logit
    constants         a floor of the denominator, a sum with a constant, a threshold or a capacity that makes gates 0
    number            of experts of a token, or of tokens of an expert
    options           an option that changes nothing
    defects           of the judge, such as a result that changes between two equal calls

The judge of `dialects` finds the design of each program and the constants. Two layers of `adapters.blocks.layer` also
run with random weights, because planted experts round nothing.
"""

import html
import itertools
import json
from typing import NamedTuple

import numpy as np

from routelaws.accelerated.files import write_atomically
from routelaws.conformance.adapters import blocks
from routelaws.conformance.adapters.blocks import Planted
from routelaws.conformance.bounds import BOUNDS, UNIT, bound_in
from routelaws.conformance.dialects import designs, judge
from routelaws.conformance.dialects.designs import Probe
from routelaws.conformance.dialects.fitting import Answer, bad_gates, dense, tie_rule, wrong_choice
from routelaws.conformance.dialects.judge import UNEXPLAINED, Fault, Finding, reason_of_many, told
from routelaws.conformance.dialects.readings import LOW, Reading, explanation, rounded_to, sources, without_padding
from routelaws.conformance.dialects.table import ACTIVATION
from routelaws.conformance.engine import backends, page, stances
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.engine.report import wrapped
from routelaws.conformance.engine.values import as_numpy

VERDICTS = {"same": 0, "differs": 3, "defect": 1, "not askable": 0}
"""{verdict: exit code}. The verdict of a pair is the worst of its groups."""
STORED = {
    "stored in bfloat16": lambda expert: rounded_to(expert, "bfloat16").astype(int),
    "stored in float16": lambda expert: rounded_to(expert, "float16").astype(int),
    "stored in uint8": lambda expert: expert % 256,
    "stored in int8": lambda expert: (expert + 128) % 256 - 128,
    "counted from 1": lambda expert: expert + 1,
}
"""{what changes expert numbers: changed numbers}."""

REASONS = ("the routing of a token depends on other tokens", "the numbers are right, but belong to other experts")
"""Reasons that the judge gives for answers that no design explains."""


class Inputs(NamedTuple):
    """A group of inputs that show one kind of difference."""

    name: str
    probes: tuple[Probe, ...]
    precision: str = "float32"


class Side(NamedTuple):
    """One of two programs."""

    name: str  # "A" or "B"
    backend: backends.Backend
    finding: Finding  # the judge's verdict on its router
    readings: tuple[Reading | None, Reading | None] = (None, None)  # changes of its choice and gates in all groups

    def ask(self, probe: Probe, precision: str) -> Answer:
        if precision not in self.backend.dtypes and precision == "bfloat16":
            raise NotImplementedError(f"{self.name} has no bfloat16")
        ask = stances.Ask(self.backend, stances.TOP_K)
        try:
            answer = Answer(probe, *ask(probe, precision if precision == "bfloat16" else ""))
        except Fault as fault:
            if precision == "float32" or precision in getattr(self.backend.namespace, "dtypes", (precision,)):
                raise
            raise NotImplementedError(f"{self.name}: {fault.detail}") from fault
        shape = answer.expert.shape
        if shape != answer.gate.shape or shape[:-1] != probe.logits.shape[:1]:
            raise Fault("form", f"experts {shape} and gates {answer.gate.shape} at k {probe.k}")
        if shape[1] != probe.k:
            raise Fault(*_number_of_experts(answer))
        return without_padding(answer)

    @property
    def defect(self) -> str:
        """Return the defect that the judge found, in words; "" if there is none."""
        kind, detail = self.finding.kind, self.finding.detail.partition("; at ")[0]
        return f"{kind}: {detail}" if self.finding.verdict == "defect" else ""


class Row(NamedTuple):
    """The comparison of a group of inputs; JSON has the same fields, and null for NaN."""

    inputs: str
    verdict: str  # a key of VERDICTS
    tokens: int = 0
    experts: tuple[int, ...] = ()
    precision: str = ""
    same_set: float | None = None  # share of tokens
    same_order: float | None = None  # share of tokens; None if a program returns no order
    gates: float | None = None  # largest difference, over tokens with the same set of experts
    outputs: float | None = None  # largest difference, over all tokens
    causes: tuple[str, ...] = ()
    example: str = ""  # the first difference; or the reason why the group was not asked


class Parity(NamedTuple):
    """The comparison of two programs."""

    sides: tuple[Side, Side]
    rows: tuple[Row, ...]

    @property
    def verdict(self) -> str:
        words = [each.verdict for each in self.rows] + ["defect" for side in self.sides if side.defect]
        return next(word for word in ("defect", "differs", "same", "not askable") if word in words)

    @property
    def exit_code(self) -> int:
        return VERDICTS[self.verdict]

    @property
    def causes(self) -> tuple[str, ...]:
        """Return the causes of all groups, then defects and options without effect, each once."""
        broken = [cause[0] for row in self.rows if row.verdict == "defect" for cause in row.causes]
        others = [f"{side.name}: {side.defect}" for side in self.sides if side.defect and side.name not in broken]
        others += [f"{side.name}: {cause}" for side in self.sides for cause in side.finding.causes]
        return tuple(dict.fromkeys([cause for row in self.rows for cause in row.causes] + others))


def inputs() -> list[Inputs]:
    """Return the groups of inputs. The numbers of experts are few, because some programs compile a file for each."""
    random = np.random.default_rng(0)

    def normal(num_tokens: int, num_experts: int, scale: float = 1.0):
        return (scale * random.standard_normal((num_tokens, num_experts))).astype(np.float32).astype(float)

    def apart(num_tokens: int, num_experts: int, step: float):
        steps = np.tile(1 / 8 + step * np.arange(num_experts), (num_tokens, 1))
        return random.permuted(steps, axis=1)

    def plain(*pairs):
        return tuple(Probe("plain", logits, k) for logits, k in pairs)

    low = rounded_to(normal(2048, 64), "bfloat16"), 8
    many = [(random.permuted(np.tile((np.arange(E) - E / 2) / 32, (32, 1)), axis=1), 4) for E in (300, 512)]
    many = plain(*((rounded_to(logits, "bfloat16"), k) for logits, k in many))
    far = [(normal(64, 8, 2.0) - down, 2) for down in (10, 20, 40, 60, 90)]
    sizes = [1, 2, 3], [15, 16, 17, 31, 33, 63, 65, 127, 129, 257]
    few, padded = (plain(*((normal(T, 8), 2) for T in each)) for each in sizes)
    return [
        Inputs("random", plain((normal(512, 8), 2), (normal(512, 64), 8))),
        Inputs("one expert per token", plain((normal(256, 8), 1))),
        Inputs("ties", plain((random.choice([-0.5, 0.0, 0.5], (128, 8)), 2), (np.zeros((8, 64)), 8))),
        Inputs("equal in bfloat16", plain((apart(128, 8, 2.0**-14), 2))),
        Inputs("one unit of float32 apart", plain((apart(128, 8, 2.0**-26), 2))),
        Inputs("values of bfloat16", plain(low)),
        Inputs("values of bfloat16, in bfloat16", plain(low), "bfloat16"),
        Inputs("few tokens", few),
        Inputs("sizes at which kernels pad", padded),
        Inputs("300 and 512 experts", many),
        Inputs("300 and 512 experts, in bfloat16", many, "bfloat16"),
        Inputs("small gates", plain((normal(256, 8, 12.0), 2))),
        Inputs("logits far below 0", plain(*far)),
        Inputs("selection bias", (Probe("bias", normal(64, 8), 2, random.permutation(8) / 10 - 0.35),)),
        Inputs("padded tokens", (Probe("mask", normal(64, 8), 2, mask=np.arange(64) % 4 != 3),)),
        Inputs("gates from router_weights", tuple(designs.two_inputs())),
    ]


def compare(first: str, second: str, *, time_limit: float = backends.TIME_LIMIT) -> Parity:
    """Compare the routers of two backends, given by name.

    Raises:
        BackendError: a backend cannot be loaded, or has no `top_k_router`.
    """
    with blocks.unchecked():
        sides = [_side(*each, time_limit) for each in (("A", first), ("B", second))]
        asked = [_asked(sides, group) for group in inputs()]
        pairs = [pair for row, pairs in asked for pair in pairs if (row.verdict, row.precision) == ("same", "float32")]
        pairs = [pair for pair in pairs if pair[0].probe.router_weights is None]
        for i, (side, answers) in enumerate(zip(sides, zip(*pairs, strict=True), strict=False)):
            if side.finding.design is not None and side.finding.kind != "not deterministic":
                sides[i] = side._replace(readings=explanation(side.finding.design, list(answers), "float32"))
        rows = [_judged(*each, sides) for each in asked]
        return Parity(tuple(sides), (*rows, *_with_random_weights(sides)))


def _side(letter: str, name: str, time_limit: float) -> Side:
    backend = backends.Backend(name, backends.load(name), Ledger(), time_limit=time_limit)
    if stances.TOP_K not in backend.functions:
        raise backends.BackendError(f"backend {name} has no top_k_router; --parity compares routers of two backends")
    finding = stances.stance_of(backend, stances.TOP_K).finding
    if hasattr(backend.namespace, "from_numpy"):  # its arrays may have bfloat16, also if the suite should not test that
        backend.dtypes = (*backend.dtypes, "bfloat16")
    return Side(letter, backend, finding)


def _number_of_experts(answer: Answer) -> tuple[str, str]:
    """Return the kind of a fault and its description, for an answer without k experts for each token."""
    k, number = answer.probe.k, answer.expert.shape[1]
    if number < answer.probe.logits.shape[1]:
        words = {k + 1: "k + 1", k - 1: "k - 1"}.get(number, number)
        return "form", f"each token gets {words} experts instead of k"
    return "dense", reason_of_many(answer) or "tokens get more than k experts"


def _asked(sides, group: Inputs) -> tuple[Row, list]:
    """Return a row and the pairs of answers to the inputs that both programs answer; the verdict "same" is open."""
    pairs, reasons = [], []
    row = Row(group.name, "not askable", precision=group.precision)
    for probe in group.probes:
        answers = []
        for side in sides:
            try:
                answers.append(side.ask(probe, group.precision))
            except NotImplementedError as error:
                reasons.append(str(error))
                break
            except Fault as fault:
                words = {"dense": fault.detail, "form": f"form: {fault.detail}"}.get(fault.kind, fault.kind)
                verdict = "differs" if fault.kind == "dense" else "defect"
                cause, example = f"{side.name}: {words}", f"{fault.detail}; at {told(probe)}"
                return row._replace(verdict=verdict, causes=(cause,), example=example), []
        if len(answers) == 2:
            pairs.append(tuple(answers))
    if not pairs:
        return row._replace(example="; ".join(dict.fromkeys(reasons))), []
    shown = row._replace(
        tokens=sum(len(first.expert) for first, _ in pairs),
        experts=tuple(sorted({first.probe.logits.shape[1] for first, _ in pairs})),
    )
    for side, answers in zip(sides, zip(*pairs, strict=True), strict=True):
        if words := _broken(answers):
            return _measured(shown, sides, pairs)._replace(verdict="defect", causes=(f"{side.name}: {words}",)), []
    return _measured(shown, sides, pairs)._replace(verdict="same"), pairs


def _broken(answers) -> str:
    """Return the rule that the answers of a program break; "" if there is none."""
    for answer in answers:
        num_experts, expert = answer.probe.logits.shape[1], np.sort(answer.expert, axis=1)
        if not np.isfinite(answer.gate).all():
            return f"gates are not finite; at {told(_token(answer.probe, ~np.isfinite(answer.gate)))}"
        bad = (expert < 0) | (expert >= num_experts)
        bad[:, 1:] |= expert[:, 1:] == expert[:, :-1]
        if bad.any():
            return _stored(answers) or f"experts {answer.expert[bad.any(1)][0].tolist()} of {num_experts}"
    return _stored(answers)


def _stored(answers) -> str:
    """Return in words that expert numbers are stored in a low precision, or exchanged; "" if they are right."""
    for answer in answers:
        order = np.argsort(-answer.probe.logits, axis=1, kind="stable")[:, : answer.probe.k + 1]
        apart = (np.diff(np.take_along_axis(answer.probe.logits, order, axis=1), axis=1) < 0).all(axis=1)
        wanted = order[apart, : answer.probe.k]
        actual = np.take_along_axis(answer.expert, np.argsort(-answer.gate, axis=1, kind="stable"), axis=1)[apart]
        if np.array_equal(np.sort(wanted, axis=1), np.sort(actual, axis=1)):
            continue
        names = dict(zip(wanted.ravel().tolist(), actual.ravel().tolist(), strict=True))
        is_exchange = len(names) >= 8 and {*names.values()} == {*names}
        changes = STORED | ({"exchanged": np.vectorize(names.get)} if is_exchange else {})
        for words, change in changes.items():
            if np.array_equal(np.sort(change(wanted), axis=1), np.sort(actual, axis=1)):
                number = min(number for number in names if change(np.array(number)) != number)
                return f"expert numbers are {words}: {change(np.array(number))} instead of {number}"
    return ""


def _token(probe: Probe, wrong: np.ndarray) -> Probe:
    """Return the input with its first wrong token alone; `wrong` is [T] or [T, k]."""
    t = int(np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))[0])
    return judge.token_of(probe, t)


def _measured(row: Row, sides, pairs) -> Row:
    """Return the row with shares and largest differences."""
    sets = [_same_set(*pair) for pair in pairs]
    ordered = all(getattr(side.backend.find(stances.TOP_K), "returns_order", True) for side in sides)
    gaps = [np.abs(dense(first) - dense(second)).max(axis=1) for first, second in pairs]
    same, gap = np.concatenate(sets), np.concatenate(gaps)
    order = np.concatenate([(first.expert == second.expert).all(axis=1) for first, second in pairs])
    return row._replace(
        same_set=float(same.mean()),
        same_order=float(order.mean()) if ordered else None,
        gates=float(gap[same].max(initial=0.0)),
        outputs=float(gap.max()),
    )


def _same_set(first: Answer, second: Answer) -> np.ndarray:
    return (np.sort(first.expert, axis=1) == np.sort(second.expert, axis=1)).all(axis=1)


def _judged(row: Row, pairs, sides) -> Row:
    """Return the row with its verdict, and the causes of its differences; without pairs, the row."""
    if not pairs:
        return row
    room = BOUNDS[bound_in("parity.gate", row.precision)].limit
    causes, example = [], ""
    others = [~_same_set(*pair) for pair in pairs]
    if any(each.any() for each in others):
        causes += _causes_of_choice(sides, pairs, others, row.precision)
        first, second, rows = next((*pair, each) for pair, each in zip(pairs, others, strict=True) if each.any())
        t = int(np.flatnonzero(rows)[0])
        example = f"{sides[0].name} runs experts {first.expert[t].tolist()}, {sides[1].name} "
        example += f"{second.expert[t].tolist()}; at {told(_token(first.probe, rows))}"
    for first, second in pairs:
        gates = dense(first), dense(second)
        largest = np.maximum(*map(np.abs, gates))
        unit = designs.error_of(first.probe.logits, row.precision)
        far = (np.abs(gates[0] - gates[1]) > room * unit * largest + np.finfo("float32").tiny).any(axis=1)
        if (far & _same_set(first, second)).any():
            causes += _causes_of_gates(sides, pairs, row.precision)
            t = int(np.flatnonzero(far & _same_set(first, second))[0])
            expert = np.sort(first.expert[t])
            values = " and ".join(f"[{', '.join(f'{gate:.6g}' for gate in each[t, expert])}]" for each in gates)
            words = f"gates {values} of experts {expert.tolist()}"
            example = example or f"{words}; at {told(_token(first.probe, far & _same_set(first, second)))}"
            break
    verdict = "differs" if example else "same"
    return row._replace(verdict=verdict, causes=tuple(dict.fromkeys(causes)), example=example)


def _causes_of_choice(sides, pairs, others, precision: str) -> list[str]:
    """Return the causes of other experts; "unexplained" if they do not explain every token."""
    tied = [_gap(first.probe) == 0 for first, _ in pairs]
    answers = list(zip(*pairs, strict=True))
    causes = []
    designs_of = [side.finding.design for side in sides]
    same_rule = None in designs_of or designs_of[0].rule == designs_of[1].rule
    if same_rule and any((rows & equal).any() for rows, equal in zip(others, tied, strict=True)):
        rules = [_tie_rule(each, tied) for each in answers]
        causes.append(f"tie rule: {sides[0].name} takes {rules[0]}, {sides[1].name} {rules[1]}")
    if same_rule and not any((rows & ~equal).any() for rows, equal in zip(others, tied, strict=True)):
        return causes
    words = _words(sides, pairs, precision, 0)
    named = [f"{side.name}: {each}" for side, each in zip(sides, words, strict=True) if each]
    if None in words:
        return [*causes, *named, *_unexplained(sides, words, "choice")]
    rules, scores = zip(*((side.finding.design.rule, side.finding.design.form.score) for side in sides), strict=True)
    if rules[0] != rules[1] or scores[0] != scores[1] and pairs[0][0].probe.bias is not None:
        named.append(_designs(sides))
    inexact = [side.name for side, each in zip(sides, answers, strict=True) if any(map(_is_inexact, each))]
    names = " and ".join(inexact or ["a program"])
    verb = "rank" if len(inexact) > 1 else "ranks"
    rounding = f"rounding: {names} {verb} experts by scores that rounding makes equal"
    return causes + (named or [rounding])


def _causes_of_gates(sides, pairs, precision: str) -> list[str]:
    words = _words(sides, pairs, precision, 1)
    named = [f"{side.name}: {each}" for side, each in zip(sides, words, strict=True) if each]
    if None in words:
        return [*named, *_unexplained(sides, words, "gates")]
    if len({side.finding.design.name for side in sides}) > 1 and pairs[0][0].probe.router_weights is None:
        named.insert(0, _designs(sides))
    return named or ["rounding of gates"]


def _words(sides, pairs, precision: str, part: int) -> list[str | None]:
    """Return `_readings` of both programs, for the choice (part 0) or the gates (part 1). Equal inputs are no cause."""
    words = [_readings(side, each, precision)[part] for side, each in zip(sides, zip(*pairs, strict=True), strict=True)]
    is_one_input = pairs[0][0].probe.router_weights is not None and words[0] == words[1] is not None
    return ["", ""] if is_one_input else words


def _readings(side: Side, answers, precision: str) -> list[str | None]:
    """Return what changes the choice and the gates of a program's design: "" for nothing, None if unexplained.

    A reading must explain the answers of all groups, because some groups fit by chance.
    """
    design = side.finding.design
    if design is None:
        return [None, None]
    if answers[0].probe.router_weights is not None:
        return list(sources(design, answers, precision))
    fits = (
        all(not wrong_choice(design.form, design.rule, each, "float32").any() for each in answers),
        all(not bad_gates(design.form, design.scale, each, "float32").any() for each in answers),
    )
    low = explanation(design, answers, precision) if precision != "float32" else (None, None)
    is_both = side.readings[0] is not None and side.readings[0] is side.readings[1]  # such as experts with a gate of 0
    words = []
    for fit, reading, computed in zip(fits, side.readings, low, strict=True):
        if fit and (reading or not design.misses) and (all(fits) or not is_both):
            words.append("")
        elif reading and (precision == "float32" or all(map(reading.fits, answers))):
            words.append(reading.words)
        else:
            words.append(computed and (computed.words or f"scores are computed in {precision}"))
    return words


def _unexplained(sides, words, what: str) -> list[str]:
    """Return a sentence for each program whose choice or gates are unexplained: the judge's, if it has a reason."""
    causes = []
    for side in (side for side, each in zip(sides, words, strict=True) if each is None):
        known = side.defect or next((reason for reason in REASONS if reason in side.finding.detail), "")
        causes.append(f"{side.name}: {known or f'{UNEXPLAINED} ({what})'}")
    return causes


def _gap(probe: Probe) -> np.ndarray:
    """Return [T], the k-th largest logit minus the next; infinity where none is left, or where a bias is added."""
    ordered = -np.sort(-probe.logits, axis=1)
    if probe.k == ordered.shape[1] or probe.bias is not None:
        return np.full(len(ordered), np.inf)
    return ordered[:, probe.k - 1] - ordered[:, probe.k]


def _tie_rule(answers, tied) -> str:
    """Return the rule by which a program chooses among equal logits: "the lower index", "the higher index" or "any"."""
    kept = [
        each._replace(probe=each.probe._replace(logits=each.probe.logits[rows]), expert=each.expert[rows])
        for each, rows in zip(answers, tied, strict=True)
    ]
    rule = tie_rule(kept)
    return "any" if rule == "arbitrary" else f"the {rule}"


def _is_inexact(answer: Answer) -> bool:
    """Return whether some experts of an answer are not those of the largest logits."""
    if answer.probe.bias is not None:
        return True
    return bool(designs.wrong_rows(answer.expert, answer.probe.logits, np.zeros((len(answer.expert), 1))).any())


def _designs(sides) -> str:
    """Return the two designs in words, with the parts in which they differ."""
    first, second = (side.finding.design for side in sides)
    parts = {
        "score": [each.form.score for each in (first, second)],
        "renormalisation": ["over chosen" in each.form.name for each in (first, second)],
        "scale": [each.scale for each in (first, second)],
        "groups": [each.rule for each in (first, second)],
    }
    is_known = first.form.options and second.form.options
    about = is_known and " and ".join(name for name, (one, other) in parts.items() if one != other) or "gates"
    return f"{about}: {sides[0].name} gives {first.name}, {sides[1].name} {second.name}"


def random_layer(num_tokens: int = 64, num_experts: int = 8, width: int = 64, d_ff: int = 96) -> Planted:
    """Return an input and random weights of a layer, exact in bfloat16."""
    random = np.random.default_rng(1)

    def normal(*shape, fan_in: int):
        return rounded_to(random.standard_normal(shape) / np.sqrt(fan_in), "bfloat16").astype(np.float32)

    up, linear = (normal(num_experts, width, d_ff, fan_in=width) for _ in range(2))
    down = normal(num_experts, d_ff, width, fan_in=d_ff)
    return Planted(normal(num_tokens, width, fan_in=1), normal(width, num_experts, fan_in=width), up, linear, down)


def expert_outputs(planted: Planted) -> dict[str, np.ndarray]:
    """Return {formula: [T, E, d]}, the output of each expert for each token by the known activations, in float64."""
    x, _, up, linear, down = (each.astype(np.float64) for each in planted)
    first, second = np.einsum("td,edf->tef", x, up), np.einsum("td,edf->tef", x, linear)
    outputs = {}
    for dialect in ACTIVATION:
        hidden = dialect.function(first.ravel()).reshape(first.shape)
        for suffix, values in (("", hidden), (" * (x linear)", hidden * second)):
            outputs[f"{dialect.name}(x up){suffix}"] = np.einsum("tef,efd->ted", values, down)
    return outputs


def _with_random_weights(sides) -> list[Row]:
    """Return the comparison of two layers with random weights; [] unless both backends have a layer."""
    runs = [getattr(getattr(each.backend.find(stances.TOP_K), "route", None), "run", None) for each in sides]
    if None in runs:
        return []
    planted, k = random_layer(), 2
    row = Row("whole layers with random weights", "not askable", len(planted.x), (planted.router.shape[1],), "float32")
    try:
        outputs = [_output(run(planted, k), planted) for run in runs]
    except Exception as error:  # a layer may need planted weights
        return [row._replace(example=f"{type(error).__name__}: {error}")]
    gap, unit = np.abs(outputs[0] - outputs[1]), max(np.abs(each).max() for each in outputs)
    row = row._replace(outputs=float(gap.max()), verdict="same")
    if gap.max() <= BOUNDS["parity.outputs"].limit * UNIT["float32"] * unit:
        return [row]
    causes = [f"{side.name}: {_layer_in_words(each, planted, k)}" for side, each in zip(sides, outputs, strict=True)]
    t = int(gap.max(axis=1).argmax())
    example = f"token {t} of {len(gap)} differs by {gap[t].max():.3g}; the largest output is {unit:.3g}"
    return [row._replace(verdict="differs", causes=tuple(causes), example=example)]


def _output(answer, planted: Planted) -> np.ndarray:
    answer = answer[0] if isinstance(answer, list | tuple) else answer
    return np.asarray(as_numpy(answer), np.float64).reshape(planted.x.shape)


def _layer_in_words(output: np.ndarray, planted: Planted, k: int) -> str:
    """Return the experts and gates that give an output, in words."""
    exact, errors, outputs = planted.x.astype(np.float64) @ planted.router, {}, expert_outputs(planted)
    for low in ("", *LOW):
        logits = rounded_to(exact, low) if low else exact
        expert = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        for form, (experts, values) in itertools.product(designs.FORMS, outputs.items()):
            chosen = np.take_along_axis(values, expert[:, :, None], axis=1)
            words = f"experts {experts}, gates {designs.SHOWN.get(form.name, form.name)}"
            words += f", as if logits were computed in {low}" * bool(low)
            errors[words] = np.abs(output - (form.gates(logits, expert)[:, :, None] * chosen).sum(axis=1)).max()
    words = min(errors, key=errors.get)
    explained = errors[words] <= BOUNDS["dialects.same"].limit * np.abs(output).max()
    return words if explained else f"{UNEXPLAINED} (outputs)"


def lines(parity: Parity) -> list[str]:
    """Return the report for the terminal."""
    text = [f"{side.name} is {_described(side)}" for side in parity.sides]
    text += ["", f"{'inputs':34} {'tokens':>6} {'same set':>8} {'order':>7} {'gates':>8} {'outputs':>8}  verdict"]
    shown = set()
    for row in parity.rows:
        numbers = " ".join(f"{each:>{width}}" for each, width in zip(_numbers(row), (6, 8, 7, 8, 8), strict=True))
        text.append(f"{row.inputs:34} {numbers}  {row.verdict}")
        example = "" if row.causes and shown.issuperset(row.causes) else row.example
        text += [line for words in (*row.causes, example) if words for line in wrapped(words)]
        shown |= set(row.causes)
    causes = parity.causes
    return [*text, "", *(f"cause: {cause}" for cause in causes), *[""] * bool(causes), f"verdict: {parity.verdict}"]


def _described(side: Side) -> str:
    finding = side.finding
    ties = f", ties {dict(finding.facts)['ties']}" if "ties" in dict(finding.facts) else ""
    design = f"{finding.dialect or 'no known design'}{ties} ({finding.verdict})"
    return f"{side.backend.name}, version {side.backend.version}: {design}"


def _numbers(row: Row) -> list[str]:
    shares = ["-" if each is None else f"{100 * each:.1f} %" for each in (row.same_set, row.same_order)]
    sizes = ["-" if each is None else f"{each:.1e}" if each else "0" for each in (row.gates, row.outputs)]
    return [str(row.tokens or "-"), *shares, *sizes]


def as_dict(parity: Parity) -> dict:
    """Return the report as a dict for JSON."""
    return {
        "backends": [
            {"name": side.backend.name, "version": side.backend.version, "verdict": side.finding.verdict,
             "design": side.finding.dialect, "facts": dict(side.finding.facts), "causes": list(side.finding.causes)}
            for side in parity.sides
        ],
        "verdict": parity.verdict,
        "exit_code": parity.exit_code,
        "causes": list(parity.causes),
        "inputs": [
            {name: None if value != value else value for name, value in row._asdict().items()} for row in parity.rows
        ],
    }  # fmt: skip


def write_json(parity: Parity, path: str) -> None:
    write_atomically(path, json.dumps({"parity": as_dict(parity)}, indent=1, allow_nan=False) + "\n")


def write_html(parity: Parity, path: str) -> None:
    """Write the report as a page, in the style of the suite's."""
    rows = [
        f"<tr>{page.cell(row.inputs)}<td>{page.coloured(row.verdict)}"
        + "".join(f"<small>{html.escape(words)}</small>" for words in (*row.causes, row.example) if words)
        + "</td>" + "".join(page.cell(each, "number") for each in _numbers(row)) + "</tr>"
        for row in parity.rows
    ]  # fmt: skip
    names = ("inputs", "verdict", "tokens", "same set", "same order", "gates", "outputs")
    head = "".join(f"<th>{name}" for name in names)
    names_of = " and ".join(html.escape(side.backend.name) for side in parity.sides)
    body = [f"<h2>{names_of}: {page.coloured(parity.verdict)}</h2>"]
    body += [f"<p>{html.escape(f'{side.name} is {_described(side)}')}</p>" for side in parity.sides]
    body += [f"<table><tr>{head}</tr>", *rows, "</table>", "<h3>Causes</h3><ul>"]
    body += [*(f"<li>{html.escape(cause)}" for cause in parity.causes), "</ul>"]
    page.write("Parity of two routers", "\n".join(body), path)
