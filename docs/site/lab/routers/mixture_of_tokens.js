// Mixture of Tokens: each expert works on one weighted mean of the group's tokens.
// reference/routers/mixture_of_tokens.py explains it.

import { softmax, topK, transposed } from "./notation.js";

/** Return [T, E], how much of each token goes into the mixture of each expert; each column sums to 1. */
export function mixingWeights(logits, temperature = 1, { oneHot = false } = {}) {
  const columns = transposed(logits).map((values) => {
    if (!oneHot) return softmax(values.map((z) => z / temperature));
    const [largest] = topK(values, 1);
    return values.map((_, t) => Number(t === largest));
  });
  return transposed(columns);
}
