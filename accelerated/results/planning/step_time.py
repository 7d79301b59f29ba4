"""The seconds of a training step, by a line in four costs of a model that is fitted to timed steps (our choice).

A step of T tokens takes

    t = a + b F + c W + Σ_r h_r A      seconds

    F  FLOPs of the step, three times the forward pass
    W  parameters in memory, embeddings included; the optimizer reads and writes each of them
    A  T L d: the numbers that the L blocks of width d pass on. h_dense counts for each model, and the h of a router for
       its models, for the work that a router adds

No coefficient is negative, and all steps have the same T: a fuller batch is another machine. Dense and routed models of
equal FLOPs differ in W and A, so a mixture that is better per FLOP can be slower per second.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...tables.schema import DENSE


class StepTime(NamedTuple):
    """The coefficients of a step.

    Attributes:
        fixed: a, seconds
        flop: b, seconds per FLOP
        parameter: c, seconds per parameter in memory
        activation: {router: h_r}, seconds per number; "Dense" counts for each model
    """

    fixed: float
    flop: float
    parameter: float
    activation: Mapping[str, float]

    def seconds(self, router: str, flops, parameters, activations):
        """Return the seconds of steps.

        Args:
            router: "Dense", or a router of the fit.
            flops, parameters, activations: F, W and A, numbers or [n].

        Raises:
            InputError: no timed step had this router.

        Example:
            >>> step = StepTime(0.5, 1e-9, 0.0, {"Dense": 1e-6, "Hash": 2e-6})
            >>> round(float(step.seconds("Hash", 1e9, 1e6, 1e5)), 6)
            1.8
        """
        if router not in self.activation:
            raise InputError(f"no timed step has the router {router}; known: {', '.join(self.activation)}")
        each = self.activation[DENSE] + (self.activation[router] if router != DENSE else 0.0)
        return self.fixed + self.flop * flops + self.parameter * parameters + each * activations


def fit_step_time(routers: Sequence[str], flops, parameters, activations, seconds) -> StepTime:
    """Fit the coefficients by least squares of relative errors, none negative.

    Args:
        routers: [n], "Dense" or a router.
        flops, parameters, activations: [n], F, W and A.
        seconds: [n], above 0.

    Raises:
        InputError: there are fewer steps than coefficients, or no dense step.

    Example:
        Steps of 1 s, of which each FLOP takes 1e-9 s and each number 1e-6 s, in routed models 3e-6 s:

        >>> routers, flops, numbers = ["Dense"] * 3 + ["Hash"] * 2, np.array([1, 2, 4, 1, 3]) * 1e9, np.arange(5) * 1e6
        >>> seconds = 1 + 1e-9 * flops + np.array([1, 1, 1, 3, 3]) * 1e-6 * numbers
        >>> step = fit_step_time(routers, flops, np.array([5.0, 7, 6, 9, 8]), numbers, seconds)
        >>> round(step.fixed, 6), round(step.flop * 1e9, 6), {r: round(h * 1e6, 6) for r, h in step.activation.items()}
        (1.0, 1.0, {'Dense': 1.0, 'Hash': 2.0})
    """
    from scipy.optimize import nnls  # here, because it loads for .3 s, and most plans have no times

    seconds = np.asarray(seconds, dtype=np.float64)
    kinds = [DENSE, *sorted(set(routers) - {DENSE})]
    if DENSE not in routers or seconds.size < 3 + len(kinds):
        raise InputError(
            f"{seconds.size} timed steps, {list(routers).count(DENSE)} of them dense; needed: one dense step, and at "
            f"least {3 + len(kinds)} steps for {3 + len(kinds)} coefficients"
        )
    own = [np.where([kind in (DENSE, router) for router in routers], activations, 0.0) for kind in kinds]
    terms = np.stack([np.ones(seconds.size), flops, parameters, *own], axis=1) / seconds[:, None]
    scale = terms.max(axis=0)  # F is 10^9 times the constant
    found = nnls(terms / scale, np.ones(seconds.size))[0] / scale
    return StepTime(*map(float, found[:3]), dict(zip(kinds, map(float, found[3:]), strict=True)))


def left_out_errors(routers: Sequence[str], flops, parameters, activations, seconds) -> np.ndarray:
    """Return the relative error of each step's time by the steps of other models, [n]; NaN if they do not determine it.

    Args: as in `fit_step_time`. Steps of one router and equal costs are of one model.
    """
    routers, seconds = np.asarray(routers), np.asarray(seconds, dtype=np.float64)
    costs = np.stack([flops, parameters, activations]).astype(np.float64)
    errors = np.full(seconds.size, np.nan)
    for i in range(seconds.size):
        others = (routers != routers[i]) | (costs != costs[:, [i]]).any(axis=0)
        try:
            step = fit_step_time(routers[others].tolist(), *costs[:, others], seconds[others])
            errors[i] = step.seconds(str(routers[i]), *costs[:, i]) / seconds[i] - 1
        except InputError:  # the only model of a router, or too few steps
            continue
    return errors
