// RL-R on the page: a policy for each token that learns from the rewards of its draws.

import { range, softmax, sum } from "../routers/notation.js";
import { policyStep, policyTerms, reinforceRouter } from "../routers/reinforce.js";
import { drawTable, gumbel, uniforms } from "./random.js";
import { cellsOf, isBalanced, loadFacts, placed, shown } from "./views.js";

const DRAWS = 120;
const KEEP = 0.8; // of the running mean of a token's rewards

const mean = (values) => sum(values) / values.length;

/** Return the draws of a training: {logits, expert, reward, value} each. Rewards are scores over their spread. */
function trainingOf({ scores, seed, params }) {
  const draw = uniforms(seed);
  const spread = Math.max(...scores.flat()) - Math.min(...scores.flat()) || 1;
  let logits = scores.map((row) => row.map(() => 0));
  let value = scores.map(() => 0);
  return range(DRAWS).map((number) => {
    const { expert } = reinforceRouter(
      logits,
      drawTable(scores.length, scores[0].length, () => gumbel(draw)),
    );
    const reward = expert.map(([e], t) => scores[t][e] / spread);
    if (number === 0 && params.baseline) value = reward.map(() => mean(reward));
    const state = { logits, expert, reward, value };
    logits = policyStep(
      logits,
      expert,
      reward.map((r, t) => r - value[t]),
      params.rate,
    );
    if (params.baseline) value = value.map((v, t) => KEEP * v + (1 - KEEP) * reward[t]);
    return state;
  });
}

export function policyStates(context) {
  const { scores, capacity } = context;
  const draws = trainingOf(context);
  const expected = draws.map(({ logits }) =>
    mean(logits.map((row, t) => sum(softmax(row).map((p, e) => p * scores[t][e])))),
  );
  const level = mean(scores.map((row) => Math.max(...row)));
  return draws.map(({ logits, expert, reward, value }, number) => () => {
    const { queues, slots, lost } = placed(expert, scores[0].length, 1, capacity);
    const terms = policyTerms(logits, expert, value, reward);
    return {
      cells: cellsOf(logits.map(softmax), queues, { level: (p) => p }),
      queues,
      slots,
      notes: terms.advantage.map((a) => `${a >= 0 ? "+" : ""}${shown(a)}`),
      facts: [
        ["expected score", `${shown(expected[number])} of ${shown(level)}`],
        ["entropy", `${shown(terms.entropy)} nats`],
        ["balance loss", shown(terms.balance)],
        ...loadFacts(scores, queues, lost),
      ],
      say:
        number === 0
          ? "The policy has learned nothing yet: all experts are equally likely. Each row ends with its advantage: reward minus baseline."
          : `Draw ${number}: experts with a positive advantage become more probable. Nothing here makes the loads even.`,
      good: isBalanced(queues),
      trace: { name: "expected score, and the best", values: expected, level },
    };
  });
}
