// HASH: a fixed rule, from the token's id to its expert. reference/routers/hash_layer.py explains it.

import { equalShares, range } from "./notation.js";

/** Route each token by the remainder of its id. */
export function hashLayer(tokenIds, numExperts) {
  const expert = tokenIds.map((id) => [id % numExperts]);
  return { ...equalShares(expert, numExperts), gate: expert.map(() => [1]) };
}

/** Return the steps s for which 0, s, ... (k - 1) s differ modulo E: from (E - 1) // k on, then the smaller ones. */
function stepsOf(numExperts, k) {
  const differ = (s) => new Set(range(k).map((j) => (j * s) % numExperts)).size === k;
  const steps = range(numExperts).filter(differ);
  const first = Math.floor((numExperts - 1) / k);
  return [...steps.filter((s) => s >= first), ...steps.filter((s) => s < first)];
}

/** Return [V, k]: the remainder of the id, and further choices at equal steps from it. */
export function moduloTable(vocabSize, numExperts, k = 1) {
  const steps = stepsOf(numExperts, k);
  return range(vocabSize).map((token) => {
    const step = steps[Math.floor(token / numExperts) % steps.length];
    return range(k).map((choice) => (token + choice * step) % numExperts);
  });
}

/** Return [V, k]: the most frequent token first, each into the emptiest expert and k - 1 others nearly as empty. */
export function balancedTable(counts, numExperts, k = 1) {
  const load = Array(numExperts).fill(0);
  const held = Array(numExperts).fill(0); // tokens in the table, of each expert
  const steps = stepsOf(numExperts, numExperts);
  const table = counts.map(() => []);
  const frequentFirst = range(counts.length).sort((a, b) => counts[b] - counts[a] || a - b);
  frequentFirst.forEach((token, place) => {
    const emptiest = range(numExperts).sort((a, b) => load[a] - load[b] || held[a] - held[b] || a - b);
    const walk = range(numExperts).map((i) => (emptiest[0] + i * steps[place % steps.length]) % numExperts);
    const near = walk.filter((e) => load[e] < load[emptiest[0]] + counts[token]);
    table[token] = (near.length >= k ? near : emptiest).slice(0, k);
    table[token].forEach((e) => {
      load[e] += counts[token];
      held[e] += 1;
    });
  });
  return table;
}
