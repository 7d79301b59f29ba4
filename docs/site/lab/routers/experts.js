// Capacity, and which tokens get a slot. reference/experts.py explains them.

import { range } from "./notation.js";

/** Return [numerator, denominator], whole numbers, of a factor as the decimal that it prints as: 1.1 is 11 / 10. */
function fraction(factor) {
  const [digits, exponent = "0"] = String(factor).split("e");
  const [whole, decimals = ""] = digits.split(".");
  const power = Number(exponent) - decimals.length;
  const scaled = BigInt(whole + decimals);
  return power >= 0 ? [scaled * 10n ** BigInt(power), 1n] : [scaled, 10n ** BigInt(-power)];
}

/** Return C = min(T, ceil(c k T / E)), the slots of each expert; an infinite factor c has T. */
export function expertCapacity(numTokens, numExperts, k, capacityFactor) {
  if (capacityFactor === Infinity) return numTokens;
  const [numerator, denominator] = fraction(capacityFactor);
  const places = numerator * BigInt(k) * BigInt(numTokens);
  const divisor = denominator * BigInt(numExperts);
  return Math.min(numTokens, Number((places + divisor - 1n) / divisor));
}

/**
 * Return {slot [T, k], kept [T, k], token [E, C]}: a slot for each assignment, while there are any.
 *
 * order: "choice" (all first choices before any second), "token" or "priority" (the largest priority [T, k] first).
 */
export function dispatch(expert, numExperts, capacity, { order = "choice", priority = null } = {}) {
  const slot = expert.map((row) => row.map(() => capacity));
  const token = range(numExperts).map(() => Array(capacity).fill(expert.length));
  const asked = Array(numExperts).fill(0);
  for (const [t, choice] of queueOf(expert, order, priority)) {
    const e = expert[t][choice];
    slot[t][choice] = asked[e];
    if (asked[e] < capacity) token[e][asked[e]] = t;
    asked[e] += 1;
  }
  return { slot, kept: slot.map((row) => row.map((each) => each < capacity)), token };
}

/** Return the pairs [token, choice], the first to be served first. */
export function queueOf(expert, order = "choice", priority = null) {
  const pairs = range(expert[0].length).flatMap((choice) => expert.map((_, t) => [t, choice]));
  if (order === "token") return pairs.sort(([t, i], [u, j]) => t - u || i - j);
  if (order === "priority") return pairs.sort(([t, i], [u, j]) => priority[u][j] - priority[t][i]);
  return pairs;
}
