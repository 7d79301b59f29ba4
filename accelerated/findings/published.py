"""The laws whose coefficients are printed in papers, as options of a plan: what each costs, and where its runs lay.

    hoffmann       6 N FLOPs of training a token and 2 N of inference, whatever the shape of the model
    fine-grained   the FLOPs of `fine_grained.py`; models of E = 64, of E = 16 and dense, each by its own coefficients
    joint          6 N and 2 N FLOPs, N with embeddings

Parameters in memory are all of a model: experts, routers, and the embeddings on both ends where the law fixes the
width (V = 50,257, the tokenizer of both papers; our choice for the fine-grained models, whose N leaves them out).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..laws import fine_grained, hoffmann, joint
from ..laws.choosing import Option
from ..laws.planning import EXPERT_COUNTS, GRANULARITIES, LEAST_WIDTH
from ..tables.schema import DENSE

WIDEST = 1e6
"""The widest model that is looked at."""

SERVED_ROUTER_FLOPS = 6.0
"""Of the 14 FLOPs of training for each router parameter, those of a forward pass: matrix product, dispatch, combine."""

RANGES = {
    "hoffmann": {"active_parameters": (5.7e7, 1.62e10), "tokens": (8.2e8, 3.2e11)},
    "fine-grained": {"active_parameters": (3e6, 8.5e7), "tokens": (1.6e10, 1.3e11), "granularity": (1.0, 16.0)},
    "joint": {"active_parameters": (2.9e7, 2.7e9), "num_experts": (1.0, 32.0)},
}
"""Where the runs lay that the coefficients were fitted to: from the 240 points themselves, and from the runs that the
two papers list. The tokens of the joint law's runs are not at hand."""


class PrintedOption(NamedTuple):
    """An option of a law with printed coefficients."""

    name: str
    router: str
    num_experts: float
    granularity: float | None  # None where the law has none
    option: Option
    active: Callable  # size -> N


class Printed(NamedTuple):
    """The options of one paper."""

    law: str
    source: str
    attested: str
    ranges: dict[str, tuple[float, float]]
    options: list[PrintedOption]
    embedding: bool  # whether memory counts the embeddings


def printed_laws(with_cache: bool = False) -> list[Printed]:
    """Return the laws; Hoffmann's has no options where a key-value cache has to fit, since it knows of no width."""
    dense, sparse, both = (
        laws[name] for laws, name in
        ((hoffmann.PUBLISHED, "besiroglu"), (fine_grained.PUBLISHED, "E=64"), (joint.PUBLISHED, "joint"))
    )  # fmt: skip
    return [
        Printed("hoffmann", dense.source, dense.attested, RANGES["hoffmann"], _dense(with_cache), True),
        Printed("fine-grained", sparse.source, sparse.attested, RANGES["fine-grained"], _fine_grained(), True),
        Printed("joint", both.source, both.attested, RANGES["joint"], _joint(), True),
    ]


def _dense(with_cache: bool) -> list[PrintedOption]:
    law = hoffmann.PUBLISHED["besiroglu"].coefficients

    def cache(N):
        if with_cache:
            raise ValueError("this law knows of no width, so that the key-value cache cannot be counted")
        return 0.0 * N

    option = Option(
        lambda N, D: hoffmann.predict_hoffmann(N, D, law),
        lambda N: 6.0 * N, lambda N: 2.0 * N, lambda N: 1.0 * N, cache, 1e6, 1e14,
    )  # fmt: skip
    return [PrintedOption("dense", DENSE, 1.0, None, option, lambda N: N)]


def _fine_grained() -> list[PrintedOption]:
    cells = [(expansion, float(G)) for expansion in (64.0, 16.0) for G in GRANULARITIES]
    return [*(_of_experts(*cell) for cell in cells), _without_experts()]


def _of_experts(expansion: float, granularity: float) -> PrintedOption:
    """Return the option of the fine-grained law with E = `expansion` and G = `granularity`, in terms of the width d."""
    law, per_block = fine_grained.PUBLISHED[f"E={expansion:g}"].coefficients, fine_grained.WIDTH_PER_BLOCK

    def router(d):
        return expansion * granularity * d**2 / per_block

    def size(d):
        return fine_grained.fine_grained_parameters(d, expansion)

    option = Option(
        lambda d, D: fine_grained.predict_fine_grained(size(d), D, granularity, law),
        partial(fine_grained.fine_grained_flops, expansion=expansion, granularity=granularity),
        lambda d: 2.0 * fine_grained.fine_grained_active(d) + SERVED_ROUTER_FLOPS * router(d),
        lambda d: size(d) + router(d) + _embeddings(d),
        partial(joint.joint_cache, cached_tokens=1.0),
        LEAST_WIDTH,
        WIDEST,
        "width d",
    )
    name = f"E = {expansion:g}, G = {granularity:g}"
    return PrintedOption(name, "Expert-Choice", expansion, granularity, option, fine_grained.fine_grained_active)


def _without_experts() -> PrintedOption:
    law, active = fine_grained.PUBLISHED["dense"].coefficients, fine_grained.fine_grained_active
    option = Option(
        lambda d, D: hoffmann.predict_hoffmann(active(d), D, law),
        lambda d: 6.0 * active(d),
        lambda d: 2.0 * active(d),
        lambda d: active(d) + _embeddings(d),
        partial(joint.joint_cache, cached_tokens=1.0),
        LEAST_WIDTH,
        WIDEST,
        "width d",
    )
    return PrintedOption("dense", DENSE, 1.0, None, option, active)


def _embeddings(d: np.ndarray) -> np.ndarray:
    return 2.0 * joint.VOCABULARY * np.asarray(d, dtype=np.float64)


def _joint() -> list[PrintedOption]:
    return [_of_joint(float(count)) for count in EXPERT_COUNTS]


def _of_joint(experts: float) -> PrintedOption:
    law, active = joint.PUBLISHED["joint"].coefficients, joint.joint_active
    option = Option(
        lambda d, D: joint.predict_joint(active(d), D, experts, law),
        lambda d: 6.0 * active(d),
        lambda d: 2.0 * active(d),
        lambda d: joint.joint_total(d, experts),
        partial(joint.joint_cache, cached_tokens=1.0),
        LEAST_WIDTH,
        WIDEST,
        "width d",
    )
    return PrintedOption(f"E = {experts:g}", DENSE if experts == 1 else "Top-K", experts, None, option, active)
