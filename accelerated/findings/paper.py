"""Printed results of Clark et al. 2022 (arXiv 2202.01169), their released runs, and errors in some of these runs."""

from typing import NamedTuple

from routelaws.reference.laws.routed import PRINTED as PRINTED_COEFFICIENTS
from routelaws.reference.laws.routed import RoutedCoefficients


class Printed(NamedTuple):
    """The printed constants of one router."""

    coefficients: RoutedCoefficients  # Table 3
    cutoff: float  # N_cutoff, parameters


PRINTED = {
    router: Printed(PRINTED_COEFFICIENTS[router], cutoff)
    for router, cutoff in (("S-Base", 937e9), ("RL-R", 85e9), ("Hash", 83e9))
}
"""Table 3 of the paper and the cut-offs in its text, by router_type."""

DENSE_ALPHA, DENSE_N_C = 0.078, 3.568e13
"""The dense power law of the paper, L = (N_c/N)^alpha; N_c in parameters."""

NAMES = {"S-Base": "S-BASE", "RL-R": "RL-R", "Hash": "HASH"}
"""Routers as the paper spells them, by router_type."""


class Suspect(NamedTuple):
    """A released run with an impossible label, or with two different losses in the table."""

    hyper_id: int
    router: str
    experts: int
    frequency: float
    loss: float  # validation loss of the last evaluation, nats per token, four decimals
    reason: str


_BETTER = "the loss is below the loss of a run that routes twice as many blocks"
_WORSE = "the loss is above the loss of a run that routes half as many blocks"
_TWICE = "another run has the same configuration and seed, and another loss"
SUSPECTS = (
    Suspect(47, "S-Base", 64, 0.25, 2.7391, f"{_TWICE}; {_WORSE} (54, 66)"),
    Suspect(49, "S-Base", 256, 0.25, 2.6283, f"{_TWICE}; {_WORSE} (55)"),
    Suspect(54, "S-Base", 64, 0.125, 2.6861, f"{_TWICE}; {_BETTER} (47, 56)"),
    Suspect(55, "S-Base", 256, 0.125, 2.5696, f"{_BETTER} (49, 57)"),
    Suspect(56, "S-Base", 64, 0.25, 2.7531, f"{_TWICE}; {_WORSE} (54, 66)"),
    Suspect(57, "S-Base", 256, 0.25, 2.6424, f"{_TWICE}; {_WORSE} (55)"),
    Suspect(66, "S-Base", 64, 0.125, 2.6573, f"{_TWICE}; {_BETTER} (47, 56)"),
    Suspect(67, "S-Base", 256, 1.0, 2.5554, f"{_TWICE}; {_WORSE} (21)"),
)
"""Wrong rows of S-BASE at 25M, excluded from the comparison of routing frequencies; no (N, E) law uses them."""

DENSE_LOSSES = {16_527_360: 3.1620, 27_279_360: 3.0284, 57_369_600: 2.8486, 368_123_904: 2.4633, 1_308_819_456: 2.2420}
"""{N: validation loss} of the released dense runs of seed 42, four decimals; the losses identify these runs."""
