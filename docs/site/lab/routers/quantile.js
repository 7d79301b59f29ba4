// Quantile balancing: a bias that moves to where the experts of a batch would be balanced.
// reference/routers/quantile.py explains it.

import { column, equalShares, gateValues, range, sum, topKIndices } from "./notation.js";

/** Return the middle between the rank-th and the next largest value. */
function middle(values, rank) {
  const ordered = [...values].sort((a, b) => b - a);
  return (ordered[rank - 1] + ordered[rank]) / 2;
}

/** Return the bias [E] after steps on one batch of scores [T, E]. */
export function quantileBias(scores, start, k = 1, { numSteps = 1 } = {}) {
  const [numTokens, numExperts] = [scores.length, start.length];
  const everyone = Math.floor((numTokens * k) / numExperts);
  const more = (numTokens * k) % numExperts;
  let bias = start;
  for (let step = 0; step < numSteps && k < numExperts; step++) {
    const alpha = scores.map((row) =>
      middle(
        row.map((s, e) => s - bias[e]),
        k,
      ),
    );
    const gamma = more ? [middle(bias, more)] : [];
    const candidates = (e) => [...column(scores, e).map((s, t) => s - alpha[t]), ...gamma];
    const moved = range(numExperts).map((e) => middle(candidates(e), everyone + (more > 0)));
    const mean = sum(moved) / numExperts;
    bias = moved.map((price) => price - mean);
  }
  return bias;
}

/** Route by the logits less the bias. */
export function quantileRouter(logits, bias, k = 1, { gate = "sigmoid" } = {}) {
  const expert = topKIndices(
    logits.map((row) => row.map((z, e) => z - bias[e])),
    k,
  );
  return { ...equalShares(expert, bias.length), gate: gateValues(logits, expert, gate) };
}
