// BASE: tokens are shared out among the experts exactly. reference/routers/base.py explains it and proves it.

import { range, sum, topK } from "./notation.js";

/**
 * Return {expert [T, k], objective, prices [E], gap}: the best of all balanced assignments, and the proof.
 * Ties: the one that gives token 0 the lowest expert that any of the best gives it, then token 1, and so on.
 */
export function balancedAssignment(scores, k = 1) {
  const [numTokens, numExperts] = [scores.length, scores[0].length];
  const { values, exponent } = wholeNumbers(scores);
  const slots = Math.ceil((numTokens * k) / numExperts);
  let holds = scores.map((row, t) => new Set(topK(values[t].map(Number), k)));
  // One more token takes the slots that are left over, if any are; all experts are worth 0 to it.
  values.push(Array(numExperts).fill(0n));
  holds.push(new Set(range(slots * numExperts - numTokens * k)));
  holds = balance(values, holds, Array(numExperts).fill(slots));
  holds = firstOfTheBest(values, holds, slots);
  const { cost } = cheapestChains(cheapestMoves(values, holds), range(numExperts), numExperts);
  const dearest = cost.reduce((a, b) => (a > b ? a : b));
  const prices = cost.map((each) => scaled(Number(dearest - each), exponent));
  const expert = scores.map((row, t) => [...holds[t]].sort((a, b) => row[b] - row[a] || a - b));
  const objective = sum(scores.flatMap((row, t) => expert[t].map((e) => row[e])));
  return { expert, objective, prices, gap: dualBound(scores, prices, k) - objective };
}

/** Return a number that no balanced assignment with k experts per token exceeds, whatever the prices. */
export function dualBound(scores, prices, k = 1) {
  const falling = (values) => [...values].sort((a, b) => b - a);
  const everyone = Math.floor((scores.length * k) / prices.length);
  const more = (scores.length * k) % prices.length;
  const best = scores.map((row) => sum(falling(row.map((s, e) => s - prices[e])).slice(0, k)));
  return sum(best) + everyone * sum(prices) + sum(falling(prices).slice(0, more));
}

/** Return value * 2 ** power, in two factors that neither overflow nor underflow on the way. */
function scaled(value, power) {
  const half = Math.trunc(power / 2);
  return value * 2 ** half * 2 ** (power - half);
}

/** Return the nearest whole number; of two equally near, the even one. */
function rounded(value) {
  const nearest = Math.round(value);
  return Math.abs(value % 1) === 0.5 && nearest % 2 !== 0 ? nearest - 1 : nearest;
}

/** Return {values, exponent}: BigInts [T, E] that are the scores times 2 ** -exponent, but for rounding. */
function wholeNumbers(scores) {
  const largest = Math.max(...scores.flat().map(Math.abs));
  let above = 0; // every |score| is below 2 ** above
  if (largest > 0) {
    above = Math.floor(Math.log2(largest)) + 1;
    while (scaled(largest, -above) >= 1) above += 1;
    while (scaled(largest, -above) < 0.5) above -= 1;
  }
  const bits = 52 - Math.max(0, scores[0].length.toString(2).length - 5);
  above = Math.max(above, bits - 1022); // the unit has to be a normal number
  const values = scores.map((row) => row.map((s) => BigInt(rounded(scaled(s, bits - above)))));
  return { values, exponent: above - bits };
}

/** Return holds after moves along cheapest chains, until every expert has as many as wanted; null if that cannot be. */
function balance(values, start, wanted) {
  const [holds, numExperts] = [[...start], wanted.length];
  for (;;) {
    const tooMany = loadsOf(holds, numExperts).map((load, e) => load - wanted[e]);
    if (tooMany.every((count) => count === 0)) return holds;
    const moves = cheapestMoves(values, holds);
    const sources = range(numExperts).filter((e) => tooMany[e] > 0);
    const { cost, before } = cheapestChains(moves, sources, numExperts);
    const targets = range(numExperts).filter((e) => tooMany[e] < 0 && cost[e] !== null);
    if (targets.length === 0) return null;
    let target = targets.reduce((a, b) => (cost[b] < cost[a] ? b : a));
    while (before[target] !== null) {
      // from the end of the chain to its beginning
      const source = before[target];
      const { t } = moves.get(source * numExperts + target);
      holds[t] = new Set([...holds[t]].filter((e) => e !== source).concat(target));
      target = source;
    }
  }
}

/** Return [E], how many tokens each expert has. */
function loadsOf(holds, numExperts) {
  return range(numExperts).map((e) => holds.filter((own) => own.has(e)).length);
}

/** Return a map from i E + j to {loss, t}: token t loses least by a move from expert i to expert j. */
function cheapestMoves(values, holds) {
  const moves = new Map();
  const numExperts = values[0].length;
  holds.forEach((own, t) => {
    for (const i of own) {
      for (const j of range(numExperts)) {
        if (own.has(j)) continue;
        const loss = values[t][i] - values[t][j];
        const known = moves.get(i * numExperts + j);
        if (!known || loss < known.loss) moves.set(i * numExperts + j, { i, j, loss, t });
      }
    }
  });
  return moves;
}

/** Return {cost, before} [E]: what the cheapest chain of moves from any source costs (null: none), as Bellman and Ford. */
function cheapestChains(moves, sources, numExperts) {
  const cost = range(numExperts).map((e) => (sources.includes(e) ? 0n : null));
  const before = Array(numExperts).fill(null);
  for (let cheaper = true; cheaper;) {
    cheaper = false;
    for (const { i, j, loss } of moves.values()) {
      if (cost[i] !== null && (cost[j] === null || cost[i] + loss < cost[j])) {
        [cost[j], before[j], cheaper] = [cost[i] + loss, i, true];
      }
    }
  }
  return { cost, before };
}

/** Return, of all assignments as good as a best one, the first in the order of a dictionary. */
function firstOfTheBest(values, start, slots) {
  let holds = start;
  const [experts, best] = [range(values[0].length), totalOf(values, start)];
  for (const t of range(holds.length - 1)) {
    for (const e of experts) {
      for (const higher of [...holds[t]].sort((a, b) => a - b)) {
        if (higher <= e || holds[t].has(e)) continue;
        const own = new Set([...holds[t]].filter((each) => each !== higher).concat(e));
        const settled = [...holds.slice(0, t), own];
        const left = loadsOf(settled, experts.length).map((load) => slots - load);
        const later = left.some((count) => count < 0) ? null : balance(values.slice(t + 1), holds.slice(t + 1), left);
        if (later && totalOf(values, [...settled, ...later]) === best) holds = [...settled, ...later];
      }
    }
  }
  return holds;
}

/** Return the sum of the scores of all assignments. */
function totalOf(values, holds) {
  return holds.reduce((total, own, t) => [...own].reduce((part, e) => part + values[t][e], total), 0n);
}
