// The best model for a budget, by one law at a time: brute force. reference/laws/plans/planning.py explains it.
//
// A budget is {flops, memory, inference_tokens, cached_tokens, bytes_per_number}. A family is a function of one number,
// the width or the size of a model, that returns {active, total, tokens, memory, loss} with all tokens that the budget
// pays for, or null where it pays for none. A token of inference costs a third of one of training.

import { countsBySize } from "./accounting.js";
import {
  fineGrainedActive,
  fineGrainedFlops,
  fineGrainedParameters,
  jointActive,
  jointCache,
  jointTotal,
  predictFineGrained,
  predictHoffmann,
  predictJoint,
  predictSparsity,
  sparsityActive,
} from "./additive.js";
import { predictLoss } from "./routed.js";

/** A budget without limits but for FLOPs. */
export const unlimited = (flops) => ({
  flops,
  memory: Infinity,
  inference_tokens: 0,
  cached_tokens: 0,
  bytes_per_number: 2,
});

/** Return {x, value} at the least value between low and high: a scan, and again between the neighbours of the lowest. */
function lowest(f, low, high) {
  let best = null;
  for (let round = 0; round < 5; round++) {
    const points = Array.from({ length: 1001 }, (_, i) => low * (high / low) ** (i / 1000));
    const values = points.map(f);
    const k = values.reduce((least, value, i) => (value < values[least] ? i : least), 0);
    best = { x: points[k], value: values[k] };
    [low, high] = [points[Math.max(k - 1, 0)], points[Math.min(k + 1, 1000)]];
  }
  return best;
}

/** Return {x, ...model} with the least loss of a family between two ends; null where nothing fits. */
export function optimum({ family, low, high }) {
  const { x, value } = lowest((each) => family(each)?.loss ?? Infinity, low, Math.max(high, low));
  return value === Infinity ? null : { x, ...family(x) };
}

/** Return a model, or null if the budget does not pay for it. `cost` is the FLOPs of training on one token. */
function within(budget, { active, total, cached = 0 }, cost, lossAt) {
  const tokens = (budget.flops - (budget.inference_tokens * cost) / 3) / cost;
  const memory = budget.bytes_per_number * (total + cached);
  return tokens >= 1 && memory <= budget.memory ? { active, total, tokens, memory, loss: lossAt(tokens) } : null;
}

const cubeRoot = (flops) => flops ** (1 / 3);

export function hoffmannFamily(budget, k) {
  const family = (N) => within(budget, { active: N, total: N }, 6 * N, (D) => predictHoffmann(N, D, k));
  return { family, low: 1, high: budget.flops / 6 };
}

export function fineGrainedFamily(budget, expansion, G, k) {
  const family = (d) => {
    const total = fineGrainedParameters(d, expansion);
    const cost = fineGrainedFlops(d, expansion, G);
    return within(budget, { active: fineGrainedActive(d), total }, cost, (D) => predictFineGrained(total, D, G, k));
  };
  return { family, low: 64, high: cubeRoot(budget.flops) };
}

export function jointFamily(budget, E, k, vocabulary) {
  const family = (d) => {
    const [active, total] = [jointActive(d, vocabulary), jointTotal(d, E, vocabulary)];
    const cached = jointCache(d, budget.cached_tokens);
    return within(budget, { active, total, cached }, 6 * active, (D) => predictJoint(active, D, E, k));
  };
  return { family, low: 64, high: cubeRoot(budget.flops) };
}

export function sparsityFamily(budget, S, k, always = 0) {
  const family = (P) => {
    const active = sparsityActive(P, S, always);
    return within(budget, { active, total: P }, 6 * active, (D) => predictSparsity(P, D, S, k));
  };
  return { family, low: 1e5, high: 1e16 };
}

/**
 * The bounded law knows no tokens: a model is trained on the `tokens` of the law's own runs, if the budget pays for
 * them. Sizes end at ten times the largest run.
 */
export function routedFamily(budget, router, E, law, { tokens, largest }) {
  const counts = countsBySize(E === 1 ? "Dense" : router, E);
  const family = (N) => {
    const { total, flops } = counts(N);
    const memory = budget.bytes_per_number * total;
    const pays = 3 * flops * tokens + flops * budget.inference_tokens <= budget.flops && memory <= budget.memory;
    return pays ? { active: N, total, tokens, memory, loss: predictLoss(N, E, law) } : null;
  };
  return { family, low: 1e6, high: 10 * largest };
}

/** Return the best of several options, {option, ...model}, each with its own family; null where none fits. */
export function bestOption(options, familyOf) {
  const found = options.map((option) => ({ option, best: optimum(familyOf(option)) })).filter(({ best }) => best);
  return found.sort((a, b) => a.best.loss - b.best.loss).map(({ option, best }) => ({ option, ...best }));
}
