"""Find the design of each function of another library, once per backend, before the first comparison.

    routers.top_k.*           `dialects.judge`: form of the gates, scale, groups
    notation.top_k_indices    tie rule, and order of the returned choices
    capacity, dispatch, loss  `dialects.classify`

If a function lacks an option of the reference, the guard assumes the value of the function's design, not the
reference's default. So a router that always normalises is compared with a normalising reference. The order of the k
choices and the choice among equal scores are no faults. The guard replaces them by the reference's before a comparison.
"""

import functools
import linecache
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from routelaws.conformance.adapters.blocks import near
from routelaws.conformance.bounds import BOUNDS
from routelaws.conformance.dialects import classifier, designs
from routelaws.conformance.dialects.fitting import Answer, Design, tie_rule
from routelaws.conformance.dialects.judge import (
    UNEXPLAINED,
    Fault,
    Finding,
    check_form,
    derivative,
    frequent,
    gradient_fault,
    judge,
    told,
)
from routelaws.conformance.dialects.readings import sources
from routelaws.conformance.engine import failing_calls
from routelaws.conformance.engine.names import defaults_of, keywords_of, options_of, stands_at
from routelaws.conformance.engine.values import as_numpy, has_graph
from routelaws.reference.balance import AuxiliaryLoss
from routelaws.reference.notation import Routing, top_k_indices

TOP_K, SWITCH, GSHARD = (f"routers.top_k.{name}_router" for name in ("top_k", "switch", "gshard"))
TIES, DISPATCH, LOSS = "notation.top_k_indices", "experts.dispatch", "balance.auxiliary_loss"
ONLY_K = {SWITCH: 1, GSHARD: 2}
"""Routers with a fixed number of experts per token."""
FIXED = {
    SWITCH: {"score": ("softmax",), "normalisation": ("none",)},
    GSHARD: {"score": ("softmax",), "normalisation": ("sum", "softmax")},
}
"""The designs of these routers, as {option of `top_k_router`: values with the same result}."""

SUBJECTS = {
    "experts.expert_capacity": ("capacity", {"ours": {}}),
    "experts.dispatch": ("drop order", {name: {"order": (name,)} for name in ("choice", "token", "priority")}),
    "balance.auxiliary_loss": ("balance loss", {
        name: {"dialect": (name,), "score": ("softmax",)}
        for name in ("assignments", "tokens", "first_choice", "gshard")
    } | {"sigmoid": {"dialect": ("assignments",), "score": ("sigmoid",)}}),
    "balance.z_loss": ("z loss", {"mean of squares": {}}),
}  # fmt: skip
"""{function: (subject of `classify`, {dialect: the reference's options for it})}."""

ACTIVATED = {"experts.routed_ffn": "activation of a routed layer", "experts.expert_ffn": "activation of an expert"}
"""{function: subject of `classify`} for functions whose activation may be another than the reference's."""

JUDGED = (TOP_K, SWITCH, GSHARD, TIES, *SUBJECTS)


class Stance(NamedTuple):
    """The design of a function, or the verdict if no design was found."""

    finding: Finding
    options: dict | None = None  # the reference's options, if they do not depend on k
    in_groups: dict | None = None  # {"group_score": values} of a router that has groups, but not this option

    def options_at(self, k: int) -> dict | None:
        """Return {option of the reference: values that give the function's design}; None if there are none."""
        design = self.finding.design
        return design.options(k) if isinstance(design, Design) else self.options


def stance_of(backend, path: str) -> Stance:
    """Return the design of a function of a `backends.Backend`; see the module docstring."""
    if path in SUBJECTS:
        return _of_subject(backend, path)
    if path == TIES:
        return _of_ties(backend)
    ask = Ask(backend, path)

    def in_oracle(options: dict) -> bool:
        if path == TOP_K:
            return set(options) <= set(options_of(TOP_K))
        return set(options) == set(FIXED[path]) and all(set(options[name]) & set(FIXED[path][name]) for name in options)

    finding, function = judge(ask, precision=ask.precision, in_oracle=in_oracle), backend.find(path)
    if not getattr(function, "returns_order", True):
        finding = finding._replace(facts=tuple(fact for fact in finding.facts if fact[0] != "choice"))
    route = getattr(function, "route", None)
    if hasattr(route, "run") and finding.design and finding.design.scale != 1:
        words = f"the factor {finding.design.scale:g} can come from the activation of the experts, not from the gates"
        finding = finding._replace(facts=(*finding.facts, ("scale", words)))
    if untagged := getattr(route, "untagged", ""):
        words = f"the choice and the gates only; the contents of the slots are not tested: {untagged}"
        finding = finding._replace(facts=(*finding.facts, ("layer", words)))
    if backend.has_gradients:
        backend.tested(path, "grad", ask.untested)
    if "bfloat16" in backend.dtypes and ask.precision != "bfloat16" and finding.inputs:
        finding = finding._replace(facts=(*finding.facts, ("bfloat16", _moved_by_bfloat16(ask))))
    finding = with_sources(_with_causes(finding, ask), ask) if path == TOP_K else finding
    finding, in_groups = _with_groups(finding, ask)
    documented = getattr(backend.namespace, "documented", {}).get(path.rpartition(".")[2])
    return Stance(_as_documented(finding, documented), in_groups=in_groups)


INPUTS = ("bias", "mask", "router_weights")
"""Further inputs of a router. The reference has no `router_weights` [T, E], from which a router takes the gates."""

SIGMOID = {"score": "sigmoid", "normalisation": "sum"}
IN_GROUPS = {"expert_groups": 4, "groups_per_token": 2}
VALUES = {"score": ("softmax", "sigmoid"), "normalisation": ("none", "sum"), "gate_scale": (1.0, 2.0)}
"""Two values of each option of `top_k_router` that give every token other gates."""


def _with_causes(finding: Finding, ask: "Ask") -> Finding:
    """Return the finding, with the causes of differences that appear only with options that the function offers."""
    taken = keywords_of(ask.backend.find(ask.path)) or ()
    logits = np.array([[0.5, -1.25, 2.0, 0.25], [1.5, 2.25, -0.75, -3.5]])
    for name, values in VALUES.items() if finding.inputs else ():
        try:
            pair = [
                ask.backend.ask(ask.path, logits, precision=ask.precision, k=2, **{name: value})
                for value in (values if name in taken else ())
            ]
        except (NotImplementedError, Fault):
            continue
        if pair and all(np.array_equal(getattr(pair[0], part), getattr(pair[1], part)) for part in ("expert", "gate")):
            finding = finding._replace(causes=(*finding.causes, f"the option {name} changes nothing"))
    if finding.inputs and set(SIGMOID) <= set(taken):
        other = judge(Ask(ask.backend, ask.path, SIGMOID), precision=ask.precision)
        if other.verdict == "differs":
            cause = other.detail.rpartition("; at ")[0].rpartition("]: ")[2]
            finding = finding._replace(causes=(*finding.causes, f"with score 'sigmoid', normalisation 'sum': {cause}"))
    return finding


def _with_groups(finding: Finding, ask: "Ask") -> tuple[Finding, dict | None]:
    """Return the finding, and the score of groups if the function has groups but not this option.

    The tests of groups need a design of the reference. For another design, the finding gets the fault of its groups.
    """
    taken = keywords_of(ask.backend.find(ask.path)) or ()
    if "groups_per_token" not in taken:
        return finding, None
    grouped = judge(Ask(ask.backend, ask.path, IN_GROUPS), precision=ask.precision)
    rule = grouped.design.rule if grouped.design else "best"
    if finding.verdict == "differs" and grouped.verdict in ("unexplained", "defect"):
        words = ", ".join(f"{name} {value}" for name, value in IN_GROUPS.items())
        more = {"facts": finding.facts, "causes": finding.causes, "probe": None}  # a probe has no groups
        finding = grouped._replace(detail=f"{grouped.detail}, {words}", **more)
    return finding, None if rule == "best" or "group_score" in taken else {"group_score": (rule.score,)}


def with_sources(finding: Finding, ask: "Ask") -> Finding:
    """Return the finding, with the inputs of the choice and of the gates if the router takes `router_weights`."""
    answers = []
    for probe in designs.two_inputs() if finding.design else ():
        try:
            answers.append(Answer(probe, *ask(probe)))
            check_form(answers[-1])
        except NotImplementedError:
            continue
        except Fault as fault:
            return _with_fault(finding, "defect", fault.kind, fault.detail, probe)
    if not answers:
        return finding
    choice, gates = sources(finding.design, answers, ask.precision)
    if choice is None or gates is None:
        words = f"{UNEXPLAINED}: the {'gates' if choice else 'choice'} with router_weights"
        return _with_fault(finding, "unexplained", "unexplained", words, answers[0].probe)
    if choice == "choice from router_weights":
        words = f"the choice follows router_weights, {gates}"
    elif gates.startswith("gates from router_weights"):
        return finding._replace(facts=(*finding.facts, ("router_weights", f"{choice}, {gates}")))
    else:
        words = "the option router_weights changes nothing"
    finding = finding._replace(causes=(*finding.causes, words))
    return _with_fault(finding, "differs", "dialect", words, answers[0].probe)


def _with_fault(finding: Finding, verdict: str, kind: str, detail: str, probe) -> Finding:
    """Return the finding with a fault: as its verdict if the verdict was "right", or else besides."""
    if finding.verdict != "right":
        return finding._replace(besides=(*finding.besides, detail))
    detail += "" if "; at " in detail else f"; at {told(probe)}"
    return finding._replace(verdict=verdict, kind=kind, detail=detail, probe=probe)


def _moved_by_bfloat16(ask: "Ask") -> str:
    """Return how many of 256 tokens change experts in bfloat16, as text. Their logits are standard normal."""
    logits = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32).astype(float)
    probe = designs.Probe("plain", logits, ONLY_K.get(ask.path, 2))
    try:
        wide, narrow = (np.sort(ask(probe, precision)[0], axis=1) for precision in (ask.precision, "bfloat16"))
    except (NotImplementedError, Fault) as error:
        return f"not tested: {error}"
    return f"{int((wide != narrow).any(axis=1).sum())} of 256 tokens change an expert"


def _as_documented(finding: Finding, documented: dict | None) -> Finding:
    """Return the finding, or a defect if the design differs from the documented one."""
    options = finding.design.options(2) if finding.verdict == "right" and finding.design else None
    if not documented or options is None:
        return finding
    standing = {name: options.get(name, (defaults_of(TOP_K)[name],)) for name in documented}
    differing = [name for name, value in documented.items() if value not in standing[name]]
    if not differing:
        return finding
    words = ", ".join(f"{name} {documented[name]!r} and computes {standing[name][0]!r}" for name in differing)
    return finding._replace(verdict="defect", kind="documentation", detail=f"documents {words}")


class Ask:
    """A router of a backend, called by `judge`."""

    def __init__(self, backend, path: str, fixed=None):
        self.backend, self.path, self.fixed = backend, path, fixed or {}
        self.precision = "float32" if "float32" in backend.dtypes else backend.dtypes[0]
        self.training = getattr(backend.namespace, "training", None)
        self.gradient = self._gradient if backend.has_gradients else None
        self.untested = "its design is not known"

    def __call__(self, probe, precision: str = ""):
        if probe.k != ONLY_K.get(self.path, probe.k):
            raise NotImplementedError(f"k {probe.k}")
        if probe.logits.shape[1] % (2 * self.fixed.get("expert_groups", 1)):
            raise NotImplementedError("groups of fewer than two experts")
        if probe.kind == "size" and self.path in self.backend.slow:
            raise NotImplementedError("many experts or tokens, because the function is slow")
        answer = self.backend.ask(
            self.path, probe.logits, precision=precision or self.precision, **self._options(probe)
        )
        gate = np.asarray(answer.gate, np.float64)
        self.ordered = getattr(self.backend.find(self.path), "returns_order", True)
        if probe.bias is not None and not self.ordered and not gate.all():
            raise NotImplementedError("gates [T, E] of 0 do not show which experts the bias chose")
        return np.asarray(answer.expert), gate

    def _gradient(self, probe, weights):
        def total(logits):
            answer = self.backend.find(self.path)(logits, **self._options(probe))
            gate = dict(zip(Routing._fields, self.backend.parts_of(self.path, answer, Routing), strict=True))["gate"]
            return (gate * self.backend.convert(weights, self.precision)).sum() if has_graph(gate) else 0.0

        try:
            gradient = self.backend.gradient(total, probe.logits, self.precision)
        except NotImplementedError as error:
            self.untested = str(error)
            raise
        self.untested = ""
        return gradient

    def _options(self, probe) -> dict:
        options = {name: value for name in INPUTS if (value := getattr(probe, name)) is not None}
        taken, known = keywords_of(self.backend.find(self.path)), options_of(self.path)
        offered = known if taken is None else taken & {*known, "router_weights"}
        lacking = [name for name in options if name not in offered]
        if lacking:
            raise NotImplementedError(f"option {lacking[0]}")
        return options if self.path in ONLY_K else {"k": probe.k} | options | self.fixed


def activation_of(backend, path: str):
    """Return the activation of a function of `ACTIVATED` if it is a known one, else None."""
    subject, adapt = ACTIVATED[path], classifier.FUNCTIONS[ACTIVATED[path]][1]
    precision = "float32" if "float32" in backend.dtypes else backend.dtypes[0]
    verdict = classifier.classify(subject, adapt(functools.partial(backend.ask, path, precision=precision)))
    known = {dialect.name: dialect.function for dialect in classifier.SUBJECTS[subject].dialects}
    return known[verdict.matches[0]] if verdict.matches else None


def _of_subject(backend, path: str) -> Stance:
    subject, in_oracle = SUBJECTS[path]
    adapt = classifier.FUNCTIONS[subject][1]
    precision = "float32" if "float32" in backend.dtypes else backend.dtypes[0]
    faults, reasons = [], []

    def call(*arrays, **options):
        try:
            answer = backend.ask(path, *arrays, precision=precision, **options)
            if path == DISPATCH and (fault := placement_fault(answer, *arrays, **options)):
                raise fault
            return answer
        except NotImplementedError as error:
            reasons.append(str(error))
            raise
        except Fault as fault:
            faults.append(fault)
            raise

    verdict = classifier.classify(subject, adapt(call))
    losses = dict.fromkeys(("balance loss", "z loss"), _loss_gradient_faults)
    gradient_faults = (losses | {"drop order": _gate_gradient_faults}).get(subject)
    is_known = verdict.matches or verdict.is_design
    changed, facts = _kept_gates(backend, path, precision) if path == DISPATCH and verdict.matches else ([], ())
    if path == LOSS and not faults and is_known:
        changed = _padding_of_loss(backend, path, lambda real: adapt(functools.partial(call, mask=real)))
    if changed or gradient_faults and is_known and backend.has_gradients:
        name = (*verdict.matches, verdict.nearest)[0]
        faults += changed or gradient_faults(backend, path, name, precision)
        if faults:
            finding = Finding("defect", faults[0].kind, faults[0].detail, name, verdict.examples)
            if finding.kind == "dialect":
                words = f"{UNEXPLAINED}: {finding.detail}"
                finding = finding._replace(verdict="unexplained", kind="unexplained", detail=words)
            return Stance(finding)
    if faults and not verdict.matches:
        fault = next((fault for fault in faults if fault.kind in ("overfull", "mixed")), faults[0])
        return Stance(Finding("defect", fault.kind, fault.detail))
    if not verdict.examples:
        return Stance(Finding("not askable", detail=f"it declined every input: {frequent(reasons)}"))
    if not verdict.matches and not verdict.steady:
        detail = f"the {'loss' if subject == 'balance loss' else 'result'} changes between two equal calls"
        return Stance(Finding("defect", "not deterministic", detail, verdict.nearest, verdict.examples))
    words = classifier.describe(verdict)
    if len(verdict.matches) > 1:
        fits = f"the {verdict.examples} inputs that it answered fit several dialects: {', '.join(verdict.matches)}"
        return Stance(Finding("not askable", detail=fits))
    name = verdict.matches[0] if verdict.matches else verdict.nearest
    finding = Finding("right", dialect=name, inputs=verdict.examples, facts=facts)
    if name in in_oracle and verdict.matches:
        return Stance(finding, in_oracle[name])
    if verdict.matches or verdict.is_design:
        return Stance(finding._replace(verdict="differs", kind="dialect", detail=words))
    return Stance(finding._replace(verdict="unexplained", kind="unexplained", detail=f"{UNEXPLAINED}: {words}"))


def _padding_of_loss(backend, path: str, masked: Callable) -> list:
    """Return [fault] if a loss with a mask is not the loss of the real tokens; else []. No design allows this.

    `masked(real)` returns the loss as a function of logits and experts, with this mask.
    """
    if "mask" not in (keywords_of(backend.find(path)) or ()):
        return []
    logits = np.random.default_rng(0).standard_normal((12, 4)) + 3 * (np.arange(12)[:, None] // 8) * np.arange(4)
    expert, real = top_k_indices(logits, 2), np.arange(12) < 8
    try:
        parts = [(masked(real[rows]), logits[rows], expert[rows]) for rows in (slice(None), slice(8))]
        found, wanted = (float(np.asarray(loss(z, e))) for loss, z, e in parts)
    except (NotImplementedError, Fault):
        return []
    if abs(found - wanted) <= BOUNDS["dialects.same"].limit * abs(wanted):
        return []
    return [
        Fault(
            "padding", f"with a mask, 8 of 12 tokens have the loss {found:.6g}, but the real tokens alone {wanted:.6g}"
        )
    ]


def _loss_gradient_faults(backend, path: str, name: str, precision: str) -> list:
    """Return [fault] if the gradient of a loss, divided by the loss, is not that of the dialect; else []."""
    subject = classifier.SUBJECTS[SUBJECTS[path][0]]
    function = next(dialect.function for dialect in subject.dialects if dialect.name == name)
    for values in subject.inputs(0)[:4]:  # JAX compiles each shape
        if fault := _loss_gradient_fault(backend, path, function, precision, *values):
            return [fault]
    return []


def _loss_gradient_fault(backend, path: str, function, precision: str, logits, *expert):
    def total(z):
        answer = backend.find(path)(z, *(backend.convert(each, "int64") for each in expert))
        return backend.parts_of(path, answer, AuxiliaryLoss)[0] if path == LOSS else answer

    def without_weight(z):
        return total(z) / float(as_numpy(total(backend.convert(logits, precision))))

    def wanted(logits):
        return derivative(lambda z: function(z, *expert), logits) / function(logits, *expert)

    probe = designs.Probe("plain", logits, expert[0].shape[1] if expert else 1)
    return _fault_of_gradient(backend, path, precision, without_weight, wanted, probe)


CROWDED = np.array([[1.5, 0.5, 0.0, 1.0], [1.5, 1.0, 0.5, 0.0], [1.0, 1.5, 0.0, 0.5]])
"""Logits of tokens of which two want expert 0."""


def _kept_gates(backend, path: str, precision: str) -> tuple[list, tuple]:
    """Compare the gates that a capacity of 1 keeps with the router's. Return [fault] or [], and facts."""
    gates, facts = getattr(backend.find(path), "gates", None), ()  # of `adapters.blocks`
    for k in (1, 2) if gates and TOP_K in backend.functions else ():
        try:
            routing = backend.ask(TOP_K, CROWDED, precision=precision, k=k)
            kept = as_numpy(gates(backend.convert(CROWDED, precision), k, 1))
        except (NotImplementedError, Fault):  # the stance of the router reports its fault
            continue
        kept, full = kept.sum(axis=2) if kept.ndim == 3 else kept, np.zeros(CROWDED.shape)
        np.put_along_axis(full, np.asarray(routing.expert), np.asarray(routing.gate), axis=1)
        wanted = np.where(kept == 0, 0, full)
        shares = wanted * full.sum(axis=1, keepdims=True) / np.maximum(wanted.sum(axis=1, keepdims=True), 1e-30)
        if not near(kept, wanted).all() and near(kept, shares).all():
            facts = (("gates with a capacity", "divided by their sum over the kept choices"),)
        elif len(wrong := np.argwhere(~near(kept, wanted))):
            t, e = wrong[0]
            words = (
                f"token {t} has gate {kept[t, e]:.4g} of expert {e} with capacity 1, but {full[t, e]:.4g} without one"
            )
            return [Fault("dialect", f"{words}; at {told(designs.Probe('plain', CROWDED, k))}")], ()
    return [], facts


def _gate_gradient_faults(backend, path: str, name: str, precision: str) -> list:
    """Return [fault] if the gradient of the gates of a dispatch by the logits is not their derivative; else []."""
    gates = getattr(backend.find(path), "gates", None)  # of `adapters.blocks`
    for k in (1, 2) if gates else ():

        def total(z, k=k):
            answer = gates(z, k, 1)
            return sum((4 + e) * answer[:, e].sum() for e in range(4))

        def wanted(logits, total=total):
            return derivative(lambda z: float(total(backend.convert(z, precision))), logits, 2.0**-6)

        probe = designs.Probe("plain", CROWDED, k)
        if fault := _fault_of_gradient(backend, path, precision, total, wanted, probe, ", capacity 1"):
            return [fault]
    return []


def _fault_of_gradient(backend, path: str, precision: str, total, wanted, probe, where: str = ""):
    """Return the fault of the gradient of total(logits); None if it is `wanted(logits)` or if the function declines."""
    try:
        gradient, right = backend.gradient(total, probe.logits, precision), wanted(probe.logits)
    except NotImplementedError as error:
        backend.tested(path, "grad", str(error))
        return None
    except Fault as fault:
        return fault
    backend.tested(path, "grad")
    fault = gradient_fault(gradient, right, probe)
    return fault and fault._replace(detail=fault.detail + where)


def placement_fault(placement, expert, num_experts: int, capacity: int, **_) -> Fault | None:
    """Return a fault if an expert keeps more tokens than its capacity, or if two tokens share a slot."""
    expert, kept = np.asarray(expert), np.asarray(placement.kept, bool)
    if kept.shape != expert.shape or not kept.any():
        return None
    where = f"at experts {expert.tolist()}" if expert.size <= 64 else f"at {len(expert)} tokens"
    counts = np.bincount(expert[kept])
    if counts.max() > capacity:
        e = int(counts.argmax())
        return Fault("overfull", f"expert {e} keeps {counts[e]} of capacity {capacity}; {where}, k {expert.shape[1]}")
    if placement.slot is None:
        return None
    places, tokens = np.unique([expert[kept], np.asarray(placement.slot)[kept]], axis=1, return_counts=True)
    if tokens.max() == 1:
        return None
    e, slot = places[:, tokens.argmax()]
    return Fault("mixed", f"two tokens share slot {slot} of expert {e}, capacity {capacity}; {where}")


def _of_ties(backend) -> Stance:
    """Return the tie rule of the top-k function, and whether its choices are in descending order."""
    precision = "float32" if "float32" in backend.dtypes else backend.dtypes[0]
    sorted_, ties, inputs = True, [], 0
    for probe in designs.probes():
        if probe.kind in ("plain", "tie") or probe.kind == "size" and TIES not in backend.slow:
            try:
                choice = np.asarray(backend.ask(TIES, probe.logits, precision=precision, k=probe.k))
            except NotImplementedError:
                continue
            except Fault as fault:
                return Stance(Finding("defect", fault.kind, fault.detail, probe=probe))
            fault = _choice_fault(choice, probe)
            if fault:
                return Stance(fault)
            inputs += probe.kind != "size"
            kept = np.take_along_axis(probe.logits, choice, axis=1)
            sorted_ &= bool(np.all(np.diff(kept, axis=1) <= 0))
            ties += [Answer(probe, choice, kept)] * (probe.kind == "tie")
    facts = {"choice": "sorted" if sorted_ else "unsorted", "ties": tie_rule(ties)}
    return Stance(Finding("right", dialect=f"ties: {facts['ties']}", inputs=inputs, facts=tuple(facts.items())), {})


def _choice_fault(experts, probe) -> Finding | None:
    (num_tokens, num_experts), where = probe.logits.shape, told(probe)
    if experts.shape != (num_tokens, probe.k) or experts.dtype.kind not in "iu":
        return Finding("defect", "form", f"returned {experts.dtype} {experts.shape}; at {where}", probe=probe)
    if experts.min() < 0 or experts.max() >= num_experts or any(len(set(row)) < probe.k for row in experts.tolist()):
        return Finding("defect", "out of range", f"returned {experts.tolist()}; at {where}", probe=probe)
    wrong = designs.wrong_rows(experts, probe.logits, np.zeros((num_tokens, 1)))
    if wrong.any():
        wanted = top_k_indices(probe.logits, probe.k).tolist()
        t = int(np.flatnonzero(wrong)[0])
        token = probe._replace(logits=probe.logits[t : t + 1])
        words = f"returned {experts[t].tolist()}, but the k largest are {wanted[t]}; at {told(token)}"
        return Finding("defect", "wrong", words, probe=token)
    return None


def lacking(stance: Stance | None, path: str, function, arguments: dict) -> tuple[list[str], dict]:
    """Return (options that the call needs but the function lacks, options to pass by name).

    Args:
        stance: the stance of the function; None for the reference's defaults.
        arguments: the arguments of the call by the reference's names.
    """
    defaults, taken = defaults_of(path), keywords_of(function)
    if stance is None or stance.finding.verdict == "not askable":
        values = {}
    else:
        values = stance.options_at(ONLY_K.get(path, int(arguments.get("k", 1))))
        if stance.finding.verdict != "right" or values is None:
            return [f"all: {stance.finding.dialect or stance.finding.verdict}"], {}
        values = values | (stance.in_groups or {}) if arguments.get("expert_groups", 1) != 1 else values
    wanted, named = [], {}
    for name in options_of(path):
        value = arguments.get(name, defaults[name])
        if taken is not None and name not in taken:
            allowed = values.get(name, (defaults[name],))
            if name != "allow_constant_gate" or stance is None:
                wanted += [] if any(stands_at(value, allowed_value) for allowed_value in allowed) else [name]
        elif stance is not None and name not in arguments and name in values:
            named[name] = value
    return sorted(wanted), named


NO_KERNEL = re.compile(
    r"no kernel image|not implemented for ['\"]|could not run .+ with arguments from|no registered .*kernel|"
    r"(kernel|operator|op)\b.* (is not|not) (registered|available|found)|(no|not have( a)?) kernel\b|"
    r"could not find an implementation|unimplemented|not_implemented|not compiled with (cuda|rocm|xpu)",
    re.IGNORECASE | re.DOTALL,
)
"""Errors of libraries that lack a kernel for the device. The rule: the message says that a kernel, an operator or an
implementation is missing. The suite then skips the call, as for NotImplementedError."""


def lacks_means(error: BaseException) -> bool:
    """Return whether an error says that the device lacks memory or a kernel."""
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return True
    return NO_KERNEL.search(str(error)) is not None and not isinstance(error, AttributeError | ImportError)


ARRAYS = ("numpy", "jax", "torch", "scipy", "numba")
"""Packages whose errors are never rejections on purpose."""


def is_refusal(error: BaseException) -> bool:
    """Return whether an error is a rejection: a `raise` or `assert` outside of `ARRAYS`, or a lack of means."""
    if lacks_means(error):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(error, ValueError | AssertionError) or trace is None:
        return False
    package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    return package not in ARRAYS and re.search(r"(^|[:;]\s*)(raise|assert)\b", line) is not None


def is_own(function) -> bool:
    """Return whether a function is from `routelaws.reference` or `routelaws.accelerated`."""
    return (getattr(function, "__module__", None) or "").startswith(("routelaws.reference", "routelaws.accelerated"))


def as_row(backend, path: str, stance: Stance) -> dict:
    finding = stance.finding
    return {
        "verdict": finding.verdict,
        "kind": finding.kind,
        "detail": finding.detail,
        "dialect": finding.dialect,
        "inputs": finding.inputs,
        "facts": dict(finding.facts),
        "besides": list(finding.besides),
        "causes": list(finding.causes),
        "script": _script(backend, path, finding.probe) if finding.probe else "",
    }


def _script(backend, path: str, probe) -> str:
    inputs = {"logits" if path != TIES else "scores": probe.logits.astype(np.float32), "k": probe.k}
    inputs |= {name: value for name in INPUTS if (value := getattr(probe, name)) is not None}
    return failing_calls.program(backend.namespace, backend.name, path, {
        name: value if name in ("k", "mask") else value.astype(np.float32) for name, value in inputs.items()
        if name != "k" or path not in ONLY_K
    })  # fmt: skip
