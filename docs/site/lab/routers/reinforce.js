// RL-R: the router is a policy over the experts and learns by REINFORCE. reference/routers/reinforce.py explains it.

import { auxiliaryLoss } from "./balance.js";
import { expertCounts, logSumExp, softmax, sum, topK } from "./notation.js";

/** Return [E] of booleans: the most probable experts whose mass is at least `nucleus`, and k of them at least. */
function nucleusOf(row, k, nucleus) {
  if (nucleus === 1) return row.map(() => true); // the sum of all probabilities may be rounded to 1 before the last
  const probability = softmax(row);
  const inside = row.map(() => false);
  let mass = 0;
  topK(row, row.length).forEach((e, rank) => {
    inside[e] = rank < k || mass < nucleus;
    mass += probability[e];
  });
  return inside;
}

/** Return [T, E], the logarithm of the policy: log softmax over the nucleus of each token, -Infinity outside. */
export function logPolicy(logits, k = 1, nucleus = 1) {
  return logits.map((row) => {
    const inside = nucleusOf(row, k, nucleus);
    const total = logSumExp(row.filter((_, e) => inside[e]));
    return row.map((z, e) => (inside[e] ? z - total : -Infinity));
  });
}

/** Return [T], the log-probability of drawing these experts [T, k] in this order, without replacement. */
export function logProbability(logits, expert, nucleus = 1) {
  return logits.map((row, t) => {
    const left = nucleusOf(row, expert[t].length, nucleus);
    let total = 0;
    for (const e of expert[t]) {
      total += left[e] ? row[e] - logSumExp(row.filter((_, j) => left[j])) : -Infinity;
      left[e] = false;
    }
    return total;
  });
}

/** Return [T], the entropy of each token's policy, in nats. */
export function policyEntropy(logits, k = 1, nucleus = 1) {
  const terms = (row) => row.filter((entry) => entry > -Infinity).map((entry) => -Math.exp(entry) * entry);
  return logPolicy(logits, k, nucleus).map((row) => sum(terms(row)));
}

/** Draw an expert for each token: the largest log-probability plus Gumbel noise [T, E]. */
export function reinforceRouter(logits, gumbel) {
  const logPi = logPolicy(logits);
  const expert = logPi.map((row, t) =>
    topK(
      row.map((entry, e) => entry + gumbel[t][e]),
      1,
    ),
  );
  return { expert, policy: logPi.map((row) => row.map(Math.exp)), counts: expertCounts(expert, logits[0].length) };
}

const mean = (values) => sum(values) / values.length;

/** Return {loss, policy, baseline, entropy, balance, advantage}: what a routed block adds to the training loss. */
export function policyTerms(logits, expert, value, reward, options = {}) {
  const weights = { policy_weight: 1e-2, baseline_weight: 1e-2, entropy_weight: 0, balance_weight: 1e-2, ...options };
  const { nucleus = 1, held_advantage: held = null } = options;
  const advantage = held ?? reward.map((r, t) => r - value[t]);
  const logProbabilities = logProbability(logits, expert, nucleus);
  const policy = -mean(advantage.map((a, t) => a * logProbabilities[t]));
  const baseline = mean(reward.map((r, t) => (r - value[t]) ** 2));
  const entropy = mean(policyEntropy(logits, expert[0].length, nucleus));
  const balance = auxiliaryLoss(logits, expert).loss;
  const loss =
    weights.policy_weight * policy +
    weights.baseline_weight * baseline -
    weights.entropy_weight * entropy +
    weights.balance_weight * balance;
  return { loss, policy, baseline, entropy, balance, advantage };
}

/**
 * Return the logits after one step of gradient ascent on advantage * log policy(expert), token by token.
 * The gradient of log policy(e) by the logits is the one-hot row of e less the policy.
 */
export function policyStep(logits, expert, advantage, rate) {
  return logits.map((row, t) => {
    const policy = softmax(row);
    return row.map((z, e) => z + rate * advantage[t] * (Number(e === expert[t][0]) - policy[e]));
  });
}
