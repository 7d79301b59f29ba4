"""The kinds of models for a budget, from the runs of a table or from printed coefficients.

    runs           each trained number of experts of a router, and the dense model, by a fitted law
    hoffmann       6 N FLOPs per training token and 2 N per inference token, for any shape of the model
    fine-grained   the FLOPs of `fine_grained.py`; models of E = 64, of E = 16 and dense, each by its own coefficients
    joint          6 N and 2 N FLOPs, N with embeddings

Memory counts all parameters of a model: experts, routers and, if the law fixes the width, both embeddings. V is 50,257,
the vocabulary of both papers. For the fine-grained models, whose N excludes embeddings, this is our choice.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from routelaws.reference.accounting import TABLE_VOCAB_SIZE

from ...errors import InputError
from ...laws import fine_grained, hoffmann, joint
from ...laws.catalogue import Law
from ...laws.choosing import Choice, Option
from ...laws.planning import EXPERT_COUNTS, GRANULARITIES, LEAST_WIDTH, Budget
from ...tables.agreement import counted_embeddings, or_one, training_steps, training_tokens
from ...tables.schema import DENSE, column_or_nan
from ..fit import Fit
from ..prediction import Beyond, beyond
from ..row_differences import SAME
from ..rows import FLOPS_PER_PARAMETER, TRAINING, stated_flops, taken_per_step

SIZE, EXPERTS = "dense_parameter_count", "num_experts"


class Costs(NamedTuple):
    """Costs as functions of an array of N; None for a cost that the table does not give.

    Attributes:
        flops: forward FLOPs of one token
        total: P, all parameters without embeddings
        embedding: V d; V is from the released table if the table has no V
        counted_embeddings: how often N and P count the embedding
        cache: numbers in the key-value cache for one token
        tokens: training tokens D of the runs of a size
        counted: whether `flops` is from the table; otherwise `flops` is 2 N
        same_tokens: whether all runs had the same D
    """

    flops: Callable
    total: Callable | None
    embedding: Callable | None
    counted_embeddings: float
    cache: Callable | None
    tokens: Callable | None
    counted: bool
    same_tokens: bool


def costs_of(frame, experts: float) -> Costs:
    """Return the costs of models with E experts; arguments as in `costs_by_experts`."""
    return costs_by_experts(frame)(experts)


def costs_by_experts(frame) -> Callable[[float], Costs]:
    """Return the function that gives the costs of models with E experts, E at least 1.

    Args:
        frame: the rows of one router and of the dense runs, one per run.
    """
    size, count = (frame[name].to_numpy(dtype=np.float64) for name in (SIZE, EXPERTS))
    tokens = tokens_of_runs(frame)
    per_token = stated_flops(frame) / (TRAINING * tokens)
    per_token = np.where(np.isnan(per_token), column_or_nan(frame, "flops_per_step") / taken_per_step(frame), per_token)
    cache = (
        2 * column_or_nan(frame, "num_blocks") * column_or_nan(frame, "num_heads") * column_or_nan(frame, "kqv_size")
    )
    vocabulary = np.nan_to_num(column_or_nan(frame, "vocab_size"), nan=float(TABLE_VOCAB_SIZE))
    total, known = column_or_nan(frame, "total_parameter_count"), tokens[tokens > 0]
    at_sizes = [_at_sizes(size, count, values) for values in (per_token, total)]
    embedding = _between(size, _medians(size, vocabulary * column_or_nan(frame, "d_model")))
    counted = float(counted_embeddings(frame).max(initial=0.0))
    cached, trained = _between(size, _medians(size, cache)), _between(size, _medians(size, tokens))
    same = bool(known.size and known.max() <= SAME * known.min())

    def at(experts: float) -> Costs:
        flops, totals = (_between(size, _at_experts(known, experts)) for known in at_sizes)
        per_size = flops or (lambda N: FLOPS_PER_PARAMETER * np.asarray(N, dtype=np.float64))
        return Costs(per_size, totals, embedding, counted, cached, trained, flops is not None, same)

    return at


def tokens_of_runs(frame) -> np.ndarray:
    """Return the training tokens D of each row, [n]; by default with the tokens per step of the released table."""
    tokens = training_tokens(frame)
    return np.where(np.isnan(tokens), training_steps(frame) * taken_per_step(frame), tokens)


def says_tokens(frame) -> bool:
    """Return whether no run uses the default tokens per step: its tokens are in the table, or its steps are unknown."""
    tokens = training_tokens(frame)
    return bool((np.isfinite(tokens) | np.isnan(training_steps(frame))).all())


def _medians(size: np.ndarray, values: np.ndarray) -> dict[float, float]:
    """Return {N: median of the values at this size}, for sizes with a value above 0."""
    groups = {float(n): values[(size == n) & (values > 0)] for n in np.unique(size)}
    return {n: float(np.median(group)) for n, group in groups.items() if group.size}


def _at_sizes(size: np.ndarray, count: np.ndarray, values: np.ndarray) -> dict[float, dict[float, float]]:
    """Return {N: {E: median}}."""
    return {float(n): _medians(count[size == n], values[size == n]) for n in np.unique(size)}


def _at_experts(at_sizes: dict[float, dict[float, float]], experts: float) -> dict[float, float]:
    """Return {N: value at E experts}, by linear interpolation between the trained E.

    Beyond the last E, the last line continues. A size with a single E has no value for another E. A size whose line
    falls to 0 has no value either.
    """
    at_size = {}
    for n, medians in at_sizes.items():
        at, height = np.array(list(medians)), np.array(list(medians.values()))
        if experts in medians:
            at_size[n] = medians[experts]
        elif at.size > 1:
            value = float(_line(at, height, experts))
            if value > 0:
                at_size[n] = value
    return at_size


def _between(size: np.ndarray, known: dict[float, float]) -> Callable | None:
    """Return a function N -> value, by log-log interpolation between sizes.

    With a single size, the value is proportional to N. Return None without sizes.
    """
    if not known:
        return None
    at, height = np.log(np.array(list(known))), np.log(np.array(list(known.values())))

    def value(N) -> np.ndarray:
        t = np.log(np.asarray(N, dtype=np.float64))
        if at.size == 1:
            return np.exp(height[0] + t - at[0])
        return np.exp(_line(at, height, t))

    return value


def _line(at: np.ndarray, height: np.ndarray, x) -> np.ndarray:
    """Interpolate linearly between sorted points. Beyond the ends, the end lines continue."""
    k = np.clip(np.searchsorted(at, x), 1, at.size - 1)
    slope = (height[k] - height[k - 1]) / (at[k] - at[k - 1])
    return height[k - 1] + slope * (x - at[k - 1])


REACH = 10.0
"""Largest N of an option as a multiple of the table's largest N. Our choice."""

GIVEN_TOKENS = 1.05
"""If a law ignores tokens, requested tokens must equal the runs' tokens within this ratio."""

WIDEST = 1e6
"""The largest width d of a model, for laws with the width as size."""

SERVED_ROUTER_FLOPS = 6.0
"""Forward FLOPs among the 14 training FLOPs per router parameter: matrix product, dispatch, combine."""

RANGES = {
    "hoffmann": {"active_parameters": (5.7e7, 1.62e10), "tokens": (8.2e8, 3.2e11)},
    "fine-grained": {"active_parameters": (3e6, 8.5e7), "tokens": (1.6e10, 1.3e11), "granularity": (1.0, 16.0)},
    "joint": {"active_parameters": (2.9e7, 2.7e9), "num_experts": (1.0, 32.0)},
}
"""Ranges of the runs behind the printed coefficients: the 240 points of Hoffmann's law, and the runs that the papers of
the two other laws list. The tokens of the joint law's runs are unknown."""


COUNTS = ("flops", "embedding", "tokens")
"""Costs that have a default if a table does not give them."""


PLANNED = (
    "dense_parameters", "num_experts", "tokens", "teraflops", "utilisation", "total_parameters", "active_parameters",
    "granularity", "sparsity",
)  # fmt: skip
"""The columns of laws for which `law_point` has values."""


class Model(NamedTuple):
    """A kind of model, as functions of its size.

    Attributes:
        num_experts: E
        k: experts of a token
        granularity: G; None if the law has no granularity
        option: loss and costs, as functions of the size
        tokens: D, a number or a function of the size; None for all tokens that the FLOPs allow
        active: size -> N, as the law counts parameters
        total: size -> P; None if unknown
        point: (size, D) -> the columns of the law by name, [n] each
        runs: the columns of the runs, [n] each, or the ends of their ranges
        counts: the entries of COUNTS that the table gives
        fit: the fit of the law; None for printed coefficients
        with_experts: E -> the same kind with any number of experts; None if the law has no E
    """

    name: str
    router: str
    law: str
    num_experts: float
    k: float
    granularity: float | None
    option: Option
    tokens: float | Callable | None
    active: Callable
    total: Callable | None
    point: Callable
    runs: dict[str, np.ndarray]
    counts: tuple[str, ...]
    fit: Fit | None
    with_experts: Callable | None = None

    def at(self, choice: Choice) -> tuple[float, ...]:
        """Return the law's columns at a size, in the order of `runs`, and only the columns of `runs`."""
        point = self.point(choice.size, choice.tokens)
        return tuple(float(np.ravel(point[name])[0]) for name in self.runs)

    def beyond(self, choice: Choice) -> list[Beyond]:
        """Return the values of a model that lie beyond the runs."""
        return beyond(list(self.runs), list(self.runs.values()), self.at(choice))


# Runs of a table.


def models_of_runs(fit: Fit, budget: Budget, tokens: float | None) -> list[Model]:
    """Return the trained kinds of models of a router. The dense kind is first: by the router's law, at E = 1.

    The law `dense` has no floor and ignores tokens: beyond the runs it would win against a law that has them.

    Raises:
        ValueError: the table lacks data for a limit of the budget; or the requested tokens differ from the runs'
            tokens, but the law ignores tokens.
    """
    frame = fit.rows.runs.frame
    routed = frame[frame["router_type"] != DENSE]
    of_runs = zip(routed["num_experts"], or_one(routed, "k"), or_one(routed, "granularity"), strict=True)
    kinds = sorted({tuple(map(float, kind)) for kind in of_runs})
    with_dense = not kinds or len(routed) < len(frame)
    costs = functools.cache(partial(costs_of_kind, fit))
    return [_model_of_runs(fit, costs, kind, budget, tokens) for kind in [(1.0, 1.0, 1.0)] * with_dense + kinds]


def _model_of_runs(
    fit: Fit, costs_of_kind: Callable, kind: tuple[float, float, float], budget: Budget, tokens: float | None
) -> Model:
    """Return a kind of model. `kind` is (E, k, G), and `costs_of_kind` is a function of k and G."""
    experts, k, granularity = kind
    k = k if k % 1 else int(k)
    costs, router = costs_of_kind(k, granularity)(experts), DENSE if experts == 1 else fit.name

    def point(N, D) -> dict[str, np.ndarray]:
        return law_point(fit.law, costs, kind, N, D)

    def with_experts(E: float) -> Model:
        return _model_of_runs(fit, costs_of_kind, (E, k, granularity), budget, tokens)

    says = {"flops": costs.counted, "embedding": costs.embedding is not None or costs.counted_embeddings > 0}
    says["tokens"] = says_tokens(fit.rows.runs.frame)
    name = f"{router}, " + (f"E = {experts:g}" if router == fit.name else f"by the law of {fit.name}")
    name += f", k = {k:g}" * (k != 1) + f", G = {granularity:g}" * (granularity != 1)
    return Model(
        name, router, fit.law.name, float(experts), k, None if router == DENSE else float(granularity),
        _option_of_runs(fit, costs, point, budget), _tokens(fit, costs, tokens), lambda N: N, costs.total, point,
        dict(zip(fit.law.columns, fit.rows.columns, strict=False)), tuple(key for key in says if says[key]), fit,
        with_experts if "num_experts" in fit.law.columns else None,
    )  # fmt: skip


def costs_of_kind(fit: Fit, k: float, granularity: float) -> Callable[[float], Costs]:
    """Return the function that gives the costs of models with E experts, by runs with this k and G and dense runs.

    A law of dense runs that was published for N with the embedding takes 6 N FLOPs for each token, as its paper does.
    """
    frame = fit.rows.runs.frame
    same_kind = (or_one(frame, "k") == k) & (or_one(frame, "granularity") == granularity)
    dense = (frame["router_type"] == DENSE).to_numpy()
    ignored = ["flops_per_step"] if fit.law.counts_embedding and dense.all() else []
    return costs_by_experts(frame[same_kind | dense].drop(columns=ignored, errors="ignore"))


def check_planned(law: Law, flops: float) -> None:
    """Raise `InputError` if a law has other columns than `PLANNED`: a budget of FLOPs does not give its best size."""
    if unknown := [name for name in law.columns if name not in PLANNED]:
        at = " ".join(f"{name}={f'{flops:g}' if name == 'flops' else '...'}" for name in law.columns)
        raise InputError(
            f"plan cannot choose sizes by the law {law.name}, which uses {unknown[0]}; compare the routers with "
            f"routelaws predict TABLE --law {law.name} --at {at}, or plan by a law of sizes, such as separable or "
            "hoffmann"
        )


def law_point(law: Law, costs: Costs, kind: tuple[float, float, float], N, D) -> dict[str, np.ndarray]:
    """Return the columns of a law (see `PLANNED`) at sizes N and tokens D, [n] each.

    Args:
        kind: E, k and G.
        N, D: numbers, or [n].
    """
    N, (experts, k, granularity) = np.atleast_1d(np.asarray(N, dtype=np.float64)), kind
    uncounted = 2 - costs.counted_embeddings
    known = {
        "dense_parameters": lambda: N,
        "num_experts": lambda: np.full(N.shape, float(experts)),
        "tokens": lambda: np.broadcast_to(D, N.shape),
        "teraflops": lambda: costs.flops(N) * 2048 / 1e12,
        "utilisation": lambda: costs.total(N) / costs.flops(N),
        "total_parameters": lambda: costs.total(N),
        "active_parameters": lambda: N + uncounted * costs.embedding(N) if uncounted else N,
        "granularity": lambda: np.full(N.shape, float(granularity)),
        "sparsity": lambda: np.full(N.shape, 1 - k / experts),
    }
    return {name: known[name]() for name in law.columns}


def _option_of_runs(fit: Fit, costs: Costs, point: Callable, budget: Budget) -> Option:
    if costs.total is None and math.isfinite(budget.memory):
        raise ValueError(
            "a limit of memory needs the column total_parameter_count, which is not known; add it, or the shape of the "
            "models (d_model, num_blocks, num_heads, k, routing_frequency), from which routelaws convert counts it"
        )
    if costs.cache is None and budget.cached_tokens > 0:
        raise ValueError("a key-value cache needs the columns num_blocks, num_heads and kqv_size, which are not known")

    def held(N):
        counted = costs.embedding is None or costs.counted_embeddings > 0
        embedding = 0.0 if counted else costs.embedding(N)
        return (1.0 * N if costs.total is None else costs.total(N)) + embedding

    sizes = fit.rows.runs.frame["dense_parameter_count"].to_numpy(dtype=np.float64)
    return Option(
        lambda N, D: np.asarray(fit.law.predict(fit.best, *point(N, D).values())),
        lambda N: TRAINING * costs.flops(N),
        costs.flops,
        held,
        costs.cache or (lambda N: 0.0 * N),
        float(sizes.min()),
        REACH * float(sizes.max()),
    )


def _tokens(fit: Fit, costs: Costs, tokens: float | None) -> float | Callable | None:
    """Return D of the models: the requested tokens or, if the law ignores tokens, the runs' tokens."""
    if "tokens" in fit.law.columns:
        return tokens
    if tokens is None and costs.tokens is None:
        raise ValueError("the training tokens of the runs are not known; add a column tokens or step, or give --tokens")
    if tokens is None:
        return costs.tokens
    of_runs = tokens_of_runs(fit.rows.runs.frame)
    of_runs = of_runs[of_runs > 0]
    if not of_runs.size:
        return tokens
    low, high = of_runs.min(), of_runs.max()
    if tokens > GIVEN_TOKENS * high or tokens * GIVEN_TOKENS < low or not costs.same_tokens:
        words = f"{high:.4g}" if costs.same_tokens else f"{low:.4g} to {high:.4g}, by size"
        words += "" if says_tokens(fit.rows.runs.frame) else " (524,288 per step, because the table has no tokens)"
        raise ValueError(
            f"{tokens:.4g} training tokens do not match the runs' {words}; the law {fit.law.name} ignores "
            "tokens, so it holds only for the tokens of the runs"
        )
    return tokens


# Printed coefficients.


class PrintedLaw(NamedTuple):
    """The models of one paper, by its law."""

    law: str
    source: str
    attested: str
    models: list[Model]


def printed_laws(budget: Budget, tokens: float | None) -> list[PrintedLaw]:
    """Return the laws; with a key-value cache, Hoffmann's law has no models, because it ignores the width."""
    dense, sparse, both = (
        laws[name] for laws, name in
        ((hoffmann.PUBLISHED, "besiroglu"), (fine_grained.PUBLISHED, "E=64"), (joint.PUBLISHED, "joint"))
    )  # fmt: skip
    kinds = [(expansion, float(G)) for expansion in (64.0, 16.0) for G in GRANULARITIES]
    of_experts = [_of_experts(*kind, tokens) for kind in kinds]
    of_joint = [_of_joint(float(count), tokens) for count in EXPERT_COUNTS]
    return [
        PrintedLaw("hoffmann", dense.source, dense.attested, [_dense(budget.cached_tokens > 0, tokens)]),
        PrintedLaw("fine-grained", sparse.source, sparse.attested, [*of_experts, _without_experts(tokens)]),
        PrintedLaw("joint", both.source, both.attested, of_joint),
    ]


def _printed(law: str, name: str, router: str, experts: float, granularity, option: Option, active, tokens) -> Model:
    """Return a kind of model of a paper that publishes only the ranges of its runs."""

    def point(size, D) -> dict:
        return {"active_parameters": active(size), "tokens": D, "granularity": granularity, "num_experts": experts}

    runs = {column: np.array(ends) for column, ends in RANGES[law].items() if column != "granularity" or granularity}
    k = 1 if granularity is None else int(granularity)
    return Model(
        name, router, law, experts, k, granularity, option, tokens, active, option.held, point, runs, COUNTS, None
    )  # fmt: skip


def _dense(with_cache: bool, tokens: float | None) -> Model:
    law = hoffmann.PUBLISHED["besiroglu"].coefficients

    def cache(N):
        if with_cache:
            raise ValueError("this law does not use the width, so the key-value cache cannot be computed")
        return 0.0 * N

    option = Option(
        lambda N, D: hoffmann.predict_hoffmann(N, D, law),
        lambda N: 6.0 * N, lambda N: 2.0 * N, lambda N: 1.0 * N, cache, 1e6, 1e14,
    )  # fmt: skip
    return _printed("hoffmann", "dense", DENSE, 1.0, None, option, lambda N: N, tokens)


def _in_width(loss: Callable, train: Callable, serve: Callable, held: Callable) -> Option:
    cache = partial(joint.joint_cache, cached_tokens=1.0)
    return Option(loss, train, serve, held, cache, LEAST_WIDTH, WIDEST, "width d")


def _of_experts(expansion: float, granularity: float, tokens: float | None) -> Model:
    law, per_block = fine_grained.PUBLISHED[f"E={expansion:g}"].coefficients, fine_grained.WIDTH_PER_BLOCK
    active = fine_grained.fine_grained_active

    def router(d):
        return expansion * granularity * d**2 / per_block

    def size(d):
        return fine_grained.fine_grained_parameters(d, expansion)

    option = _in_width(
        lambda d, D: fine_grained.predict_fine_grained(size(d), D, granularity, law),
        partial(fine_grained.fine_grained_flops, expansion=expansion, granularity=granularity),
        lambda d: 2.0 * active(d) + SERVED_ROUTER_FLOPS * router(d),
        lambda d: size(d) + router(d) + _embeddings(d),
    )
    name = f"E = {expansion:g}, G = {granularity:g}"
    return _printed("fine-grained", name, "Expert-Choice", expansion, granularity, option, active, tokens)


def _without_experts(tokens: float | None) -> Model:
    law, active = fine_grained.PUBLISHED["dense"].coefficients, fine_grained.fine_grained_active
    option = _in_width(
        lambda d, D: hoffmann.predict_hoffmann(active(d), D, law),
        lambda d: 6.0 * active(d),
        lambda d: 2.0 * active(d),
        lambda d: active(d) + _embeddings(d),
    )
    return _printed("fine-grained", "dense", DENSE, 1.0, None, option, active, tokens)


def _embeddings(d: np.ndarray) -> np.ndarray:
    return 2.0 * joint.VOCABULARY * np.asarray(d, dtype=np.float64)


def _of_joint(experts: float, tokens: float | None) -> Model:
    law, active = joint.PUBLISHED["joint"].coefficients, joint.joint_active
    option = _in_width(
        lambda d, D: joint.predict_joint(active(d), D, experts, law),
        lambda d: 6.0 * active(d),
        lambda d: 2.0 * active(d),
        lambda d: joint.joint_total(d, experts),
    )
    router = DENSE if experts == 1 else "Top-K"
    model = _printed("joint", f"E = {experts:g}", router, experts, None, option, active, tokens)
    return model._replace(with_experts=lambda E: _of_joint(E, tokens))
