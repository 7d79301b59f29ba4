// What each router shows of a table: a list of states, and for each state a view.
//
// A view is {heads, cells, queues, slots, facts, say, good, trace}:
//   heads   rows above the table, {name, values [E] of text}
//   cells   [T, E] of {text, level from 0 to 1, chosen, lost}; notes [T] of text after each row, or nothing
//   queues  [E] lists of {token, lost}, the tokens at each expert in order; slots is the number of slots of an expert
//   facts   pairs of a name and a text; say is a sentence; good says that the loads are balanced
//   trace   {name, values, level}: a number over all states, and what it should come to

import { dispatch, expertCapacity, queueOf } from "../routers/experts.js";
import { expertCounts, range, softmax, sum } from "../routers/notation.js";

/** Return a number as text of few digits, with a real minus sign. */
export function shown(value, digits = 2) {
  if (value === Infinity) return "∞";
  const text = Math.abs(value) >= 1e4 ? value.toExponential(1) : value.toFixed(digits);
  const short = text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
  return (short === "-0" ? "0" : short).replace("-", "−");
}

/** Return a large number as text: 1.0·10²¹. */
export const powerOfTen = (value) =>
  value.toExponential(1).replace(/e\+(\d+)/, (_, digits) => "·10" + [...digits].map((i) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[i]).join(""));

/** Return a word in the number that a count needs: 1 token, 2 tokens. */
export const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** Return token numbers as text: "token 3", "tokens 1 and 4". */
export function tokensNamed(tokens) {
  const last = tokens.at(-1);
  return tokens.length === 1 ? `token ${last}` : `tokens ${tokens.slice(0, -1).join(", ")} and ${last}`;
}

export const sentence = (text) => text[0].toUpperCase() + text.slice(1);

export const sumOfScores = (scores, expert) => sum(expert.flatMap((row, t) => row.map((e) => scores[t][e])));

/** Return {queues, slots, lost}: which tokens get a slot if each expert has C = ceil(c k T / E) of them. */
export function placed(expert, numExperts, k, capacity, pairs = queueOf(expert)) {
  const slots = expertCapacity(expert.length, numExperts, k, capacity);
  const { slot } = dispatch(expert, numExperts, slots);
  const queues = range(numExperts).map(() => []);
  for (const [t, choice] of pairs) queues[expert[t][choice]].push({ token: t, lost: slot[t][choice] >= slots });
  return { queues, slots, lost: queues.flat().filter((each) => each.lost).length };
}

/** Return the facts that every router has: loads, the dropped, the sum of scores. */
export function loadFacts(scores, queues, lost) {
  const counts = queues.map((queue) => queue.length);
  const total = sum(counts);
  const largest = total ? (Math.max(...counts) * counts.length) / total : 0;
  const score = sum(queues.flatMap((queue, e) => queue.map(({ token }) => scores[token][e])));
  return [
    ["largest load", `${shown(largest)}× a fair share`],
    ["dropped", `${lost} of ${total}`],
    ["sum of scores", shown(score)],
  ];
}

export const isBalanced = (queues) => {
  const counts = queues.map((queue) => queue.length);
  return Math.max(...counts) - Math.min(...counts) <= 1 && sum(counts) > 0;
};

/** Return cells of values [T, E]: texts of so many digits, levels from the values that `level` gives. */
export function cellsOf(values, queues, { digits = 2, level }) {
  return values.map((row, t) =>
    row.map((value, e) => {
      const found = queues[e].find(({ token }) => token === t);
      return {
        text: shown(value, digits),
        level: level(value, t, e),
        chosen: Boolean(found),
        lost: Boolean(found?.lost),
      };
    }),
  );
}

/** Return a function that scales the values of a table to 0 ... 1. */
export function scaledLevel(values) {
  const [low, high] = [Math.min(...values.flat()), Math.max(...values.flat())];
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

/** Return the list of states of a router that places one assignment after another. */
function placing({ scores, k, capacity }, expert, values, sayOf) {
  const pairs = queueOf(expert);
  const numExperts = scores[0].length;
  return range(pairs.length + 1).map((step) => () => {
    const { queues, slots, lost } = placed(expert, numExperts, k, capacity, pairs.slice(0, step));
    const [last] = pairs.slice(step - 1, step);
    return {
      cells: cellsOf(values, queues, { level: scaledLevel(values) }),
      queues,
      slots,
      facts: loadFacts(scores, queues, lost),
      good: step === pairs.length && isBalanced(queues),
      say: sayOf(step, step > 0 && last, step === pairs.length, lost),
    };
  });
}

/** Return a sentence on the last token that was placed. */
function placedSentence(expert, why) {
  return (step, last, ended, lost) => {
    if (step === 0) return "No token has a slot yet. Step: tokens queue in their order.";
    const [t, choice] = last;
    const where = `Token ${t} goes to expert ${expert[t][choice]}, ${why(t, choice)}.`;
    if (!ended) return where;
    return lost
      ? `${counted(lost, "choice")} found no slot; the residual connection carries such a token on unchanged.`
      : "Every choice found a slot.";
  };
}

export function hashStates(context, table) {
  const expert = context.ids.map((id) => table[id]);
  const why = (t, choice) => (choice ? "its second rule" : `the remainder of its id ${context.ids[t]}`);
  return placing(context, expert, context.scores, placedSentence(expert, why));
}

export function topKStates(context, routing) {
  const chance = context.scores.map(softmax);
  const why = (t, choice) => (choice ? `its choice number ${choice + 1}` : "where its score is largest");
  return placing(context, routing.expert, chance, placedSentence(routing.expert, why));
}

/** Return the views of batches: `batches` of {scores, bias, expert}, shown as score less price. */
export function batchStates({ k, capacity }, batches, { head, sign, sayOf }) {
  const loads = batches.map(({ expert, bias }) => {
    const counts = expertCounts(expert, bias.length);
    return (Math.max(...counts) * counts.length) / sum(counts);
  });
  return batches.map(({ scores, bias, expert }, batch) => () => {
    const { queues, slots, lost } = placed(expert, bias.length, k, capacity);
    const left = scores.map((row) => row.map((s, e) => s + sign * bias[e]));
    return {
      heads: [{ name: head, values: bias.map((value) => shown(value)) }],
      cells: cellsOf(left, queues, { level: scaledLevel(left) }),
      queues,
      slots,
      facts: loadFacts(scores, queues, lost),
      good: isBalanced(queues),
      say: sayOf(batch, queues),
      trace: { name: "largest load, in fair shares", values: loads, level: 1 },
    };
  });
}
