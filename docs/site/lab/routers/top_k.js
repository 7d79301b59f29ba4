// Top-k: each token takes the k experts that it scores highest. reference/routers/top_k.py explains it.

import { equalShares, logSigmoid, range, softmax, sum, topK } from "./notation.js";

const logSoftplus = (z) => (z < -40 ? z : Math.log(Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)))));

const LOGARITHMS = { sigmoid: logSigmoid, sqrtsoftplus: (z) => logSoftplus(z) / 2 };

const scoresOf = (row, score) =>
  score === "softmax" ? softmax(row) : row.map((z) => Math.exp(LOGARITHMS[score](z)));

/**
 * Route each token to its k best experts.
 *
 * score: "softmax", "sigmoid" or "sqrtsoftplus"; normalisation: "none", "sum" or "softmax"; bias [E] is added to the scores for the
 * choice alone; gate_scale multiplies the gates. With expert_groups equal groups a token first chooses groups_per_token
 * of them, by their two best experts or by their best.
 */
export function topKRouter(logits, k = 1, options = {}) {
  const { score = "softmax", normalisation = "none", bias = null, gate_scale: scale = 1 } = options;
  const expert = logits.map((row) => {
    const scores = scoresOf(row, score).map((value, e) => value + (bias ? bias[e] : 0));
    const allowed = inBestGroups(scores, options);
    return topK((bias ? scores : row).map((value, e) => (allowed[e] ? value : -Infinity)), k);
  });
  const gate = logits.map((row, t) => chosenGates(row, expert[t], score, normalisation).map((value) => scale * value));
  return { ...equalShares(expert, logits[0].length), gate };
}

/** Return [E] of booleans: the experts in the groups that a token chooses by the scores [E]. */
function inBestGroups(scores, { expert_groups: groups = 1, groups_per_token: chosen = 1, group_score: by = "two_best" }) {
  const size = scores.length / groups;
  const totals = range(groups).map((g) => {
    const sorted = scores.slice(g * size, (g + 1) * size).sort((a, b) => b - a);
    return sum(sorted.slice(0, by === "two_best" ? 2 : 1));
  });
  const best = topK(totals, chosen);
  return scores.map((_, e) => best.includes(Math.floor(e / size)));
}

/** Return the gates of the chosen experts of one token, [k]. */
export function chosenGates(row, chosen, score, normalisation) {
  if (normalisation === "none") {
    const scores = scoresOf(row, score);
    return chosen.map((e) => scores[e]);
  }
  const logarithms = score !== "softmax" && normalisation === "sum" ? row.map(LOGARITHMS[score]) : row;
  return softmax(chosen.map((e) => logarithms[e]));
}
