// BASE on the page: prices that the reader sets, or an auction, bid by bid.

import { auction } from "../routers/auction.js";
import { dualBound } from "../routers/base.js";
import { range } from "../routers/notation.js";
import { cellsOf, counted, isBalanced, scaledLevel, sentence, shown, sumOfScores, tokensNamed } from "./views.js";

const SAME = 1e-9; // two amounts nearer than this are equal: prices are sums of rounded numbers

/** Return the states of BASE: of the reader's prices if there are any, else of the auction. */
export function baseStates(context, best) {
  const { scores, params } = context;
  if (params.prices) return [() => byHand(scores, params.prices, best)];
  if (scores.length % scores[0].length) return [() => byHand(scores, best.prices, best, UNEVEN)];
  const states = auction(scores, params.epsilon);
  const trace = { name: "bound", values: states.map(({ bound }) => bound), level: best.objective };
  return states.map((state) => () => ({
    ...(state.bid ? bidView(scores, state, best, params.epsilon) : byHand(scores, state.prices, best)),
    trace,
  }));
}

const UNEVEN = "The auction needs the same number of tokens for each expert; these prices are from the exact method.";

const leftOf = (scores, prices) => scores.map((row) => row.map((s, e) => s - prices[e]));

/** Return [T], where each token goes: to a wish, and among equal wishes to that of the best assignment. */
function wishesOf(left, best) {
  return left.map((row, t) => {
    const most = Math.max(...row);
    const wishes = range(row.length).filter((e) => row[e] >= most - SAME);
    return wishes.includes(best.expert[t][0]) ? best.expert[t][0] : wishes[0];
  });
}

function byHand(scores, prices, best, remark = "") {
  const left = leftOf(scores, prices);
  const wish = wishesOf(left, best);
  const slots = Math.ceil(scores.length / prices.length);
  const queues = prices.map((_, e) => range(scores.length).filter((t) => wish[t] === e));
  const queued = queues.map((tokens) => tokens.map((token, i) => ({ token, lost: i >= slots })));
  const bound = dualBound(scores, prices);
  const proved = bound - best.objective < SAME && isBalanced(queues);
  return {
    cells: cellsOf(left, queued, { level: scaledLevel(left) }),
    queues: queued,
    slots,
    prices,
    facts: factsOf(
      bound,
      best,
      isBalanced(queues)
        ? sumOfScores(
            scores,
            wish.map((e) => [e]),
          )
        : null,
    ),
    good: proved,
    say: remark || (proved ? PROVED : crowdSentence(queues, slots, prices)),
  };
}

const PROVED = "Balanced, and proved: the bound equals the sum, so no balanced choice has a larger sum.";

function factsOf(bound, best, sum) {
  return [
    ["bound: no balanced choice has a larger sum", shown(bound)],
    ["sum of scores", sum === null ? "not balanced yet" : shown(sum)],
    ["bound minus the best sum", shown(bound - best.objective)],
  ];
}

/** Return a sentence that says which price to move. */
function crowdSentence(queues, slots, prices) {
  const counts = queues.map((tokens) => tokens.length);
  const crowded = counts.indexOf(Math.max(...counts));
  if (counts[crowded] > slots) {
    return (
      sentence(`${tokensNamed(queues[crowded])} ${counts[crowded] === 1 ? "wishes" : "wish"} for expert ${crowded}, `) +
      `which has ${counted(slots, "slot")}: raise its price.`
    );
  }
  const lonely = counts.indexOf(Math.min(...counts));
  return prices[lonely] > 0 ? `Expert ${lonely} has too few tokens: lower its price.` : "Nearly balanced.";
}

function bidView(scores, state, best, epsilon) {
  const left = leftOf(scores, state.prices);
  const slots = scores.length / state.prices.length;
  const queues = state.bids.map((held) => held.map(({ token }) => ({ token, lost: false })));
  const ended = state.free.length === 0;
  const expert = scores.map((_, t) => [queues.findIndex((queue) => queue.some(({ token }) => token === t))]);
  return {
    cells: cellsOf(left, queues, { level: scaledLevel(left) }),
    queues,
    slots,
    prices: state.prices,
    facts: factsOf(state.bound, best, ended ? sumOfScores(scores, expert) : null),
    good: ended,
    say: ended
      ? endSentence(
          state.bound,
          sumOfScores(scores, expert),
          scores.length * epsilon,
          scores.flat().every(Number.isInteger),
        )
      : bidSentence(state),
  };
}

function bidSentence({ bid, free }) {
  const outbid = bid.outbid.filter((t) => t !== bid.token);
  const then = outbid.length ? ` and outbids ${tokensNamed(outbid)}` : "";
  return (
    `Token ${bid.token} bids ${shown(bid.amount)} for expert ${bid.expert}${then}. ` +
    `Without a slot: ${free.length ? tokensNamed(free) : "none"}.`
  );
}

function endSentence(bound, sum, limit, whole) {
  const gap = bound - sum;
  if (gap < SAME) return PROVED;
  if (whole && gap < 1)
    return `Balanced. Scores are whole numbers and the bound is only ${shown(gap)} above the sum: proved.`;
  return (
    `Balanced: every token has a slot. The bound is ${shown(gap)} above the sum, and T ε = ${shown(limit)}: ` +
    "no balanced choice is better by more."
  );
}
