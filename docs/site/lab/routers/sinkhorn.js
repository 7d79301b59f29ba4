// S-BASE: tokens are shared out by an entropy-regularised transport plan. reference/routers/sinkhorn.py explains it.

import { column, equalShares, expertCounts, gateValues, logSumExp, range, sum, topKIndices } from "./notation.js";
import { newton } from "./newton.js";

/**
 * Return {plan, column_potential, residual, sweeps, converged, newton_steps}: the plan that gives each token mass 1/T
 * and each expert mass 1/E. `numSweeps` takes exactly so many column steps.
 */
export function sinkhornPlan(logits, { tolerance = 1e-3, maxSweeps = 100, maxNewton = 200, numSweeps = null } = {}) {
  let [g, sweeps] = numSweeps === null ? sweep(logits, tolerance, maxSweeps) : sweep(logits, -Infinity, numSweeps);
  let { logPlan, residual } = rowStep(logits, g);
  let newtonSteps = 0;
  if (numSweeps === null && residual > tolerance && maxNewton > 0) {
    const [newtonG, steps] = newton(rowStep, logits, g, tolerance, maxNewton);
    const last = rowStep(logits, newtonG);
    newtonSteps = steps;
    if (last.residual < residual) [g, logPlan, residual] = [newtonG, last.logPlan, last.residual];
  }
  const plan = logPlan.map((row) => row.map(Math.exp));
  const converged = residual <= tolerance;
  return { plan, column_potential: g, residual, sweeps, converged, newton_steps: newtonSteps };
}

/** Return the potentials g [E] and how many column steps were taken, from g = 0 until the residual is small. */
function sweep(logits, tolerance, maxSweeps) {
  let g = Array(logits[0].length).fill(0);
  for (let sweeps = 0; sweeps < maxSweeps; sweeps++) {
    const { logMass, residual } = rowStep(logits, g);
    if (residual <= tolerance) return [g, sweeps];
    g = columnStep(g, logMass);
  }
  return [g, maxSweeps];
}

/** Return the potentials with which each expert has mass 1/E: logMass is g + log of the sum of exp(z + a). */
export const columnStep = (g, logMass) => g.map((potential, e) => potential - Math.log(g.length) - logMass[e]);

/** Return {logPlan [T, E], logMass [E], residual} after a row step: each token has mass 1/T. */
export function rowStep(logits, g) {
  const logPlan = logits.map((row) => {
    const values = row.map((z, e) => z + g[e]);
    const top = Math.max(...values); // with the maximum at 0, large logits do not round the sums
    const shifted = values.map((value) => value - top);
    const total = logSumExp(shifted) + Math.log(logits.length);
    return shifted.map((value) => value - total);
  });
  const logMass = g.map((_, e) => logSumExp(column(logPlan, e)));
  return { logPlan, logMass, residual: residualOf(logMass.map(Math.exp)) };
}

const residualOf = (mass) => Math.max(...mass.map((share) => Math.abs(mass.length * share - 1)));

/** Route by S-BASE: from the plan in training, from the logits in evaluation. */
export function sinkhornRouter(logits, k = 1, { training = true, gate = "softmax", numSweeps = null } = {}) {
  const numExperts = logits[0].length;
  const gated = (routing) => ({ ...routing, gate: gateValues(logits, routing.expert, gate) });
  if (!training) return gated(equalShares(topKIndices(logits, k), numExperts));
  const { plan, column_potential: g, residual } = sinkhornPlan(logits, { numSweeps });
  const expert = topKIndices(
    logits.map((row) => row.map((z, e) => z + g[e])),
    k,
  );
  const load = expertCounts(expert, numExperts).map((count) => count / (logits.length * k));
  return gated({ expert, load, plan, residual });
}

/** Return the score and the entropy of a plan. */
export function planTerms(plan, logits) {
  const pairs = plan.flatMap((row, t) => row.map((mass, e) => [mass, logits[t][e]]));
  const entropy = -sum(pairs.map(([mass]) => (mass > 0 ? mass * Math.log(mass) : 0)));
  return { score: sum(pairs.map(([mass, z]) => mass * z)), entropy };
}

/** Return [E], the masses of the experts of a plan. */
export const masses = (plan) => range(plan[0].length).map((e) => sum(column(plan, e)));
