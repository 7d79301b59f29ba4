// Helpers that the routers share; reference/notation.py has the same names.
// A table [T, E] is an array of T rows; each row has an entry for each expert.

/** Return numbers 0 ... n - 1. */
export const range = (n) => Array.from({ length: n }, (_, i) => i);

export const sum = (values) => values.reduce((total, value) => total + value, 0);

export const column = (table, e) => table.map((row) => row[e]);

/** Return [E, T] from [T, E]. */
export const transposed = (table) => range(table[0].length).map((e) => column(table, e));

/** Return the indices of the k largest entries of a row, largest first, ties to the lower index (-0 equals 0). */
export function topK(row, k) {
  return range(row.length)
    .sort((a, b) => row[b] - row[a] || a - b)
    .slice(0, k);
}

/** Return [T, k]: `topK` of each row. */
export const topKIndices = (scores, k) => scores.map((row) => topK(row, k));

/** Return exp(z) / sum of exp(z) of one row, shifted by the maximum so that nothing overflows. */
export function softmax(row) {
  const top = Math.max(...row);
  const shifted = row.map((z) => Math.exp(z - top));
  const total = sum(shifted);
  return shifted.map((value) => value / total);
}

/** Return log of the sum of exp(z) of one row, shifted by the maximum. */
export function logSumExp(row) {
  const top = Math.max(...row);
  return top + Math.log(sum(row.map((z) => Math.exp(z - top))));
}

/** Return 1 / (1 + exp(-z)), written so that nothing overflows. */
export function sigmoid(z) {
  const small = Math.exp(-Math.abs(z));
  return (z >= 0 ? 1 : small) / (1 + small);
}

/** Return log sigmoid(z). */
export const logSigmoid = (z) => Math.min(z, 0) - Math.log1p(Math.exp(-Math.abs(z)));

/** Return [E], how many of the assignments [T, k] each expert received. */
export function expertCounts(expert, numExperts) {
  const counts = Array(numExperts).fill(0);
  expert.flat().forEach((e) => (counts[e] += 1));
  return counts;
}

/** Return the gate of each chosen expert, [T, k]: softmax or sigmoid of its logit. */
export function gateValues(logits, expert, gate) {
  return logits.map((row, t) => {
    const activated = gate === "softmax" ? softmax(row) : row.map(sigmoid);
    return expert[t].map((e) => activated[e]);
  });
}

/**
 * Return {expert, load, plan, residual}: a routing, still without gates, in which each kept assignment has one share.
 * kept is [T, k] of booleans; all assignments count without it.
 */
export function equalShares(expert, numExperts, kept = expert.map((row) => row.map(() => true))) {
  const total = sum(kept.flat().map(Number));
  const plan = expert.map((row, t) => {
    const shares = Array(numExperts).fill(0);
    row.forEach((e, choice) => (shares[e] += kept[t][choice] / total));
    return shares;
  });
  const load = range(numExperts).map((e) => sum(column(plan, e)));
  return { expert, load, plan, residual: Math.max(...load.map((share) => Math.abs(numExperts * share - 1))) };
}
