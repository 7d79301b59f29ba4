// Expert choice: each expert takes the C tokens that it scores highest. reference/routers/expert_choice.py explains it.

import { expertCapacity } from "./experts.js";
import { expertCounts, logSumExp, sigmoid, softmax, topK, transposed } from "./notation.js";

/** Return {token [E, C], gate [E, C], experts_per_token [T]}. */
export function expertChoiceRouter(logits, capacityFactor = 2, { score = "softmax" } = {}) {
  const capacity = expertCapacity(logits.length, logits[0].length, 1, capacityFactor);
  const token = transposed(selectionScores(logits, score)).map((values) => topK(values, capacity));
  const scores = logits.map((row) => (score === "softmax" ? softmax(row) : row.map(sigmoid)));
  const gate = token.map((tokens, e) => tokens.map((t) => scores[t][e]));
  return { token, gate, experts_per_token: expertCounts(token, logits.length) };
}

/** Return [T, E], what an expert compares: log softmax(z), or z itself for the sigmoid, whose order is the same. */
export function selectionScores(logits, score = "softmax") {
  if (score === "sigmoid") return logits;
  return logits.map((row) => {
    const top = Math.max(...row);
    const shifted = row.map((z) => z - top);
    const total = logSumExp(shifted);
    return shifted.map((z) => z - total);
  });
}
