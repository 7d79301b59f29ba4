// The loss and the bias that keep experts busy. reference/balance.py explains them.

import { expertCounts, logSigmoid, logSumExp, softmax, sum } from "./notation.js";

/** Return [E], the mean over tokens of the probability of each expert. */
export function meanProbability(logits, score = "softmax") {
  const rows = logits.map((row) => softmax(score === "sigmoid" ? row.map(logSigmoid) : row));
  return rows[0].map((_, e) => sum(rows.map((row) => row[e])) / rows.length);
}

/** Return {loss, share, probability}: the loss that grows when the busy experts are also the probable ones. */
export function auxiliaryLoss(logits, expert, { dialect = "assignments", score = "softmax" } = {}) {
  const numExperts = logits[0].length;
  const counted = ["first_choice", "gshard"].includes(dialect) ? expert.map((row) => [row[0]]) : expert;
  const total = dialect === "assignments" ? expert.length * expert[0].length : expert.length;
  const share = expertCounts(counted, numExperts).map((count) => count / total);
  const probability = meanProbability(logits, score);
  const scale = dialect === "gshard" ? 1 / numExperts : numExperts;
  return { loss: scale * sum(share.map((value, e) => value * probability[e])), share, probability };
}

/** Return the mean over tokens of the squared log of the softmax's denominator. */
export const zLoss = (logits) => sum(logits.map((row) => logSumExp(row) ** 2)) / logits.length;

/** Return the bias of the next step: up where an expert received less than the mean, down where it received more. */
export function updateBias(bias, counts, { rate = 1e-3, recentre = "none" } = {}) {
  const centred = (values) => values.map((value) => value - sum(values) / values.length);
  const total = sum(counts);
  const signs = counts.map((count) => Math.sign(total - counts.length * count)); // of whole numbers, so balance is exact
  const step = recentre === "step" ? centred(signs) : signs;
  const moved = bias.map((value, e) => value + rate * step[e]);
  return recentre === "bias" ? centred(moved) : moved;
}
