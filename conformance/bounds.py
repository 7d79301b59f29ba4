"""Every tolerance of the suite, with its reason. No other file of `conformance/` holds a tolerance literal, and none
compares by a default tolerance (`test_mirror.py` reads them all).

A bound is a number times a scale that the test supplies (a condition number, a sum of absolute values, 1 for a
relative error). `check` raises when the error exceeds the bound and records the share of it that was used, which pytest
prints at the end of a run. A share far below 1 shows that the bound is too loose to find errors.
"""

from typing import NamedTuple

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}
"""Half the distance from 1 to the next number, by precision."""


class Bound(NamedTuple):
    """An upper limit on an error. `reason` names its unit, then its source and the largest error measured in a test."""

    limit: float
    reason: str


BOUNDS: dict[str, Bound] = {}

# Laws.
BOUNDS["laws.routed.value"] = Bound(
    2e-14, "relative; ten to the power of a sum of four terms below 10 loses about 100 u"
)
BOUNDS["laws.routed.parameter_count"] = Bound(
    2e-13, "relative; as laws.routed.value, divided by a dense slope that is at least 0.05"
)
BOUNDS["laws.routed.experts"] = Bound(5e-15, "per unit of dE/dlog10 L: the rounding of a log10 loss; measured 1.0e-15")
BOUNDS["laws.routed.size"] = Bound(1e-14, "relative per 1/|slope|: the rounding of a log10 loss; measured 1.2e-15")
BOUNDS["laws.rmsle"] = Bound(
    1e-15, "relative; the root of an objective or of a mean rounds a few times (u each); measured 0"
)
BOUNDS["laws.routed.paper"] = Bound(5e-3, "relative; the paper's figures have three digits")
BOUNDS["laws.routed.cutoff"] = Bound(6e-3, "relative; our refits are printed to two or three digits")
BOUNDS["laws.fitting.objective"] = Bound(
    1e-12, "relative; the search stops below 1e-13, where two pieces count as a tie; measured 2e-13"
)
BOUNDS["laws.fitting.quick"] = Bound(
    1e-3, "relative; the quick search stops sooner, and its valleys are flat; measured 3.5e-4"
)
BOUNDS["laws.fitting.turn"] = Bound(
    1e-10, "of the largest entry; derivatives are least exact where E_max hardly matters; measured 2.8e-11"
)
BOUNDS["laws.fitting.newton"] = Bound(
    2e-8, "of the step; the test and the compiled loop both take second differences; measured 5e-9"
)
BOUNDS["laws.kernels.sum"] = Bound(
    1e-12, "of the largest entry; a dozen products are summed in another order; measured 6e-15"
)
BOUNDS["laws.kernels.stationary"] = Bound(
    3.2e-8, "of root(sum) |columns|; a solve stops at 1e-15 of the sum, so slopes are left at its root"
)
BOUNDS["laws.fitting.prediction"] = Bound(1e-9, "difference of log10 losses per unit of rmsle / 1e-3; measured 3e-10")
BOUNDS["laws.fitting.exact_rmsle"] = Bound(
    2e-10, "log10; a noise-free fit is known to twice the resolution that decides between pieces"
)
BOUNDS["laws.fitting.exact_coefficient"] = Bound(
    1e-6, "relative; noise-free: the loss's resolution is divided by an effect of 1e-3"
)
BOUNDS["laws.fitting.same_law"] = Bound(
    1e-14, "log10 per unit of |b|; the test writes one law in two forms, which differ by 50 u"
)
BOUNDS["laws.fitting.covariance"] = Bound(
    1e-6, "share of the two standard errors; the parameters agree to 1e-7 of their errors"
)
BOUNDS["laws.fitting.released_objective"] = Bound(1e-9, "relative; the stored optima have ten digits")
BOUNDS["laws.huber.objective"] = Bound(
    1e-12, "relative; the sum is flat at its minimum, so both searches reach it; measured 2e-13"
)
BOUNDS["laws.huber.sum"] = Bound(
    5e-12, "relative; losses are rounded at 1e-16 and their residuals are only 1e-4; measured 1e-13"
)
BOUNDS["laws.huber.rmsle"] = Bound(1e-12, "relative; its residuals are rounded as in laws.huber.sum; measured 1.2e-13")
BOUNDS["laws.huber.certificate"] = Bound(
    1e-6, "relative; it is linear in the slopes that are left, but the sum is quadratic; about 2e-8"
)
BOUNDS["laws.huber.scan"] = Bound(5e-12, "relative, one-sided: no scanned law may beat the fit; measured 8e-14")
BOUNDS["laws.huber.prediction"] = Bound(
    1e-5, "share of the rmsle; flat valleys hide a change up to the root of 1e-12; measured 2e-6"
)
BOUNDS["laws.huber.covariance"] = Bound(
    5e-4, "share of the two standard errors; the searches end apart in a flat valley; measured 8e-5"
)
BOUNDS["laws.choosing.loss"] = Bound(1e-12, "relative; two searches end apart in one flat minimum; measured 8e-14")
BOUNDS["laws.choosing.cost"] = Bound(
    2e-12, "relative; a plan meets an edge to 1e-12, and the rest multiplies a few numbers"
)
BOUNDS["laws.choosing.resampled"] = Bound(
    5e-8, "log10; two searches of one fit end apart in a flat valley; measured 5e-9"
)
BOUNDS["laws.next_run.width"] = Bound(
    5e-9, "relative; a width has two ends, each exact as laws.uncertainty.end; measured 1.2e-9"
)
BOUNDS["laws.uncertainty.quantile"] = Bound(
    1e-10, "relative; the test integrates at 200 Gauss-Legendre points and bisects to the last bit"
)
BOUNDS["laws.uncertainty.end"] = Bound(
    1e-9, "share of the interval's length; two searches find one end, each to 1e-9 in t and w"
)
BOUNDS["laws.uncertainty.value"] = Bound(
    2e-5, "share of the length, or log10; two optima lie 2e-6 apart in a flat valley"
)
BOUNDS["laws.uncertainty.edge"] = Bound(
    2e-8, "of 1/E and its length; it is linear in errors of 1e-9 in t and w; measured 6e-9"
)
BOUNDS["laws.uncertainty.outside"] = Bound(1e-9, "of the value, at least 1; the test rounds its own laws")
BOUNDS["laws.uncertainty.loops"] = Bound(1e-10, "relative, or absolute below 1; other formulas give the same numbers")
BOUNDS["laws.uncertainty.angle"] = Bound(1e-8, "radians; the test's own cosines are rounded to nine digits")
BOUNDS["laws.uncertainty.attained"] = Bound(
    5e-3, "relative residual sum; the test scans 161 x 161 shapes, so it errs by a spacing squared"
)
BOUNDS["laws.held_out.closed"] = Bound(
    3e-13, "log10, of 1 + the largest error; the residual is divided by 1 - h; measured 3e-14"
)
BOUNDS["laws.held_out.searched"] = Bound(
    1e-8, "log10, of 1 + the largest error; two searches end apart in a flat valley"
)
BOUNDS["laws.held_out.paired"] = Bound(1e-12, "of the squared errors; up to 60 of them are summed")
BOUNDS["laws.resampling.value"] = Bound(
    2e-5, "of the spread over resamples; two optima lie apart as in laws.uncertainty.value"
)
BOUNDS["laws.intervals.end"] = Bound(
    1e-10, "share of half an interval; rounding is divided by a scatter of 1e-4; measured 2.1e-11"
)
BOUNDS["laws.intervals.rejected"] = Bound(
    3e-11, "relative; Student's t at an end divides rounding by the scatter; measured 5e-12"
)
BOUNDS["laws.intervals.exact"] = Bound(
    1e-12, "absolute or log10; rows are noise-free, and N_cutoff errs most; measured 2.2e-13"
)
BOUNDS["laws.intervals.design"] = Bound(1e-14, "absolute; entries are logarithms up to 9 and a product of two")
BOUNDS["laws.intervals.value"] = Bound(1e-11, "relative; two searches find the same optimum; measured 1e-13")
BOUNDS["laws.intervals.span"] = Bound(1e-13, "log10; a fit of four columns leaves a rounded residual; measured 1.1e-15")
BOUNDS["laws.intervals.jackknife"] = Bound(
    5e-10, "share of half an interval; folds are nearly equal, so digits cancel; measured 5.8e-11"
)
BOUNDS["laws.intervals.hand"] = Bound(1e-9, "absolute; a quantile with relative error 1e-10; measured 1.9e-10")
BOUNDS["laws.intervals.inside"] = Bound(1e-8, "relative; two searches find ends that may coincide; measured 0")
BOUNDS["laws.coverage.quiet"] = Bound(
    3e-3, "share of half an interval; the test omits the squares of errors of 1e-6; measured 8.6e-4"
)
BOUNDS["laws.coverage.covariance"] = Bound(
    2e-12, "relative; the test and the code both solve normal equations; measured 5.5e-13"
)

BOUNDS["laws.dense.objective"] = Bound(
    1e-12, "relative per 1e-3/rmsle; rounding is divided by the residual; measured 1.6e-13"
)
BOUNDS["laws.dense.prediction"] = Bound(2e-14, "log10 (from coefficients: per unit of log10 N_c); measured 3.7e-15")
BOUNDS["laws.dense.covariance"] = Bound(
    1e-12, "share of the standard errors; it errs as the objective does; measured 1.6e-13"
)
BOUNDS["laws.dense.rmsle"] = Bound(1e-15, "log10; each residual rounds twice; measured 1.4e-16")
BOUNDS["laws.log_linear.cutoff"] = Bound(2e-14, "relative; a power of ten, exponents up to 30: 100 u; measured 0")
BOUNDS["laws.log_linear.objective"] = Bound(
    1e-12, "relative per 1e-3/rmsle; rounding is divided by the residual; measured 8e-14"
)
BOUNDS["laws.log_linear.coefficient"] = Bound(5e-15, "standard errors per unit of residual; measured 1.0e-15")
BOUNDS["laws.log_linear.covariance"] = Bound(
    2e-13, "share of two standard errors; it errs as the objective does; measured 2.6e-14"
)
BOUNDS["laws.log_linear.exact"] = Bound(
    2e-14, "relative or absolute; rows are noise-free, and the law is read at N = 1; measured 2.1e-15"
)
BOUNDS["laws.log_linear.printed"] = Bound(5e-5, "half a unit of the fourth decimal that is printed")
BOUNDS["laws.utilisation.value"] = Bound(2e-14, "relative; it errs as laws.routed.value does; measured 4.6e-15")
BOUNDS["laws.utilisation.same_law"] = Bound(
    2e-13, "log10; the test writes one law in two forms, with B_start up to 1e3; measured 2.8e-14"
)
BOUNDS["laws.utilisation.objective"] = Bound(
    1e-12, "relative; two searches end apart, with residuals of 3e-4; measured 1.4e-13"
)
BOUNDS["laws.catalogue.rmsle"] = Bound(1e-15, "log10; each residual rounds twice; measured 5.5e-17")
BOUNDS["laws.additive.value"] = Bound(
    5e-14, "relative; one side takes powers of numbers up to 1e12 by logarithms; measured 8e-15"
)
BOUNDS["laws.additive.exact_sum"] = Bound(
    1e-30, "per row; rows are noise-free, so residuals are rounding; measured 9e-33"
)
BOUNDS["laws.additive.exact_loss"] = Bound(
    1e-14, "ln; rows are noise-free, so a loss and its law differ by rounding; measured 9e-16"
)
BOUNDS["laws.additive.exact_coefficient"] = Bound(
    1e-9, "relative; ln L errs by 1e-15 and the effect is 1e-6; measured 2.8e-13"
)
BOUNDS["laws.additive.sum"] = Bound(
    1e-11, "relative; losses are rounded at 1e-16 and residuals are 1e-3; measured 1.7e-12"
)
BOUNDS["laws.additive.least"] = Bound(1e-12, "relative, one-sided; the sum is flat at its minimum; measured 0")
BOUNDS["laws.additive.objective"] = Bound(1e-12, "relative; two searches find the same minimum; measured 1e-14")
BOUNDS["laws.additive.prediction"] = Bound(
    3e-6, "share of the rmsle; flat valleys hide a change up to the root of 1e-12; measured 4.2e-7"
)
BOUNDS["laws.additive.covariance"] = Bound(
    1e-5, "share of two standard errors; two searches end apart in a flat valley; measured 1.1e-6"
)
BOUNDS["laws.additive.same_law"] = Bound(
    1e-6, "relative; sums agree to 1e-14, but flat valleys separate the laws; measured 1.9e-8"
)
BOUNDS["laws.additive.profile"] = Bound(
    1e-7, "relative sum; both searches stop at 1e-9, ours of an interval; measured 1.5e-9"
)
BOUNDS["laws.additive.end"] = Bound(
    1e-6, "share of the length, or ln; bisection stops at 1e-9, and valleys are flat; measured 7e-9"
)
BOUNDS["laws.hoffmann.digits"] = Bound(
    3e-5, "relative; numbers from 1.8 on have half a unit of error in the fifth digit; measured 2.3e-5"
)
BOUNDS["laws.hoffmann.printed"] = Bound(5e-5, "relative; the paper rounds to five digits; measured 4.2e-5")
BOUNDS["laws.planning.active"] = Bound(
    1e-6, "relative; bisection stops at 1e-7 of the logarithm of the FLOPs; measured 3e-7"
)
BOUNDS["laws.planning.fine_grained"] = Bound(
    0.045, "relative; the paper rounds its printed coefficients; measured 0.0443"
)
BOUNDS["laws.planning.fine_grained_loss"] = Bound(
    0.0145, "nats; the paper rounds its printed coefficients; measured 0.0138"
)
BOUNDS["laws.planning.joint_size"] = Bound(
    0.03, "relative; the paper rounds its coefficients and sizes; measured 0.021"
)
BOUNDS["laws.planning.joint_tokens"] = Bound(
    0.015, "relative; the paper rounds, as in laws.planning.joint_size; measured 0.011"
)
BOUNDS["laws.planning.per_experts"] = Bound(3e-3, "relative; the coefficients have four digits; measured 0.0026")
BOUNDS["laws.planning.best_experts"] = Bound(
    8e-3, "nats; the loss is flat at the best E, and coefficients are rounded; measured 0.0067"
)
BOUNDS["laws.planning.spent"] = Bound(1e-12, "relative; it takes a few products and powers; measured 1e-14")
BOUNDS["laws.planning.inverse"] = Bound(1e-5, "relative; a scan of a flat loss finds the size; measured 1.6e-7")
BOUNDS["laws.planning.location"] = Bound(
    1e-6, "ln; two searches of a flat minimum agree to the root of 1e-16; measured 2.6e-7"
)
BOUNDS["laws.catalogue.linear"] = Bound(1e-14, "log10; the test applies a linear map three times; measured 1.7e-16")

BOUNDS["laws.leverage.value"] = Bound(2e-14, "relative; it takes a power with an exponent below 15; measured 3e-15")
BOUNDS["laws.leverage.budget"] = Bound(2e-3, "relative; printed factors have four to six digits")
BOUNDS["laws.leverage.interval"] = Bound(
    5e-8, "relative; A_start is known to the root of the sum's rounding; measured 4e-9"
)
BOUNDS["laws.leverage.covariance"] = Bound(
    3e-6, "share of two standard errors; it errs as laws.leverage.interval does; measured 1e-7"
)
BOUNDS["laws.sparsity.budget"] = Bound(2e-15, "relative; it takes three products and a quotient; measured 3e-16")
BOUNDS["laws.sparsity.optimum"] = Bound(
    1e-6, "relative; a scan sees a flat loss only to the root of its rounding; measured 1.5e-7"
)
BOUNDS["laws.sparsity.optimum_loss"] = Bound(2e-15, "relative; the loss is flat at its minimum; measured 2e-16")
BOUNDS["laws.sparsity.objective"] = Bound(
    1e-11, "relative; the search ends when a step lowers the sum by 1e-14 of itself; measured 4e-14"
)
BOUNDS["laws.sparsity.rmsle"] = Bound(1e-8, "relative; the fit minimises Huber's sum, not this one; measured 3e-14")
BOUNDS["laws.compute.value"] = Bound(2e-15, "relative; exponents are below 10; measured 2e-16")
BOUNDS["laws.compute.published"] = Bound(0.02, "relative; our refit has only the line's six rounded losses")
BOUNDS["laws.compute.speedup"] = Bound(
    5e-14, "relative; it raises a ratio to 1/alpha, with alpha from 0.09 on; measured 5e-15"
)
BOUNDS["laws.compute.orthogonal"] = Bound(1e-13, "per unit of the column; it sums six residuals; measured 1e-14")
BOUNDS["laws.compute.objective"] = Bound(
    5e-12, "relative; losses are rounded at 1e-16 and residuals are 1e-3; measured 1e-12"
)
BOUNDS["laws.compute.exact"] = Bound(1e-12, "relative; A extends a line over 40 units of ln C; measured 2e-13")
BOUNDS["laws.compute.interval"] = Bound(5e-12, "nats; it errs as laws.compute.exact does; measured 7e-13")
BOUNDS["laws.downstream.pass_at_k"] = Bound(5e-15, "absolute; it multiplies up to 200 factors; measured 6e-17")
BOUNDS["laws.downstream.objective"] = Bound(
    1e-11, "relative; the search ends when a step lowers the sum by 1e-14 of itself; measured 2e-13"
)
BOUNDS["laws.downstream.prediction"] = Bound(1e-9, "of accuracy; it is linear in the step that is left; measured 5e-11")
BOUNDS["laws.downstream.interval"] = Bound(
    5e-14, "of accuracy; the test writes one formula in two ways; measured 3e-15"
)
BOUNDS["laws.downstream.exact_line"] = Bound(
    1e-12, "of ln A and alpha; the fit extends a line over 45 units of ln C; measured 4e-14"
)
BOUNDS["laws.downstream.exact_repeated"] = Bound(
    1e-12, "absolute; the fit extends four columns over 45 units of ln C; measured 3e-14"
)
BOUNDS["laws.accuracy.exact"] = Bound(
    1e-7, "of accuracy, or of a logarithm; rows are noise-free, and the search ends in a flat sum"
)
BOUNDS["laws.accuracy.coefficients"] = Bound(
    1e-6, "relative; rows are noise-free, and A_start is known to the root of the sum's rounding"
)
BOUNDS["laws.accuracy.interval"] = Bound(
    1e-5, "of accuracy or leverage; the searches of the folds end apart in flat valleys"
)
BOUNDS["laws.two_stage.value"] = Bound(4e-15, "relative to 1; it takes a logistic and a power; measured 6e-16")
BOUNDS["laws.two_stage.rmse"] = Bound(1e-10, "relative; the search ends when a step lowers the sum by 1e-14 of itself")
BOUNDS["laws.two_stage.agree"] = Bound(
    1e-6, "of accuracy, a decade beyond the rows; two searches end apart in a flat valley"
)
BOUNDS["laws.two_stage.exact"] = Bound(
    1e-12, "of accuracy, a decade beyond the rows, which are noise-free; measured 3e-15"
)
BOUNDS["laws.two_stage.first"] = Bound(
    1e-11, "relative; rows are noise-free, and the law sums three terms; measured 5e-14"
)

# Routers and experts. "u" is half the distance from 1 to the next number in the precision of the run.
BOUNDS["notation.softmax"] = Bound(10, "u (1 + |z - max z|) of the value: exp amplifies; measured 6.0")
BOUNDS["notation.log_sum_exp"] = Bound(8, "u (1 + max |z|): shift, logarithm, a short sum; measured 3.5")
BOUNDS["hash.plan"] = Bound(1, "u of the value: 1/T is rounded once")
BOUNDS["hash.load"] = Bound(1, "u T of the value: a sum of T rounded terms; measured 0.2")
BOUNDS["hash.residual"] = Bound(1, "u (T E load + 1): the error of the largest load; measured 0.2")
BOUNDS["sinkhorn.marginals"] = Bound(2, "u (4 + 2 max |z| + log T E), absolute, of row sums and residual; measured 0.9")
BOUNDS["sinkhorn.plan"] = Bound(3, "u (4 + 2 max |z| + log T E)(1 + sweeps) of the value; exp(z + f + g): measured 1.7")
BOUNDS["sinkhorn.potential"] = Bound(3, "u (4 + 2 max |z| + log T E)(1 + sweeps), absolute; f and g: measured 0.9")
BOUNDS["sinkhorn.load"] = Bound(3, "u of the value (u T for sums): reciprocal, product, division; measured 1.7")
BOUNDS["sinkhorn.gate"] = Bound(2, "u (2 + |z - max z| + max |z|) of the value; measured 0.8")
BOUNDS["sinkhorn.undecided"] = Bound(0.5, "share of rows that rounding leaves open; a cap, 0 is usual")
BOUNDS["sinkhorn.gradient"] = Bound(1e-12, "sum of |weights|; five-point difference, step 2^-10; measured 5e-13")
BOUNDS["sinkhorn.rows"] = Bound(2, "u E, absolute, of T times row sums and of the residual; measured 1.0")
BOUNDS["sinkhorn.gap"] = Bound(15, "u (max |z| + max |g| + log T E); it sums T E terms; measured 4.4")
BOUNDS["sinkhorn.tight"] = Bound(1, "tolerance + u (max |z| + max |g| + log T E), of T times the plan; measured 0.14")
BOUNDS["sinkhorn.shards"] = Bound(1, "u (4 + 2 max |z| + log T E), of T times the plan: other sums; measured 0.37")
BOUNDS["sinkhorn.devices"] = Bound(4, "1e-3 + u max |z|, of T times the plan: either is within the tolerance")
BOUNDS["balance.probability"] = Bound(2, "u (4 + |z - max z| + max |z|) of the value: exp, a mean; measured 0.7")
BOUNDS["balance.share"] = Bound(3, "u of the value: reciprocal and product, as sinkhorn.load; measured 1.7")
BOUNDS["balance.loss"] = Bound(2, "u (4 + |z - max z| + max |z|) of the value; all terms are positive; measured 0.7")
BOUNDS["balance.z_loss"] = Bound(8, "u (1 + max |z|)^2: the square of a log-sum-exp, a mean; measured 3.6")
BOUNDS["balance.bias"] = Bound(4, "u (max |bias| + rate), with a mean over E where it is recentred; measured 1.7")
BOUNDS["balance.statistics"] = Bound(4, "u (1 + log E): a short sum of shares times logarithms; measured 1.7")
BOUNDS["balance.gradient"] = Bound(1e-12, "of (1 + max |z|)^2; five-point difference, step 2^-10; measured 3e-13")
BOUNDS["top_k.gate"] = Bound(2, "u (4 + |z - max z| + max |z|) of the value: exp of logarithms; measured 0.8")
BOUNDS["top_k.score"] = Bound(2, "u (4 + |z - max z| + max |z|) of the score, as top_k.gate, and u of score + bias")
BOUNDS["top_k.load"] = Bound(2, "u T k of the value (u for plans): a sum of rounded terms; measured 0.8")
BOUNDS["top_k.gradient"] = Bound(1e-12, "sum of |weights|; five-point difference, step 2^-10; measured 3e-13")
BOUNDS["expert_mask.value"] = Bound(40, "u of the largest entry, at least 1; plans after 20 sweeps; measured 8")
BOUNDS["expert_mask.gradient"] = Bound(1e-14, "1 + the largest entry; the same sums with zeros; measured 5e-17")
BOUNDS["expert_choice.gate"] = Bound(2, "u (4 + |z - max z| + max |z|) of the value: exp of logits; measured 0.5")
BOUNDS["expert_choice.score"] = Bound(2, "u (4 + |z - max z| + max |z|), absolute, of log-probabilities; as the gate")
BOUNDS["expert_choice.ffn"] = Bound(8, "u sum of |gate| |x||U||D|, as experts.routed_ffn; measured 2.6")
BOUNDS["expert_choice.gradient"] = Bound(5e-13, "max |weight| sum |x||U||D|; five-point difference; measured 1.5e-13")
BOUNDS["mixture.weights"] = Bound(2.5, "u (4 + |z - max z| + max |z|), z over temperature, of the value; measured 1.1")
BOUNDS["mixture.logits"] = Bound(3, "u (4 + |x||c|, also the largest) of the value, z computed; measured 1.1")
BOUNDS["mixture.output"] = Bound(2.5, "u (1 + max |z|) sum of w |m||U||D|; measured 0.9")
BOUNDS["mixture.gradient"] = Bound(3e-11, "max |weight| (1 + max |z|) sum w |m||U||D|; five points; measured 9e-12")
BOUNDS["mixture.gradient_float32"] = Bound(0.3, "u times the scale of mixture.gradient; errors average; measured 0.11")
BOUNDS["hash.centres"] = Bound(1e-15, "of the largest entry; means of up to 40 numbers; measured 2.2e-16")
BOUNDS["hash.multi"] = Bound(2, "u |x| max |U| max |D|, over experts; as experts.routed_ffn; measured 0.7")
# The remainder hash on ids in order of frequency. Let p be the share of id 0, P the share of the first E ids, and
# s = (E - 1) // k. In the first run of E ids, the k ids of an expert are at least s apart. The first of them has at
# most the share p. Each other one has at most the mean share of the s ids before it; together these are at most P / s.
# In a later run, each of the k ids has at most the mean share of the previous run. Over all later runs these add up to
# at most k / E, which is also the mean load.
BOUNDS["hash.remainder"] = Bound(1, "(p + P / s) E / k + 1 mean loads, all choices together; measured 0.76")
BOUNDS["hash.turned"] = Bound(
    1 + 1e-13, "of the largest load by the first choice, whose experts get the top of each run"
)
BOUNDS["hash.balanced"] = Bound(1.01, "of the least possible, 1 or p E / k; the rarest are put last; measured 1.001")
BOUNDS["hash.drawn"] = Bound(4, "standard deviations above 1 + p E / k: tokens apart from id 0 by chance; measured 3.0")
BOUNDS["routers.record"] = Bound(2, "u (4 + 2 max |z|) of the value, as sinkhorn.plan: exp of up to 62; measured 0.4")
BOUNDS["base.objective"] = Bound(
    3, "u sum of |chosen scores|; the sum has another order, and one rounding is left; measured 0.8"
)
BOUNDS["base.certificate"] = Bound(0.2, "u T (max |s| + max price): rounded prices and scores, T terms; measured 0.06")
BOUNDS["base.optimum"] = Bound(
    1, "u T max |s|; scores are multiples of 2^-51 of the largest, and are then summed; measured 0"
)
BOUNDS["base.deviation"] = Bound(
    1e-6, "relative, or of scores of 1; one side sums in float32, the other in plain Python"
)
BOUNDS["base.auction"] = Bound(10, "u T (max |s| + max price): the auction in float32, as base.certificate")
BOUNDS["base.bound"] = Bound(3, "u T E (max |s| + max |price|): a sum of T differences; measured 1.1")
BOUNDS["base.load"] = Bound(0.5, "u T of the value: a sum of T rounded terms; measured 0.1")
BOUNDS["base.gate"] = Bound(3, "u (2 + spread + max |z|) of the value, as sinkhorn.gate; measured 0.9")
BOUNDS["base.gradient"] = Bound(5e-12, "sum of |weights|; five-point difference, step 2^-10; measured 1.5e-12")
BOUNDS["quantile.bias"] = Bound(2, "u (max |s| + max |bias|) per step: order statistics add no error; measured 0.8")
BOUNDS["quantile.descent"] = Bound(1.5, "u T E max |s|: rounding of a sum of T terms; measured 0.45")
BOUNDS["quantile.load"] = Bound(1, "u T of the value: a sum of T rounded terms; measured 0.5, where T is 1")
BOUNDS["quantile.gate"] = Bound(4, "u (2 + spread + max |z|) of the value, as sinkhorn.gate; measured 1.2")
BOUNDS["quantile.gradient"] = Bound(3e-12, "sum of |weights|; five-point difference, step 2^-10; measured 0.9e-12")
BOUNDS["reinforce.policy"] = Bound(2, "u (4 + spread + max |z|): of the value, of logarithms absolute; measured 0.9")
BOUNDS["reinforce.load"] = Bound(0.5, "u T E of the value, for residuals T times that of a plan; measured 0.13")
BOUNDS["reinforce.log_probability"] = Bound(2, "u (4 + spread + max |z|) per step, absolute; measured 0.7")
BOUNDS["reinforce.entropy"] = Bound(0.5, "u (4 + spread + max |z|) (1 + log E), absolute; measured 0.10")
BOUNDS["reinforce.value"] = Bound(4, "u |x||hidden||out|; d + h + 2 = 9 in the worst case; measured 1.1")
BOUNDS["reinforce.to_go"] = Bound(3, "u sum of |reward|; S - 1 = 5 in the worst case; measured 0.9")
BOUNDS["reinforce.terms"] = Bound(1.5, "u of the parts: |advantage| |log-probability|, |reward|^2, ...; measured 0.4")
BOUNDS["reinforce.gradient"] = Bound(2e-12, "1 + the weighted terms; five-point difference, step 2^-10; measured 6e-13")
BOUNDS["reinforce.gradient_float32"] = Bound(1, "u (4 + spread + max |z|) of the largest; measured 0.1, on a GPU 0.4")
BOUNDS["reinforce.sampling"] = Bound(4.5, "standard deviations of a count; 30,000 draws, fixed seeds; measured 2.0")
BOUNDS["reinforce.estimator"] = Bound(2e-11, "of the norm of the gradient; five-point difference; measured 5e-12")
BOUNDS["reinforce.credit"] = Bound(0.1, "of the norm of the gradient, from below; the bias must show; measured 0.12")
BOUNDS["experts.gelu"] = Bound(4, "u (|x| + |x|^3); measured 1.9")
BOUNDS["experts.ffn"] = Bound(8, "u |x||U||D|; d + f + 6 = 16 in the worst case; measured 3.5")
BOUNDS["experts.loops"] = Bound(40, "u of the largest entry, at least 1; sums in another order; measured 14")
BOUNDS["attention.loops"] = Bound(40, "u of the largest entry, at least 1; sums in another order; measured 14")
BOUNDS["experts.nonlinearity"] = Bound(8, "u of the value, at least 1; a dozen roundings; measured 2")
BOUNDS["tiles.product"] = Bound(12, "u (|a||b| + |c|): up to 600 terms, whose errors average out; measured 3")
BOUNDS["experts.combine"] = Bound(4, "u sum of |gate y|: at k = 2 two roundings in each twin; measured 2.0")
BOUNDS["experts.routed_ffn"] = Bound(8, "u sum of |gate| |x||U||D|; d + f + k + 6 = 18 at worst; measured 2.2")
BOUNDS["experts.dropped"] = Bound(3, "u of the value: a count over T k, as sinkhorn.load; measured 1.5")
BOUNDS["experts.fine_grained"] = Bound(0.3, "u sum of |weights gate| |x||U||D|; sums in other orders; measured 0.07")
BOUNDS["experts.gradient"] = Bound(3e-12, "sum of |weights gate| |x||U||D|; five-point difference; measured 4e-13")

BOUNDS["transformer.logits"] = Bound(100, "u max |logit|; up to 4 blocks of small random weights; measured 25")
BOUNDS["transformer.loss"] = Bound(10, "u max |logit|: errors of logits average out; measured 2.8")
BOUNDS["transformer.gate"] = Bound(20, "u, absolute; a gate is at most 1, its logits small; measured 10")
BOUNDS["transformer.routing"] = Bound(50, "u, absolute: gate, load, plan, residual; measured 12")
BOUNDS["transformer.gradient"] = Bound(1e-9, "norm of the gradient; five-point difference; measured 5e-10, by BASE")
BOUNDS["transformer.gradient_float32"] = Bound(15, "u times the norm of the gradient; measured 4.6")
BOUNDS["transformer.layer_norm"] = Bound(8, "u (|scale| max |x| / deviation + |offset|); measured 2.7")
BOUNDS["transformer.attention"] = Bound(1, "u (1 + s^2) max |output|, s the largest projection; measured 0.23")
BOUNDS["transformer.rotary"] = Bound(8, "u |q||k|: 6 products, each of two sums of two; measured 3.8")
BOUNDS["transformer.router_step"] = Bound(0.05, "of the first step; gates round at 2^-24, and moves are 2^-14")
BOUNDS["transformer.bfloat16"] = Bound(15, "2^-8 max |logit|; measured 5.0")
BOUNDS["transformer.model"] = Bound(400, "u times the largest entry of each field of a loss; measured 100")
BOUNDS["transformer.block"] = Bound(10, "u times the largest entry of each field of a routed block; measured 2.0")
BOUNDS["transformer.noise_mean"] = Bound(5, "standard errors of the mean; fixed seeds; measured 2")
BOUNDS["transformer.noise_deviation"] = Bound(8, "standard errors of a mean: the fourth moment of Gumbel; measured 2")
BOUNDS["transformer.init_mean"] = Bound(5, "standard errors of a leaf's mean; 12 leaves, fixed seeds; measured 2.2")
BOUNDS["transformer.init_deviation"] = Bound(5, "standard errors of a leaf's mean; fixed seeds; measured 1.2")

# The plain model, and worked examples.
BOUNDS["plain.logits"] = Bound(100, "u max |logit|, as transformer.logits; measured 30")
BOUNDS["plain.loss"] = Bound(10, "u (max |logit| + the loss): errors of logits average out; measured 2.3")
BOUNDS["plain.bias"] = Bound(50, "u max |bias|, a difference of logits after up to four blocks; measured 16")
BOUNDS["plain.deviation"] = Bound(4, "u of the value: a root or two and a division or two in another order")
BOUNDS["by_hand.digits"] = Bound(6e-6, "absolute; the example prints five decimals, and the backend may use float32")
BOUNDS["by_hand.plan"] = Bound(5e-4, "absolute; sweeps may stop when columns are off by 1e-3 of a half")
BOUNDS["by_hand.deviation"] = Bound(3, "deviation over the root of the number: six standard errors; measured 0.9")

# Lessons.
BOUNDS["tutorials.value"] = Bound(100, "u of the largest entry; short sums in another order, small logits; measured 6")

# Training.
BOUNDS["training.optimizer"] = Bound(3e-7, "of a leaf's largest entry; all is in float64 except the rate of each step")
BOUNDS["training.rate"] = Bound(1e-6, "relative; the cosine is in float32, and a tenth of it is left")
BOUNDS["training.small_steps"] = Bound(
    0.05, "of a step; weights near 1 are float32, and eight steps of 2^-14 are added"
)
BOUNDS["training.log"] = Bound(1e-6, "relative; means of up to eight numbers, and a root, are in float32")

# Dialects.
BOUNDS["dialects.same"] = Bound(
    1e-2, "relative; it is above bfloat16's rounding, and dialects differ by 0.05 somewhere"
)
BOUNDS["designs.gate"] = Bound(
    8, "u (4 + max z - min z + max |z|) of the value, as top_k.gate; a library's own softmax"
)
BOUNDS["designs.gradient"] = Bound(
    1e-3, "of the largest entry, at least 1; the test takes a difference of step 2^-12 in float32"
)
BOUNDS["designs.scale"] = Bound(
    1e-5, "relative; the test compares a median of float32 ratios with a constant of four digits"
)
BOUNDS["export.values"] = Bound(
    1, "root of u times the largest entry; half the digits must agree where no bound of a test applies"
)
BOUNDS["vectors.closed"] = Bound(
    1e-13, "relative; powers of ten with exponents below 30, over slopes of 0.05, lose 500 u"
)
BOUNDS["vectors.line"] = Bound(
    1e-8, "relative; equations are solved, and the quantile is exact to 1e-10; measured 7e-10"
)
BOUNDS["vectors.objective"] = Bound(1e-11, "relative; the sum is flat at its minimum, with residuals of 1e-3")
BOUNDS["vectors.searched"] = Bound(1e-6, "relative; two searches of one minimum agree to the root of 1e-12")
BOUNDS["vectors.covariance"] = Bound(5e-6, "share of two standard errors; it errs as vectors.searched does")
BOUNDS["vectors.optimum"] = Bound(1e-5, "relative; the minimum of a flat loss is known to the root of 1e-12")
BOUNDS["vectors.again"] = Bound(
    1e-12, "relative; the test writes a formula anew, with exponents up to 30 over slopes of 0.05"
)
BOUNDS["vectors.line_again"] = Bound(1e-6, "relative; the test inverts normal equations and takes differences")
BOUNDS["vectors.search_again"] = Bound(1e-4, "relative; SciPy searches valleys that are flat to 1e-10")
BOUNDS["vectors.broken"] = Bound(
    0.05, "relative; SciPy ends above our minimum in a valley of six unknowns; measured 0.028"
)
BOUNDS["vectors.no_ceiling"] = Bound(1e-9, "of -ln Q'; no row of a table could show such a ceiling; measured 1.6e-12")
BOUNDS["vectors.ratio"] = Bound(1, "u of the value: one division of whole numbers")

SLACK_SHARE = 1 / 50
"""A run warns of a bound if no check used more than this share, because the bound could hide errors."""
SLACK_CHECKS = 20
"""Fewest checks for a meaningful worst share: our choice."""

# Separate bounds of bfloat16: sums in float32, so few roundings of 2^-8 each.
BOUNDS["notation.softmax_bfloat16"] = Bound(4, "2^-8 (1 + |z - max z|) of the value; measured 1.3")
BOUNDS["notation.log_sum_exp_bfloat16"] = Bound(4, "2^-8 (1 + max |z|); measured 1.3")
BOUNDS["experts.gelu_bfloat16"] = Bound(4, "2^-8 (|x| + |x|^3); measured 1.3")
BOUNDS["experts.ffn_bfloat16"] = Bound(3, "2^-8 |x||U||D|; measured 1.3")
BOUNDS["experts.combine_bfloat16"] = Bound(3, "2^-8 sum of |gate y|; measured 1.0")
BOUNDS["experts.routed_ffn_bfloat16"] = Bound(2.5, "2^-8 sum of |gate| |x||U||D|; measured 1.9")
BOUNDS["routed_block.raised"] = Bound(4, "2^-24 (4 + spread + 2 |x||router|) of the value: z, exp, a short sum")
BOUNDS["expert_choice.ffn_bfloat16"] = Bound(2.5, "2^-8 sum of |gate| |x||U||D|; measured 1.1")
BOUNDS["transformer.layer_norm_bfloat16"] = Bound(3, "2^-8 |result| + 2^-24 of the wide parts; measured 1.0")
BOUNDS["transformer.attention_bfloat16"] = Bound(0.1, "2^-8 (1 + s^2) max |output|; measured 0.036")

# Comparisons with other libraries.
BOUNDS["libraries.cross_entropy"] = Bound(5, "u max |logit|: a mean in another order; measured 1.3")
BOUNDS["libraries.plan"] = Bound(3e-12, "of T times the plan; our sweeps stop at 1e-12 of a load; measured 6e-13")
BOUNDS["libraries.linear_program"] = Bound(4, "u T max |s|: sums of T terms, prices of another solver; measured 0.8")
BOUNDS["libraries.fit"] = Bound(
    3e-12, "relative; SciPy stops above our minimum; measured 2.3e-14, with SciPy 1.18 3.3e-13"
)
BOUNDS["libraries.adamw"] = Bound(
    2e-7, "of the way moved; torch clips to norm + 1e-6, and norms are above 5; measured 9e-8"
)
BOUNDS["libraries.rate"] = Bound(
    1e-14, "of the peak; torch updates its rate 40 times, one from the other; measured 7e-16"
)

# Many devices.
BOUNDS["parallel.ffn"] = Bound(1e-13, "of the largest entry; sums of 5 products in another order; measured 1e-15")
BOUNDS["parallel.dropped"] = Bound(1e-15, "absolute; a quotient of two whole numbers below 48")
BOUNDS["mesh.loss"] = Bound(1e-13, "nats, float64; means of up to 128 terms below 10 in another order: 128 u of 10")
BOUNDS["mesh.gradient"] = Bound(2e-13, "of the largest entry of a leaf, float64; as mesh.loss; measured 2e-15")
# A gradient sums up to 128 products of products, and a mesh sums them in another order. In float64 this moves the worst
# entry by 18 u of the largest entry of its leaf (2e-15, mesh.gradient). In float32 it is also 18 u, with u = 2^-24.
BOUNDS["mesh.gradient_float32"] = Bound(
    1.1e-6, "of the largest entry of a leaf; it is the 18 u that mesh.gradient measured"
)
# No short formula bounds the effect of such an error after 20 steps: AdamW divides by the size of the gradient, so an
# entry whose gradient is only rounding moves by the whole rate. So the test repeats the run of one device three times
# with gradients that are off by mesh.gradient_float32, up or down at random. The mesh may deviate twice as far as the
# worst of these three runs (measured: 0.05 to 0.16 of the worst). The loss jumps where rounding decides an assignment,
# in these runs as on the mesh.
BOUNDS["mesh.steps.loss"] = Bound(2, "of the largest change by such gradients, plus transformer.loss of the loss")
BOUNDS["mesh.steps.weights"] = Bound(
    2, "of the change of a leaf by such gradients, plus u of it per step; it averages entries"
)
BOUNDS["export.loss"] = Bound(1e-5, "nats, float32; two steps fuse their sums differently, as in mesh.resumed")
BOUNDS["mesh.resumed"] = Bound(1e-5, "nats, float32; mesh.steps.loss allows about this for a run of that size")
BOUNDS["mesh.steps.evaluation"] = Bound(1e-5, "nats, float32; a log-sum of 32 terms, the same weights; measured 5e-7")
BOUNDS["mesh.steps.load"] = Bound(1e-6, "share; an argmax of the same weights, means of eight shares; measured 6e-8")
BOUNDS["mesh.load"] = Bound(1e-15, "share, float64; a mean of means of equal parts has another order, worth 8 u")
BOUNDS["mesh.bias"] = Bound(1e-14, "absolute; the logits are below 10; measured 0")

worst_share: dict[str, float] = {}

listeners: list = []
"""Functions of (name, share), called after every check."""


def bound_in(name: str, precision: str) -> str:
    """Return the name of a bound in a precision, such as "experts.ffn_bfloat16" if it exists."""
    specific = "_".join((name, precision))  # the text itself: `test_bfloat16.RAISED` shows itself otherwise
    return specific if specific in BOUNDS else name


def check(name: str, error: float, scale: float = 1.0, *, message: str = "") -> None:
    """Fail unless error <= BOUNDS[name].limit * scale; record the share used.

    Args:
        name: key of `BOUNDS`.
        error: the measured error, at least 0; NaN fails.
        scale: the unit of the bound, above 0 (or 0, when the error has to be exactly 0).
        message: what was compared, with shapes; shown on failure.

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
