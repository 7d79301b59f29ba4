// Newton's method for the potentials of S-BASE, where sweeps would take too long; reference/routers/_newton.py.

import { range, sum } from "./notation.js";

const WARM = 16; // what the rows span at the first temperature
const CLOSE = 1; // the reach of a step at which the next temperature is due
const GROUND = 16; // weight of the links to the ground, in units of the rounding error of a mass

const span = (values) => Math.max(...values) - Math.min(...values);

/** Return the potentials [E] after Newton's method, and the number of steps. */
export function newton(rowStep, logits, start, tolerance, maxNewton) {
  const numExperts = start.length;
  const ground = Array(numExperts).fill((GROUND * Number.EPSILON) / numExperts);
  let g = start;
  let temperature = Math.max(1, Math.max(...logits.map((row) => span(row.map((z, e) => z + g[e])))) / WARM);
  let [done, steps] = [false, 0];
  for (; !done && steps < maxNewton; steps++) {
    const warm = (values) => values.map((value) => value / temperature);
    const { logPlan, residual } = rowStep(logits.map(warm), warm(g));
    const v = stepOf(
      logPlan.map((row) => row.map(Math.exp)),
      ground,
    );
    const reach = span(v);
    const length = reach > 0 ? Math.log1p(reach) / reach : 1;
    g = g.map((potential, e) => potential + temperature * length * v[e]); // v is a step of g / temperature
    const mean = sum(g) / numExperts;
    g = g.map((potential) => potential - mean);
    done = temperature === 1 && residual <= tolerance;
    if (reach <= CLOSE || residual <= tolerance) temperature = Math.max(1, temperature / 2);
  }
  return [g, steps];
}

/** Return the Newton step [E] of a plan [T, E]. */
function stepOf(plan, ground) {
  const experts = range(plan[0].length);
  const weights = experts.map((e) => experts.map((j) => plan.length * sum(plan.map((row) => row[e] * row[j]))));
  const excess = experts.map((e) => 1 / experts.length - sum(plan.map((row) => row[e])));
  return solveGraph(weights, excess, ground);
}

/**
 * Return the v [E] of: sum over j of w[e][j] (v[e] - v[j]) + ground[e] v[e] = excess[e].
 *
 * Once a node is removed, its neighbours are linked among themselves in proportion, and take over its excess and its
 * link to the ground. Nothing is subtracted, so that weak links keep all their digits.
 */
function solveGraph(links, excesses, grounds) {
  const [weights, excess, ground] = [links.map((row) => [...row]), [...excesses], [...grounds]];
  const experts = range(excess.length);
  const later = (e) => experts.slice(e + 1);
  const totals = experts.map((e) => {
    const total = sum(later(e).map((j) => weights[e][j])) + ground[e];
    const share = experts.map((j) => weights[e][j] / total);
    for (const i of later(e)) {
      for (const j of later(e)) weights[i][j] += share[i] * weights[e][j];
      excess[i] += share[i] * excess[e];
      ground[i] += share[i] * ground[e];
    }
    return total;
  });
  const v = Array(excess.length).fill(0);
  for (const e of [...experts].reverse()) {
    v[e] = (excess[e] + sum(later(e).map((j) => weights[e][j] * v[j]))) / totals[e];
  }
  return v;
}
