"""Learning-rate schedules: the rate of each training step as a multiple of the peak rate.

Every schedule begins with W steps of warm-up, in which the rate rises in equal steps to its peak, 1. With S steps,
counted from s = 0, the rate is then

    cosine     F + (1 - F) (1 + cos(pi x)) / 2      x = (s - W) / (S - W)          F = 0.1, the final rate
    constant   1
    wsd        1 while s < S - D, then f(x)         x = (s - (S - D)) / D          D steps of decay
               f(x) = 1 - x (linear), or 1 - sqrt(x) (sqrt)

Sources: cosine, Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5. Warm-up, stable, decay (wsd): Hu et al. 2024
(MiniCPM), arXiv 2404.06395, section 4, with an exponential decay. The two shapes are from Hägele et al. 2024, arXiv
2405.18392, section 3. Hägele et al. count steps in the same way: in the linear shape the last step has the rate 1/D,
not 0.

The cosine depends on S after the warm-up, so each budget needs a separate run. The rate of wsd does not depend on S
before step S - D, so runs of several budgets can share these steps.
"""

import numpy as np

SCHEDULES = ("cosine", "wsd", "constant")
"""The rates after the warm-up."""

SHAPES = ("linear", "sqrt")
"""The shapes of the decay of wsd."""

FINAL_RATE = 0.1
"""The cosine ends at this multiple of the peak; our choice."""


def decay_start(steps: int, decay: float) -> int:
    """Return the first step of the decay of the schedule wsd, S - D. D is the share `decay` of the steps, rounded.

    Example:
        >>> decay_start(400, 0.2), decay_start(400, 0)
        (320, 400)
    """
    return steps - round(decay * steps)


def learning_rates(
    schedule: str, steps: int, warmup_steps: int, decay: float = 0.2, shape: str = "linear"
) -> np.ndarray:
    """Return the learning rate of each step divided by the peak rate.

    Args:
        schedule: one of SCHEDULES.
        steps: S, 1 or more.
        warmup_steps: W; with W = 0 or 1 the first step has the peak rate.
        decay: share of the steps in which wsd decays, 0 to 1; other schedules ignore it.
        shape: one of SHAPES, for wsd; other schedules ignore it.

    Returns:
        [S] float64, above 0 and at most 1.

    Raises:
        ValueError: an unknown schedule or shape.

    Example:
        >>> learning_rates("wsd", 8, 2, decay=0.5).tolist()
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
        >>> learning_rates("wsd", 8, 2, decay=0.5, shape="sqrt").tolist()[4:6]
        [1.0, 0.5]
        >>> learning_rates("cosine", 4, 2).round(3).tolist()
        [0.5, 1.0, 1.0, 0.55]
    """
    if schedule not in SCHEDULES or shape not in SHAPES:
        raise ValueError(
            f"schedule is {schedule!r}, shape {shape!r}; allowed: {', '.join(SCHEDULES)}; {', '.join(SHAPES)}"
        )
    return np.array([_rate(s, schedule, steps, warmup_steps, decay, shape) for s in range(steps)])


def _rate(s: int, schedule: str, steps: int, warmup_steps: int, decay: float, shape: str) -> float:
    if s < warmup_steps:
        return (s + 1) / warmup_steps
    start = decay_start(steps, decay)
    if schedule == "cosine":
        x = (s - warmup_steps) / (steps - warmup_steps)
        return FINAL_RATE + (1 - FINAL_RATE) * (1 + np.cos(np.pi * x)) / 2
    if schedule == "wsd" and s >= start:
        x = (s - start) / (steps - start)
        return 1 - x if shape == "linear" else 1 - np.sqrt(x)
    return 1.0
