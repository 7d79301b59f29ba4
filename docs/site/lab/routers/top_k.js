// Top-k: each token takes the k experts that it scores highest. reference/routers/top_k.py explains it.

import { equalShares, logSigmoid, softmax, topK, topKIndices } from "./notation.js";

const scoresOf = (row, score) => (score === "softmax" ? softmax(row) : row.map((z) => Math.exp(logSigmoid(z))));

/**
 * Route each token to its k best experts.
 *
 * score: "softmax" or "sigmoid"; normalisation: "none", "sum" or "softmax"; bias [E] is added to the scores for the
 * choice alone.
 */
export function topKRouter(logits, k = 1, { score = "softmax", normalisation = "none", bias = null } = {}) {
  const biased = (row) => scoresOf(row, score).map((value, e) => value + bias[e]);
  const expert = bias ? logits.map((row) => topK(biased(row), k)) : topKIndices(logits, k);
  const gate = logits.map((row, t) => chosenGates(row, expert[t], score, normalisation));
  return { ...equalShares(expert, logits[0].length), gate };
}

/** Return the gates of the chosen experts of one token, [k]. */
export function chosenGates(row, chosen, score, normalisation) {
  if (normalisation === "none") {
    const scores = scoresOf(row, score);
    return chosen.map((e) => scores[e]);
  }
  const logarithms = score === "sigmoid" && normalisation === "sum" ? row.map(logSigmoid) : row;
  return softmax(chosen.map((e) => logarithms[e]));
}
