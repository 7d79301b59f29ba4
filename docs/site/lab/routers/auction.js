// The auction of lesson 3: tokens bid for slots, and prices rise until every token has a slot.

import { dualBound } from "./base.js";
import { range, topK } from "./notation.js";

/**
 * Return the states of an auction, the first before any bid.
 *
 * A state is {bid, prices [E], bids [E] of [{amount, token}], free [tokens without a slot], bound}; bid says what
 * happened: {token, expert, amount, outbid}. E has to divide T. A bid is above what makes the second best expert as
 * good by `step`; the assignment at the end is within T * step of the best one.
 */
export function auction(scores, step, maxBids = 400) {
  const [numTokens, numExperts] = [scores.length, scores[0].length];
  const slots = numTokens / numExperts;
  let prices = Array(numExperts).fill(0);
  let bids = range(numExperts).map(() => []);
  let free = range(numTokens);
  const states = [{ bid: null, prices, bids, free, bound: dualBound(scores, prices) }];
  while (free.length && states.length <= maxBids) {
    const [token, ...waiting] = free;
    const left = scores[token].map((s, e) => s - prices[e]);
    const [expert, second = expert] = topK(left, 2);
    const amount = prices[expert] + left[expert] - left[second] + step;
    const queue = [...bids[expert], { amount, token }].sort((a, b) => b.amount - a.amount || b.token - a.token);
    const outbid = queue.slice(slots).map((each) => each.token);
    const held = queue.slice(0, slots);
    bids = bids.map((each, e) => (e === expert ? held : each));
    if (held.length === slots) prices = prices.map((p, e) => (e === expert ? held[slots - 1].amount : p));
    free = [...waiting, ...outbid];
    states.push({ bid: { token, expert, amount, outbid }, prices, bids, free, bound: dualBound(scores, prices) });
  }
  return states;
}
