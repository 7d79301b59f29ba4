"""Every tolerance of the suite, with its reason.

No other file of `conformance/` writes a tolerance as a number or uses a default tolerance. `test_mirror.py` tests this.

A bound is a limit times a scale. The test supplies the scale: a condition number, a sum of absolute values, or 1.
`check` raises if the error exceeds the bound. It records the *share*, which is error / bound. At the end of a run,
pytest prints the largest shares. If all shares are far below 1, the bound is too loose to find errors.
"""

from typing import NamedTuple

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half the distance from 1 to the next number, by precision."""


class Bound(NamedTuple):
    """An upper limit on an error.

    Attributes:
        limit: the largest allowed error, in units.
        unit: the unit of the error, as text; a test supplies its value.
        why: the source of the error; "" if the unit explains it.
        measured: the largest error in a test, in the same unit; "" if it was not measured.
    """

    limit: float
    unit: str
    why: str = ""
    measured: str = ""

    @property
    def reason(self) -> str:
        """Return the unit, the source of the error, and the largest measured error, as text for messages."""
        parts = [f"unit: {self.unit}", self.why, self.measured and f"largest measured error: {self.measured}"]
        return "; ".join(part for part in parts if part)


BOUNDS: dict[str, Bound] = {}

# Laws.
BOUNDS["laws.routed.value"] = Bound(
    2e-14, "relative error", "ten to the power of a sum of four terms below 10 loses about 100 u"
)
BOUNDS["laws.routed.parameter_count"] = Bound(
    2e-13, "relative error", "the error of laws.routed.value is divided by a dense slope of at least 0.05"
)
BOUNDS["laws.routed.experts"] = Bound(5e-15, "error per unit of dE/dlog10 L", "a log10 loss is rounded", "1.0e-15")
BOUNDS["laws.routed.size"] = Bound(1e-14, "relative error per 1/|slope|", "a log10 loss is rounded", "1.2e-15")
BOUNDS["laws.rmsle"] = Bound(
    1e-15, "relative error", "the square root of an objective or of a mean rounds a few times, by u each time", "0"
)
BOUNDS["laws.routed.paper"] = Bound(5e-3, "relative error", "the paper prints three digits")
BOUNDS["laws.routed.cutoff"] = Bound(6e-3, "relative error", "we print our refits to two or three digits")
BOUNDS["laws.fitting.objective"] = Bound(
    1e-12, "relative error", "the search stops below 1e-13 and treats two pieces this close as a tie", "2e-13"
)
BOUNDS["laws.fitting.quick"] = Bound(
    1e-3, "relative error", "the quick search stops sooner, in flat valleys of the objective", "3.5e-4"
)
BOUNDS["laws.fitting.turn"] = Bound(
    1e-10, "share of the largest entry", "derivatives are least exact where E_max hardly matters", "2.8e-11"
)
BOUNDS["laws.kernels.sum"] = Bound(
    1e-12, "share of the largest entry", "a dozen products are summed in another order", "6e-15"
)
BOUNDS["laws.fitting.prediction"] = Bound(1e-9, "difference of log10 losses per unit of rmsle / 1e-3", measured="3e-10")
BOUNDS["laws.fitting.exact_rmsle"] = Bound(
    2e-10, "error of log10", "a fit without noise is known to twice the resolution that decides between pieces"
)
BOUNDS["laws.fitting.exact_coefficient"] = Bound(
    1e-6, "relative error", "the rows have no noise, and an effect of 1e-3 divides the resolution of the loss"
)
BOUNDS["laws.fitting.same_law"] = Bound(
    1e-14, "error of log10 per unit of |b|", "two forms of one law round differently, by up to 50 u"
)
BOUNDS["laws.fitting.covariance"] = Bound(
    1e-6, "share of the two standard errors", "the parameters agree to 1e-7 of their errors"
)
BOUNDS["laws.fitting.released_objective"] = Bound(1e-9, "relative error", "the stored optima have ten digits")
BOUNDS["laws.huber.objective"] = Bound(
    1e-12, "relative error", "the sum is flat at its minimum, so both searches reach the same value", "2e-13"
)
BOUNDS["laws.huber.sum"] = Bound(
    5e-12, "relative error", "losses are rounded at 1e-16, and their residuals are only 1e-4", "1e-13"
)
BOUNDS["laws.huber.rmsle"] = Bound(1e-12, "relative error", "the residuals are rounded as in laws.huber.sum", "1.2e-13")
BOUNDS["laws.huber.certificate"] = Bound(
    1e-6, "relative error", "about 2e-8; the error is linear in the remaining slopes, but the sum is quadratic"
)
BOUNDS["laws.huber.scan"] = Bound(5e-12, "relative error, one-sided", "no scanned law may beat the fit", "8e-14")
BOUNDS["laws.huber.prediction"] = Bound(
    1e-5, "share of the rmsle", "flat valleys hide changes up to the square root of 1e-12", "2e-6"
)
BOUNDS["laws.huber.covariance"] = Bound(
    5e-4, "share of the two standard errors", "the two searches end at different points of a flat valley", "8e-5"
)
BOUNDS["laws.choosing.loss"] = Bound(
    1e-12, "relative error", "two searches end at different points of one flat minimum", "8e-14"
)
BOUNDS["laws.choosing.cost"] = Bound(
    2e-12, "relative error", "a plan reaches an edge within 1e-12, and its cost multiplies a few numbers"
)
BOUNDS["laws.choosing.resampled"] = Bound(
    5e-8, "error of log10", "two searches of one fit end at different points of a flat valley", "5e-9"
)
BOUNDS["laws.next_run.width"] = Bound(
    5e-9, "relative error", "a width has two ends, each as exact as laws.uncertainty.end", "1.2e-9"
)
BOUNDS["laws.uncertainty.quantile"] = Bound(
    1e-10, "relative error", "the test integrates at 200 Gauss-Legendre points and bisects to the last bit"
)
BOUNDS["laws.uncertainty.end"] = Bound(
    1e-9, "share of the interval's length", "two searches find one end, each within 1e-9 in t and w"
)
BOUNDS["laws.uncertainty.value"] = Bound(
    2e-5, "share of the interval's length, or error of log10", "two optima in a flat valley differ by 2e-6"
)
BOUNDS["laws.uncertainty.edge"] = Bound(
    2e-8, "share of 1/E and its length", "the error is linear in errors of 1e-9 in t and w", "6e-9"
)
BOUNDS["laws.uncertainty.outside"] = Bound(
    1e-9, "share of the value, which counts as at least 1", "the test rounds its own laws"
)
BOUNDS["laws.uncertainty.loops"] = Bound(
    1e-10, "relative error, or absolute error below 1", "other formulas give the same numbers"
)
BOUNDS["laws.uncertainty.turn"] = Bound(
    5e-9, "share of the larger derivative", "the test divides rounded ends by its steps", "9e-10"
)
BOUNDS["laws.uncertainty.reached"] = Bound(
    1e-8, "relative error of the residual sum", "the search leaves 1e-11 of an end", "2e-14"
)
BOUNDS["laws.uncertainty.attained"] = Bound(
    5e-3, "relative error of the residual sum", "the test scans 161 x 161 shapes, so its error is a spacing squared"
)
BOUNDS["laws.held_out.closed"] = Bound(
    3e-13, "share of 1 + the largest log10 error", "the residual is divided by 1 - h", "3e-14"
)
BOUNDS["laws.held_out.searched"] = Bound(
    1e-8, "share of 1 + the largest log10 error", "two searches end at different points of a flat valley"
)
BOUNDS["laws.held_out.paired"] = Bound(1e-12, "share of the squared errors", "the test sums up to 60 of them")
BOUNDS["laws.resampling.value"] = Bound(
    2e-5, "share of the spread over resamples", "two optima differ as in laws.uncertainty.value"
)
BOUNDS["laws.intervals.end"] = Bound(
    1e-10, "share of half an interval", "a scatter of 1e-4 divides the rounding", "2.1e-11"
)
BOUNDS["laws.intervals.rejected"] = Bound(
    3e-11, "relative error", "Student's t at an end divides the rounding by the scatter", "5e-12"
)
BOUNDS["laws.intervals.exact"] = Bound(
    1e-12, "absolute error, or error of log10", "the rows have no noise, and N_cutoff has the largest error", "2.2e-13"
)
BOUNDS["laws.intervals.design"] = Bound(
    1e-14, "absolute error", "the entries are logarithms up to 9 and a product of two of them"
)
BOUNDS["laws.intervals.value"] = Bound(1e-11, "relative error", "two searches find the same optimum", "1e-13")
BOUNDS["laws.intervals.span"] = Bound(
    1e-13, "error of log10", "a fit of four columns leaves a rounded residual", "1.1e-15"
)
BOUNDS["laws.intervals.jackknife"] = Bound(
    5e-10, "share of half an interval", "the folds are nearly equal, so digits cancel", "5.8e-11"
)
BOUNDS["laws.intervals.hand"] = Bound(1e-9, "absolute error", "a quantile has a relative error of 1e-10", "1.9e-10")
BOUNDS["laws.intervals.inside"] = Bound(1e-8, "relative error", "two searches find ends that may coincide", "0")
BOUNDS["laws.coverage.quiet"] = Bound(
    3e-3, "share of half an interval", "the test omits the squares of errors of 1e-6", "8.6e-4"
)
BOUNDS["laws.coverage.covariance"] = Bound(
    2e-12, "relative error", "both the test and the code solve normal equations", "5.5e-13"
)

BOUNDS["laws.dense.objective"] = Bound(
    1e-12, "relative error per 1e-3/rmsle", "the residual divides the rounding", "1.6e-13"
)
BOUNDS["laws.dense.prediction"] = Bound(
    2e-14, "error of log10 (from coefficients: per unit of log10 N_c)", measured="3.7e-15"
)
BOUNDS["laws.dense.covariance"] = Bound(
    1e-12, "share of the standard errors", "the error is as large as in laws.dense.objective", "1.6e-13"
)
BOUNDS["laws.dense.rmsle"] = Bound(1e-15, "error of log10", "each residual rounds twice", "1.4e-16")
BOUNDS["laws.log_linear.cutoff"] = Bound(
    2e-14, "relative error", "a power of ten with an exponent up to 30 loses 100 u", "0"
)
BOUNDS["laws.log_linear.objective"] = Bound(
    1e-12, "relative error per 1e-3/rmsle", "the residual divides the rounding", "8e-14"
)
BOUNDS["laws.log_linear.printed"] = Bound(
    5e-5, "absolute error", "the paper prints four decimals, so the error is half a unit of the fourth"
)
BOUNDS["laws.utilisation.value"] = Bound(
    2e-14, "relative error", "the error is as large as in laws.routed.value", "4.6e-15"
)
BOUNDS["laws.utilisation.same_law"] = Bound(
    2e-13, "error of log10", "two forms of one law round differently, with B_start up to 1e3", "2.8e-14"
)
BOUNDS["laws.utilisation.objective"] = Bound(
    1e-12, "relative error", "two searches end at different points, with residuals of 3e-4", "1.4e-13"
)
BOUNDS["laws.catalogue.rmsle"] = Bound(1e-15, "error of log10", "each residual rounds twice", "5.5e-17")
BOUNDS["laws.additive.value"] = Bound(
    5e-14, "relative error", "one side takes powers of numbers up to 1e12 by logarithms", "8e-15"
)
BOUNDS["laws.additive.exact_sum"] = Bound(
    1e-30, "sum per row", "the rows have no noise, so residuals are rounding errors", "9e-33"
)
BOUNDS["laws.additive.exact_loss"] = Bound(
    1e-14, "error of ln L", "the rows have no noise, so a loss and its law differ by rounding", "9e-16"
)
BOUNDS["laws.additive.exact_coefficient"] = Bound(
    1e-9, "relative error", "ln L has an error of 1e-15, and the effect of a coefficient is 1e-6", "2.8e-13"
)
BOUNDS["laws.additive.sum"] = Bound(
    1e-11, "relative error", "losses are rounded at 1e-16, and residuals are 1e-3", "1.7e-12"
)
BOUNDS["laws.additive.least"] = Bound(1e-12, "relative error, one-sided", "the sum is flat at its minimum", "0")
BOUNDS["laws.additive.objective"] = Bound(1e-12, "relative error", "two searches find the same minimum", "1e-14")
BOUNDS["laws.additive.prediction"] = Bound(
    3e-6, "share of the rmsle", "flat valleys hide changes up to the square root of 1e-12", "4.2e-7"
)
BOUNDS["laws.additive.covariance"] = Bound(
    1e-5, "share of the two standard errors", "two searches end at different points of a flat valley", "1.1e-6"
)
BOUNDS["laws.additive.same_law"] = Bound(
    1e-6, "relative error", "the sums agree to 1e-14, but flat valleys separate the laws", "1.9e-8"
)
BOUNDS["laws.additive.profile"] = Bound(
    1e-7, "relative error of the sum", "both searches stop at 1e-9; our search stops at 1e-9 of an interval", "1.5e-9"
)
BOUNDS["laws.additive.end"] = Bound(
    1e-6, "share of the interval's length, or error of ln", "bisection stops at 1e-9, and valleys are flat", "7e-9"
)
BOUNDS["laws.floored.value"] = Bound(
    1e-12, "relative error", "two formulas of one law round differently, with ln N up to 28", "1.3e-15"
)
BOUNDS["laws.floored.derivative"] = Bound(
    1e-9, "error of a slope of ln L", "central differences over 2^-19 round at 1e-16/2^-20", "2.1e-10"
)
BOUNDS["laws.floored.exact_rmsle"] = Bound(1e-14, "log10", "the rows have no noise", "7.8e-17")
BOUNDS["laws.floored.exact_coefficient"] = Bound(
    1e-11, "relative error", "the rows have no noise, but the level and the floor trade", "1.9e-14"
)
BOUNDS["laws.floored.same_law"] = Bound(
    1e-6, "relative error", "two searches end at different points of a flat valley", "4.5e-9"
)
BOUNDS["laws.hoffmann.digits"] = Bound(
    3e-5, "relative error", "numbers above 1.8 have an error of half a unit in the fifth digit", "2.3e-5"
)
BOUNDS["laws.hoffmann.printed"] = Bound(5e-5, "relative error", "the paper rounds to five digits", "4.2e-5")
BOUNDS["laws.planning.active"] = Bound(
    1e-6, "relative error", "bisection stops at 1e-7 of the logarithm of the FLOPs", "3e-7"
)
BOUNDS["laws.planning.fine_grained"] = Bound(
    0.045, "relative error", "the paper rounds its printed coefficients", "0.0443"
)
BOUNDS["laws.planning.fine_grained_loss"] = Bound(
    0.0145, "error in nats", "the paper rounds its printed coefficients", "0.0138"
)
BOUNDS["laws.planning.joint_size"] = Bound(
    0.03, "relative error", "the paper rounds its coefficients and sizes", "0.021"
)
BOUNDS["laws.planning.joint_tokens"] = Bound(
    0.015, "relative error", "the paper rounds, as in laws.planning.joint_size", "0.011"
)
BOUNDS["laws.planning.per_experts"] = Bound(3e-3, "relative error", "the coefficients have four digits", "0.0026")
BOUNDS["laws.planning.best_experts"] = Bound(
    8e-3, "error in nats", "the loss is flat at the best E, and the coefficients are rounded", "0.0067"
)
BOUNDS["laws.planning.spent"] = Bound(1e-12, "relative error", "the formula takes a few products and powers", "1e-14")
BOUNDS["laws.planning.inverse"] = Bound(1e-5, "relative error", "a scan of a flat loss finds the size", "1.6e-7")
BOUNDS["laws.planning.location"] = Bound(
    1e-6, "error of ln", "two searches of a flat minimum agree to the square root of 1e-16", "2.6e-7"
)
BOUNDS["laws.catalogue.linear"] = Bound(1e-14, "error of log10", "the test applies a linear map three times", "1.7e-16")

BOUNDS["laws.leverage.budget"] = Bound(2e-3, "relative error", "the printed factors have four to six digits")
BOUNDS["laws.leverage.interval"] = Bound(
    5e-8, "relative error", "A_start errs by the square root of the rounding of the sum", "4e-9"
)
BOUNDS["laws.leverage.covariance"] = Bound(
    3e-6, "share of the two standard errors", "the error is as large as in laws.leverage.interval", "1e-7"
)
BOUNDS["laws.sparsity.budget"] = Bound(
    2e-15, "relative error", "the formula takes three products and a quotient", "3e-16"
)
BOUNDS["laws.sparsity.objective"] = Bound(
    1e-11, "relative error", "the search ends when a step lowers the sum by 1e-14 of the sum", "4e-14"
)
BOUNDS["laws.sparsity.rmsle"] = Bound(
    1e-8, "relative error", "the fit minimises Huber's sum instead of this error", "3e-14"
)
BOUNDS["laws.compute.published"] = Bound(
    0.02, "relative error", "our refit has only the six rounded losses of the line"
)
BOUNDS["laws.compute.speedup"] = Bound(
    5e-14, "relative error", "the formula raises a ratio to 1/alpha, and alpha is at least 0.09", "5e-15"
)
BOUNDS["laws.compute.orthogonal"] = Bound(1e-13, "error per unit of the column", "the test sums six residuals", "1e-14")
BOUNDS["laws.compute.exact"] = Bound(1e-12, "relative error", "A extends a line over 40 units of ln C", "2e-13")
BOUNDS["laws.compute.interval"] = Bound(
    5e-12, "error in nats", "the error is as large as in laws.compute.exact", "7e-13"
)
BOUNDS["laws.downstream.pass_at_k"] = Bound(
    5e-15, "absolute error", "the formula multiplies up to 200 factors", "6e-17"
)
BOUNDS["laws.downstream.objective"] = Bound(
    1e-11, "relative error", "the search ends when a step lowers the sum by 1e-14 of the sum", "2e-13"
)
BOUNDS["laws.downstream.prediction"] = Bound(
    1e-9, "error of the accuracy", "the error is linear in the remaining step", "5e-11"
)
BOUNDS["laws.downstream.exact_line"] = Bound(
    1e-12, "error of ln A and alpha", "the fit extends a line over 45 units of ln C", "4e-14"
)
BOUNDS["laws.downstream.exact_repeated"] = Bound(
    1e-12, "absolute error", "the fit extends four columns over 45 units of ln C", "3e-14"
)
BOUNDS["laws.accuracy.exact"] = Bound(
    1e-7,
    "error of the accuracy, or of a logarithm",
    "the rows have no noise, and the search ends where the sum is flat",
)
BOUNDS["laws.accuracy.coefficients"] = Bound(
    1e-6, "relative error", "the rows have no noise, and A_start errs by the square root of the rounding of the sum"
)
BOUNDS["laws.two_stage.value"] = Bound(
    4e-15, "error relative to 1", "the formula takes a logistic function and a power", "6e-16"
)
BOUNDS["laws.two_stage.rmse"] = Bound(
    1e-10, "relative error", "the search ends when a step lowers the sum by 1e-14 of the sum"
)
BOUNDS["laws.two_stage.agree"] = Bound(
    1e-6, "error of the accuracy, a decade beyond the rows", "two searches end at different points of a flat valley"
)
BOUNDS["laws.two_stage.exact"] = Bound(
    1e-12, "error of the accuracy, a decade beyond the rows", "the rows have no noise", "3e-15"
)
BOUNDS["laws.two_stage.first"] = Bound(
    1e-11, "relative error", "the rows have no noise, and the law sums three terms", "5e-14"
)

# Routers and experts. "u" is half the distance from 1 to the next number in the precision of the run.
BOUNDS["notation.softmax"] = Bound(
    10, "u (1 + |z - max z|) of the value", "the exponential amplifies the rounding of z", "6.0"
)
BOUNDS["notation.log_sum_exp"] = Bound(
    8, "u (1 + max |z|)", "the function takes a shift, a logarithm and a short sum", "3.5"
)
BOUNDS["hash.plan"] = Bound(1, "u of the value", "1/T is rounded once")
BOUNDS["hash.load"] = Bound(1, "u T of the value", "the load is a sum of T rounded terms", "0.2")
BOUNDS["hash.residual"] = Bound(1, "u (T E load + 1)", "the residual has the error of the largest load", "0.2")
BOUNDS["sinkhorn.marginals"] = Bound(
    2, "u (4 + 2 max |z| + log T E), plus u T / 2 for hard scores, absolute, of row sums and residual", measured="0.9"
)
BOUNDS["sinkhorn.plan"] = Bound(
    3, "u (4 + 2 max |z| + log T E)(1 + sweeps) of the value", "the plan is exp(z + f + g)", "1.7"
)
BOUNDS["sinkhorn.potential"] = Bound(
    3, "u (4 + 2 max |z| + log T E)(1 + sweeps), absolute, for f and g", measured="0.9"
)
BOUNDS["sinkhorn.load"] = Bound(
    3, "u of the value (u T for sums)", "the load takes a reciprocal, a product and a division", "1.7"
)
BOUNDS["sinkhorn.gate"] = Bound(2, "u (2 + |z - max z| + max |z|) of the value", measured="0.8")
BOUNDS["sinkhorn.converged"] = Bound(
    4e-3,
    "spread of the logits, of the logarithm of the plan",
    "the mass of an expert is within 1e-3 of its share",
    "2e-3",
)
BOUNDS["sinkhorn.undecided"] = Bound(
    0.5, "share of the rows that rounding leaves open", "the limit is a cap; the share is usually 0"
)
BOUNDS["sinkhorn.gradient"] = Bound(
    1e-12, "sum of |weights|", "the test takes a five-point difference with step 2^-10", "5e-13"
)
BOUNDS["sinkhorn.rows"] = Bound(2, "u E, absolute, of T times the row sums and of the residual", measured="1.0")
BOUNDS["sinkhorn.gap"] = Bound(15, "u (max |z| + max |g| + log T E)", "the gap sums T E terms", "4.4")
BOUNDS["sinkhorn.tight"] = Bound(1, "tolerance + u (max |z| + max |g| + log T E), of T times the plan", measured="0.14")
BOUNDS["sinkhorn.shards"] = Bound(
    1, "u (4 + 2 max |z| + log T E), of T times the plan", "shards sum in another order", "0.37"
)
BOUNDS["sinkhorn.devices"] = Bound(
    4, "1e-3 + u max |z|, of T times the plan", "each of the two plans is within the tolerance"
)
BOUNDS["balance.probability"] = Bound(
    2, "u (4 + |z - max z| + max |z|) of the value", "the probability is a mean of exponentials", "0.7"
)
BOUNDS["balance.share"] = Bound(
    3, "u of the value", "the share takes a reciprocal and a product, as in sinkhorn.load", "1.7"
)
BOUNDS["balance.loss"] = Bound(
    2, "u (4 + |z - max z| + max |z|) of the value", "all terms are positive, so their errors do not grow", "0.7"
)
BOUNDS["balance.z_loss"] = Bound(8, "u (1 + max |z|)^2", "the loss is a mean of squared log-sum-exps", "3.6")
BOUNDS["balance.bias"] = Bound(
    4, "u (max |bias| + rate), with a mean over E where the bias is recentred", measured="1.7"
)
BOUNDS["balance.statistics"] = Bound(
    4, "u (1 + log E)", "the statistics are short sums of shares times logarithms", "1.7"
)
BOUNDS["balance.gradient"] = Bound(
    1e-12, "share of (1 + max |z|)^2", "the test takes a five-point difference with step 2^-10", "3e-13"
)
BOUNDS["top_k.gate"] = Bound(
    2, "u (4 + |z - max z| + max |z|) of the value", "the gate is an exponential of logarithms", "0.8"
)
BOUNDS["top_k.score"] = Bound(
    2, "u (4 + |z - max z| + max |z|) of the score, and u of score + bias", "the score errs as top_k.gate does"
)
BOUNDS["top_k.load"] = Bound(2, "u T k of the value (u for plans)", "the load is a sum of rounded terms", "0.8")
BOUNDS["top_k.gradient"] = Bound(
    1e-12, "sum of |weights|", "the test takes a five-point difference with step 2^-10", "3e-13"
)
BOUNDS["unavailable.value"] = Bound(
    40, "u of the largest entry, which counts as at least 1", "the plans take 20 sweeps", "8"
)
BOUNDS["unavailable.gradient"] = Bound(
    1e-14, "1 + the largest entry", "the masked sums are the same sums with zeros", "5e-17"
)
BOUNDS["expert_choice.gate"] = Bound(
    2, "u (4 + |z - max z| + max |z|) of the value", "the gate is an exponential of logits", "0.5"
)
BOUNDS["expert_choice.score"] = Bound(
    2, "u (4 + |z - max z| + max |z|), absolute, of log-probabilities", "the score errs as the gate does"
)
BOUNDS["expert_choice.ffn"] = Bound(8, "u sum of |gate| |x||U||D|", "the sum errs as in experts.routed_ffn", "2.6")
BOUNDS["expert_choice.gradient"] = Bound(
    5e-13, "max |weight| sum |x||U||D|", "the test takes a five-point difference", "1.5e-13"
)
BOUNDS["mixture.weights"] = Bound(
    2.5, "u (4 + |z - max z| + max |z|) of the value, z divided by the temperature", measured="1.1"
)
BOUNDS["mixture.logits"] = Bound(
    3, "u (4 + |x||c|, also the largest) of the value", "the test computes z itself", "1.1"
)
BOUNDS["mixture.output"] = Bound(2.5, "u (1 + max |z|) sum of w |m||U||D|", measured="0.9")
BOUNDS["mixture.gradient"] = Bound(
    3e-11, "max |weight| (1 + max |z|) sum w |m||U||D|", "the test takes a five-point difference", "9e-12"
)
BOUNDS["mixture.gradient_float32"] = Bound(
    0.3, "u times the scale of mixture.gradient", "rounding errors average out", "0.11"
)
BOUNDS["hash.centres"] = Bound(1e-15, "share of the largest entry", "a centre is a mean of up to 40 numbers", "2.2e-16")
BOUNDS["hash.multi"] = Bound(
    2, "u |x| max |U| max |D|, over the experts", "the sum errs as in experts.routed_ffn", "0.7"
)
# The remainder hash on ids in order of frequency. Let p be the share of id 0, P the share of the first E ids, and
# s = (E - 1) // k. In the first run of E ids, the k ids of an expert are at least s apart. The first of these k ids has
# at most the share p. Each other id has at most the mean share of the s ids before it. Together, the other ids have at
# most P / s. In a later run, each of the k ids has at most the mean share of the previous run. Over all later runs,
# these ids have at most k / E together, which is also the mean load.
BOUNDS["hash.remainder"] = Bound(1, "(p + P / s) E / k + 1 mean loads, all choices together", measured="0.76")
BOUNDS["hash.turned"] = Bound(
    1 + 1e-13, "share of the largest load by the first choice", "the experts of this choice get the top of each run"
)
BOUNDS["hash.balanced"] = Bound(
    1.01, "multiple of the least possible load, 1 or p E / k", "the table places the rarest tokens last", "1.001"
)
BOUNDS["hash.drawn"] = Bound(
    4, "standard deviations above 1 + p E / k", "tokens other than id 0 fall on experts by chance", "3.0"
)
BOUNDS["routers.record"] = Bound(
    2, "u (4 + 2 max |z|) of the value", "the value is an exponential of numbers up to 62, as in sinkhorn.plan", "0.4"
)
BOUNDS["base.objective"] = Bound(3, "u sum of |chosen scores|", "the sum has another order and one rounding", "0.8")
BOUNDS["base.certificate"] = Bound(
    0.2, "u T (max |s| + max price)", "the sum has T terms with rounded prices and scores", "0.06"
)
BOUNDS["base.optimum"] = Bound(
    1, "u T max |s|", "scores are multiples of 2^-51 of the largest score, and only their sum rounds", "0"
)
BOUNDS["base.auction"] = Bound(
    10, "u T (max |s| + max price)", "the auction runs in float32 and errs as base.certificate does"
)
BOUNDS["base.bound"] = Bound(3, "u T E (max |s| + max |price|)", "the bound is a sum of T differences", "1.1")
BOUNDS["base.load"] = Bound(0.5, "u T of the value", "the load is a sum of T rounded terms", "0.1")
BOUNDS["base.gate"] = Bound(3, "u (2 + spread + max |z|) of the value", "the gate errs as sinkhorn.gate does", "0.9")
BOUNDS["base.gradient"] = Bound(
    5e-12, "sum of |weights|", "the test takes a five-point difference with step 2^-10", "1.5e-12"
)
BOUNDS["quantile.bias"] = Bound(2, "u (max |s| + max |bias|) per step", "order statistics add no error", "0.8")
BOUNDS["quantile.descent"] = Bound(1.5, "u T E max |s|", "a sum of T terms is rounded", "0.45")
BOUNDS["quantile.load"] = Bound(1, "u T of the value", "the load is a sum of T rounded terms", "0.5, where T is 1")
BOUNDS["quantile.gate"] = Bound(
    4, "u (2 + spread + max |z|) of the value", "the gate errs as sinkhorn.gate does", "1.2"
)
BOUNDS["quantile.gradient"] = Bound(
    3e-12, "sum of |weights|", "the test takes a five-point difference with step 2^-10", "0.9e-12"
)
BOUNDS["reinforce.policy"] = Bound(
    2, "u (4 + spread + max |z|), relative for values and absolute for logarithms", measured="0.9"
)
BOUNDS["reinforce.load"] = Bound(0.5, "u T E of the value, for residuals T times the bound of a plan", measured="0.13")
BOUNDS["reinforce.log_probability"] = Bound(2, "u (4 + spread + max |z|) per step, absolute", measured="0.7")
BOUNDS["reinforce.entropy"] = Bound(0.5, "u (4 + spread + max |z|) (1 + log E), absolute", measured="0.10")
BOUNDS["reinforce.value"] = Bound(4, "u |x||hidden||out|", "the worst case is d + h + 2 = 9", "1.1")
BOUNDS["reinforce.to_go"] = Bound(3, "u sum of |reward|", "the worst case is S - 1 = 5", "0.9")
BOUNDS["reinforce.terms"] = Bound(1.5, "u of the parts: |advantage| |log-probability|, |reward|^2, ...", measured="0.4")
BOUNDS["reinforce.gradient"] = Bound(
    2e-12, "1 + the weighted terms", "the test takes a five-point difference with step 2^-10", "6e-13"
)
BOUNDS["reinforce.gradient_float32"] = Bound(
    1, "u (4 + spread + max |z|) of the largest entry", measured="0.1, on a GPU 0.4"
)
BOUNDS["reinforce.sampling"] = Bound(
    4.5, "standard deviations of a count", "the test makes 30,000 draws with fixed seeds", "2.0"
)
BOUNDS["reinforce.estimator"] = Bound(
    2e-11, "share of the norm of the gradient", "the test takes a five-point difference", "5e-12"
)
BOUNDS["reinforce.credit"] = Bound(
    0.1, "share of the norm of the gradient, from below", "the bias must be visible", "0.12"
)
BOUNDS["experts.gelu"] = Bound(4, "u (|x| + |x|^3)", measured="1.9")
BOUNDS["experts.ffn"] = Bound(8, "u |x||U||D|", "the worst case is d + f + 6 = 16", "3.5")
BOUNDS["experts.loops"] = Bound(
    120,
    "u of the largest entry, which counts as at least 1",
    "the sums have another order, and the slope of gelu rounds with |x|^3",
    "45",
)
BOUNDS["experts.nonlinearity"] = Bound(
    8, "u of the value, which counts as at least 1", "the function rounds a dozen times", "2"
)
BOUNDS["tiles.product"] = Bound(12, "u (|a||b| + |c|)", "the sum has up to 600 terms, whose errors average out", "3")
BOUNDS["experts.combine"] = Bound(4, "u sum of |gate y|", "at k = 2, each twin rounds twice", "2.0")
BOUNDS["experts.routed_ffn"] = Bound(8, "u sum of |gate| |x||U||D|", "the worst case is d + f + k + 6 = 18", "2.2")
BOUNDS["experts.dropped"] = Bound(
    3, "u of the value", "the share is a count divided by T k, as in sinkhorn.load", "1.5"
)
BOUNDS["experts.fine_grained"] = Bound(0.3, "u sum of |weights gate| |x||U||D|", "the sums have other orders", "0.07")
BOUNDS["experts.gradient"] = Bound(
    3e-12, "sum of |weights gate| |x||U||D|", "the test takes a five-point difference", "4e-13"
)

BOUNDS["transformer.logits"] = Bound(100, "u max |logit|", "the model has up to 4 blocks of small random weights", "25")
BOUNDS["transformer.loss"] = Bound(10, "u max |logit|", "the errors of logits average out", "2.8")
BOUNDS["transformer.gate"] = Bound(20, "u, absolute", "a gate is at most 1, and its logits are small", "10")
BOUNDS["transformer.routing"] = Bound(50, "u, absolute, of gate, load, plan and residual", measured="12")
BOUNDS["transformer.gradient"] = Bound(
    1e-9, "norm of the gradient", "the test takes a five-point difference", "5e-10, by BASE"
)
BOUNDS["transformer.gradient_float32"] = Bound(15, "u times the norm of the gradient", measured="4.6")
BOUNDS["transformer.layer_norm"] = Bound(8, "u (|scale| max |x| / deviation + |offset|)", measured="2.7")
BOUNDS["transformer.attention"] = Bound(1, "u (1 + s^2) max |output|, s the largest projection", measured="0.23")
BOUNDS["transformer.rotary"] = Bound(8, "u |q||k|", "the sum has 6 products, each of two sums of two terms", "3.8")
BOUNDS["transformer.router_step"] = Bound(0.05, "share of the first step", "gates round at 2^-24, and moves are 2^-14")
BOUNDS["transformer.bfloat16"] = Bound(15, "2^-8 max |logit|", measured="5.0")
BOUNDS["transformer.model"] = Bound(400, "u times the largest entry of each field of a loss", measured="100")
BOUNDS["transformer.block"] = Bound(10, "u times the largest entry of each field of a routed block", measured="2.0")
BOUNDS["transformer.noise_mean"] = Bound(5, "standard errors of the mean", "the seeds are fixed", "2")
BOUNDS["transformer.noise_deviation"] = Bound(
    8, "standard errors of a mean", "the test uses the fourth moment of the Gumbel distribution", "2"
)
BOUNDS["transformer.init_mean"] = Bound(
    5, "standard errors of a leaf's mean", "the test has 12 leaves and fixed seeds", "2.2"
)
BOUNDS["transformer.init_deviation"] = Bound(5, "standard errors of a leaf's mean", "the seeds are fixed", "1.2")

# The plain model, and worked examples.
BOUNDS["plain.logits"] = Bound(100, "u max |logit|", "the logits err as transformer.logits do", "30")
BOUNDS["plain.loss"] = Bound(10, "u (max |logit| + the loss)", "the errors of logits average out", "2.3")
BOUNDS["plain.bias"] = Bound(50, "u max |bias|", "the bias is a difference of logits after up to four blocks", "16")
BOUNDS["plain.deviation"] = Bound(4, "u of the value", "one or two roots and divisions have another order")
BOUNDS["by_hand.digits"] = Bound(
    6e-6, "absolute error", "the example prints five decimals, and the backend may use float32"
)
BOUNDS["by_hand.plan"] = Bound(5e-4, "absolute error", "sweeps may stop when columns are off by 1e-3 of a half")
BOUNDS["by_hand.deviation"] = Bound(
    3, "deviation over the root of the number", "the limit is six standard errors", "0.9"
)

# Lessons.
BOUNDS["tutorials.value"] = Bound(
    100, "u of the largest entry", "short sums have another order, and logits are small", "6"
)

# Training.
BOUNDS["training.optimizer"] = Bound(
    3e-7, "share of a leaf's largest entry", "all numbers are float64 except the rate of each step"
)
BOUNDS["training.rate"] = Bound(1e-6, "relative error", "the cosine is in float32, and a tenth of it is left")
BOUNDS["training.small_steps"] = Bound(
    0.05, "share of a step", "weights near 1 are float32, and the test adds eight steps of 2^-14"
)
BOUNDS["training.log"] = Bound(1e-6, "relative error", "means of up to eight numbers, and a root, are in float32")

# Dialects.
BOUNDS["dialects.same"] = Bound(
    1e-2, "relative error", "the limit is above the rounding of bfloat16, and dialects differ by 0.05 somewhere"
)
BOUNDS["designs.gate"] = Bound(
    8, "u (4 + max z - min z + max |z|) of the value", "the library has its own softmax; otherwise as in top_k.gate"
)
BOUNDS["designs.gradient"] = Bound(
    1e-3,
    "share of the largest entry, which counts as at least 1",
    "the test takes a difference of step 2^-12 in float32",
)
BOUNDS["designs.scale"] = Bound(
    1e-5, "relative error", "the test compares a median of float32 ratios with a constant of four digits"
)
BOUNDS["parity.gate"] = Bound(
    16, "u (4 + max z - min z + max |z|) of the larger gate", "each of two programs errs as designs.gate does"
)
BOUNDS["parity.gate_bfloat16"] = Bound(
    2, "2^-8 (4 + max z - min z + max |z|) of the larger gate", "each of two programs rounds scores and gates"
)
BOUNDS["parity.outputs"] = Bound(
    2000, "u of the largest output", "sums of up to 96 products have other orders, and logits move gates", "20"
)
BOUNDS["export.values"] = Bound(
    1, "root of u times the largest entry", "half of the digits must agree where no bound of a test applies"
)
BOUNDS["vectors.closed"] = Bound(
    1e-13, "relative error", "powers of ten with exponents below 30, divided by slopes of 0.05, lose 500 u"
)
BOUNDS["vectors.line"] = Bound(
    1e-8, "relative error", "the test solves equations, and its quantile is exact to 1e-10", "7e-10"
)
BOUNDS["vectors.objective"] = Bound(1e-11, "relative error", "the sum is flat at its minimum, with residuals of 1e-3")
BOUNDS["vectors.searched"] = Bound(
    1e-6, "relative error", "two searches of one minimum agree to the square root of 1e-12"
)
BOUNDS["vectors.covariance"] = Bound(
    5e-6, "share of the two standard errors", "the error is as large as in vectors.searched"
)
BOUNDS["vectors.optimum"] = Bound(
    1e-5, "relative error", "the minimum of a flat loss is known to the square root of 1e-12"
)
BOUNDS["vectors.again"] = Bound(
    1e-12, "relative error", "the test writes a formula again, with exponents up to 30 and slopes of 0.05"
)
BOUNDS["vectors.line_again"] = Bound(1e-6, "relative error", "the test inverts normal equations and takes differences")
BOUNDS["vectors.search_again"] = Bound(1e-4, "relative error", "SciPy searches valleys that are flat to 1e-10")
BOUNDS["vectors.broken"] = Bound(
    0.05, "relative error", "SciPy ends above our minimum in a valley of six unknowns", "0.028"
)
BOUNDS["vectors.no_ceiling"] = Bound(1e-9, "error of -ln Q'", "no row of a table could show such a ceiling", "1.6e-12")
BOUNDS["vectors.ratio"] = Bound(1, "u of the value", "the ratio is one division of whole numbers")

SLACK_SHARE = 1 / 50
"""A run warns of a bound if all shares (error / bound) are below this one, because the bound could hide errors."""
SLACK_CHECKS = 20
"""Minimum number of checks of a bound before a run warns of it: our choice."""

# Separate bounds of bfloat16. Sums are in float32, so there are few roundings of 2^-8.
BOUNDS["notation.softmax_bfloat16"] = Bound(4, "2^-8 (1 + |z - max z|) of the value", measured="1.3")
BOUNDS["notation.log_sum_exp_bfloat16"] = Bound(4, "2^-8 (1 + max |z|)", measured="1.3")
BOUNDS["experts.gelu_bfloat16"] = Bound(4, "2^-8 (|x| + |x|^3)", measured="1.3")
BOUNDS["experts.ffn_bfloat16"] = Bound(3, "2^-8 |x||U||D|", measured="1.3")
BOUNDS["experts.combine_bfloat16"] = Bound(3, "2^-8 sum of |gate y|", measured="1.0")
BOUNDS["experts.routed_ffn_bfloat16"] = Bound(2.5, "2^-8 sum of |gate| |x||U||D|", measured="1.9")
BOUNDS["routed_block.raised"] = Bound(
    4, "2^-24 (4 + spread + 2 |x||router|) of the value", "the gate takes z, an exponential and a short sum"
)
BOUNDS["expert_choice.ffn_bfloat16"] = Bound(2.5, "2^-8 sum of |gate| |x||U||D|", measured="1.1")
BOUNDS["transformer.layer_norm_bfloat16"] = Bound(3, "2^-8 |result| + 2^-24 of the wide parts", measured="1.0")
BOUNDS["transformer.attention_bfloat16"] = Bound(0.1, "2^-8 (1 + s^2) max |output|", measured="0.036")

# Comparisons with other libraries.
BOUNDS["libraries.cross_entropy"] = Bound(5, "u max |logit|", "the mean has another order", "1.3")
BOUNDS["libraries.plan"] = Bound(3e-12, "error of T times the plan", "our sweeps stop at 1e-12 of a load", "6e-13")
BOUNDS["libraries.linear_program"] = Bound(
    4, "u T max |s|", "the test sums T terms with the prices of another solver", "0.8"
)
BOUNDS["libraries.fit"] = Bound(
    3e-12, "relative error", "SciPy stops above our minimum", "2.3e-14, with SciPy 1.18 3.3e-13"
)
BOUNDS["libraries.adamw"] = Bound(
    2e-7, "share of the way moved", "torch clips to norm + 1e-6, and norms are above 5", "9e-8"
)
BOUNDS["libraries.rate"] = Bound(
    1e-14, "share of the peak", "torch computes its rate 40 times, each time from the previous one", "7e-16"
)

# Many devices.
BOUNDS["parallel.ffn"] = Bound(1e-13, "share of the largest entry", "sums of 5 products have another order", "1e-15")
BOUNDS["parallel.dropped"] = Bound(1e-15, "absolute error", "the share is a quotient of two whole numbers below 48")
BOUNDS["mesh.loss"] = Bound(
    1e-13, "error in nats, float64", "means of up to 128 terms below 10 have another order, which costs 128 u of 10"
)
BOUNDS["mesh.gradient"] = Bound(
    2e-13, "share of the largest entry of a leaf, float64", "the gradient errs as mesh.loss does", "2e-15"
)
# A gradient sums up to 128 products of products, and a mesh sums them in another order. In float64 this changes the
# worst entry by 18 u of the largest entry of its leaf (2e-15, mesh.gradient). In float32 the change is also 18 u, with
# u = 2^-24.
BOUNDS["mesh.gradient_float32"] = Bound(
    1.1e-6, "share of the largest entry of a leaf", "mesh.gradient measured the same 18 u"
)
# No short formula bounds the effect of such an error after 20 steps: AdamW divides by the size of the gradient, so an
# entry whose gradient is only rounding error moves by the whole learning rate. So the test repeats the run of one
# device three times and adds mesh.gradient_float32 to the gradients, up or down at random. The mesh may deviate twice
# as far as the worst of these three runs (measured: 0.05 to 0.16 of the worst). If rounding decides an assignment, the
# loss jumps in these runs and on the mesh.
BOUNDS["mesh.steps.loss"] = Bound(2, "share of the largest change by such gradients, plus transformer.loss of the loss")
BOUNDS["mesh.steps.weights"] = Bound(
    2, "share of the change of a leaf by such gradients, plus u of the leaf per step", "errors of entries average out"
)
BOUNDS["export.loss"] = Bound(
    1e-5, "error in nats, float32", "two steps fuse their sums differently, as in mesh.resumed"
)
BOUNDS["mesh.resumed"] = Bound(
    1e-5, "error in nats, float32", "mesh.steps.loss allows about this for a run of that size"
)
BOUNDS["mesh.steps.evaluation"] = Bound(
    1e-5, "error in nats, float32", "the same weights give a log-sum of 32 terms", "5e-7"
)
BOUNDS["mesh.steps.load"] = Bound(
    1e-6, "error of a share", "the same weights give an argmax and means of eight shares", "6e-8"
)
BOUNDS["mesh.load"] = Bound(
    1e-15, "error of a share, float64", "a mean of means of equal parts has another order, worth 8 u"
)
BOUNDS["mesh.bias"] = Bound(1e-14, "absolute error", "the logits are below 10", "0")

worst_share: dict[str, float] = {}

listeners: list = []
"""`check` calls each of these functions with (name, share)."""


def bound_in(name: str, precision: str) -> str:
    """Return the name of the bound for a precision, such as "experts.ffn_bfloat16", or `name` if there is none."""
    specific = "_".join((name, precision))  # not an f-string: `test_bfloat16.RAISED` is a str with another format
    return specific if specific in BOUNDS else name


def check(name: str, error: float, scale: float = 1.0, *, message: str = "") -> None:
    """Fail unless error <= limit * scale, with the limit of BOUNDS[name]. Record error / (limit * scale).

    Args:
        name: key of `BOUNDS`.
        error: the measured error, at least 0; NaN fails.
        scale: the unit of the bound, above 0. At 0, only the error 0 passes.
        message: text that a failure shows: the compared values and their shapes.

    Raises:
        AssertionError: the error is above the bound or is NaN.
    """
    bound = BOUNDS[name]
    allowed = bound.limit * scale
    share = error / allowed if allowed > 0 else (0.0 if error == 0 else float("inf"))
    for listener in listeners:
        listener(name, share)
    if not share <= 1:
        exceeded = f"error {error:.3e}, allowed {allowed:.3e} by {name} ({bound.reason})"
        raise AssertionError(f"{message}; {exceeded}" if message else exceeded)
    worst_share[name] = max(worst_share.get(name, 0.0), share)
