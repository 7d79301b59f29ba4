// The nine routers of the page: what each is called, what can be set, and its states on a table.

import { balancedAssignment } from "../routers/base.js";
import { updateBias } from "../routers/balance.js";
import { expertChoiceRouter } from "../routers/expert_choice.js";
import { moduloTable } from "../routers/hash_layer.js";
import { mixingWeights } from "../routers/mixture_of_tokens.js";
import { expertCounts, range, softmax, sum } from "../routers/notation.js";
import { quantileBias, quantileRouter } from "../routers/quantile.js";
import { topKRouter } from "../routers/top_k.js";
import { baseStates } from "./base_states.js";
import { drawTable, normal, uniforms } from "./random.js";
import { policyStates } from "./policy_states.js";
import { sinkhornStates } from "./sinkhorn_states.js";
import { batchStates, cellsOf, counted, hashStates, loadFacts, shown, tokensNamed, topKStates } from "./views.js";

const BATCHES = 40;
const temperature = { name: "temperature", label: "temperature", min: 0.02, max: 10, value: 1, logarithmic: true };
const noise = { name: "noise", label: "noise between batches", min: 0, max: 2, step: 0.1, value: 0 };

/** Return the batches that one table gives: itself, and itself with noise. */
function batchesOf({ scores, seed, params }) {
  const draw = uniforms(seed);
  return range(BATCHES).map((batch) => {
    const drawn = drawTable(scores.length, scores[0].length, () => normal(draw));
    return scores.map((row, t) => row.map((s, e) => s + (batch ? params.noise * drawn[t][e] : 0)));
  });
}

/** Return the views of a router with a bias that `move` takes from batch to batch. */
function biasStates(context, sign, head, move, sayOf) {
  let bias = Array(context.scores[0].length).fill(0);
  const batches = batchesOf(context).map((scores) => {
    const { expert } = quantileRouter(
      scores,
      bias.map((value) => -sign * value),
      context.k,
    );
    const batch = { scores, bias, expert };
    bias = move(batch);
    return batch;
  });
  return batchStates(context, batches, { head, sign, sayOf });
}

/** Return a sentence on a batch: who is crowded, and what the step does about it. */
const batchSentence = (verb) => (batch, queues) => {
  const counts = queues.map((queue) => queue.length);
  const crowded = counts.indexOf(Math.max(...counts));
  if (Math.max(...counts) - Math.min(...counts) <= 1) return `Batch ${batch} is balanced, because earlier batches moved the numbers.`;
  return `Batch ${batch}: expert ${crowded} has ${counted(counts[crowded], "token")}. ${verb} for the next batch.`;
};

function expertChoiceStates({ scores, capacity }) {
  const { token } = expertChoiceRouter(scores, capacity);
  const chance = scores.map(softmax);
  return range(token[0].length + 1).map((rank) => () => {
    const queues = token.map((tokens) => tokens.slice(0, rank).map((t) => ({ token: t, lost: false })));
    const taken = expertCounts(
      token.map((tokens) => tokens.slice(0, rank)),
      scores.length,
    );
    const none = range(scores.length).filter((t) => taken[t] === 0);
    const ended = rank === token[0].length;
    const facts = loadFacts(scores, queues, 0).filter(([name]) => name !== "dropped");
    const left = none.length
      ? `${tokensNamed(none)} ${none.length === 1 ? "has" : "have"} no expert`
      : "no token is left out";
    const say =
      rank === 0
        ? "Each expert is about to choose its tokens, its best first."
        : `Each expert took ${counted(rank, "token")}${ended ? `: ${left}` : ""}.`;
    facts.push(
      ["taken by nobody", String(none.length)],
      ["taken twice or more", String(taken.filter((n) => n > 1).length)],
    );
    return {
      cells: cellsOf(chance, queues, { level: (p) => p }),
      queues,
      slots: token[0].length,
      facts,
      say,
      good: ended,
    };
  });
}

function mixtureStates({ scores, params }) {
  const weights = mixingWeights(scores, params.temperature);
  return [
    () => {
      const largest = weights[0].map((_, e) => Math.max(...weights.map((row) => row[e])));
      const cells = weights.map((row) =>
        row.map((w) => ({ text: shown(100 * w, 0) + "%", level: w, chosen: w >= 0.5 })),
      );
      const effective = weights[0].map((_, e) => 1 / sum(weights.map((row) => row[e] ** 2)));
      return {
        cells,
        good: true,
        queues: null,
        facts: [
          ["rows for each expert", "1"],
          ["tokens in a mixture, effectively", effective.map((n) => shown(n, 1)).join(", ")],
        ],
        say:
          Math.min(...largest) > 0.95
            ? "At this low temperature, each expert works on nearly one token."
            : "Each expert works on one mean of all tokens; nothing is chosen and nothing is dropped.",
      };
    },
  ];
}

/** The routers by their names in an address. `states(context)` returns a list of functions that return views. */
export const ROUTERS = {
  base: {
    name: "BASE",
    lesson: "03_base",
    source: "base",
    unit: "bid",
    pace: 900,
    first: 0,
    idea: "The best balanced choice. Each expert has a price; a token goes to the expert with the largest score minus price.",
    controls: [
      {
        name: "epsilon",
        label: "least raise ε of a bid",
        min: 0.025,
        max: 1,
        step: 0.025,
        value: 0.125,
        text: (value) => shown(value, 3),
      },
    ],
    states: (context) => baseStates(context, balancedAssignment(context.scores)),
  },
  sinkhorn: {
    name: "S-BASE",
    lesson: "04_s_base",
    source: "sinkhorn",
    unit: "step",
    pace: 900,
    idea: "A soft plan: scale the rows, then the columns, and repeat. A token goes to the expert with its largest part.",
    controls: [temperature],
    states: sinkhornStates,
  },
  top_k: {
    name: "Top-k",
    lesson: "07_top_k",
    source: "top_k",
    unit: "choice",
    pace: 500,
    idea: "Each token takes the k experts that it scores highest. Nothing keeps the loads even.",
    controls: [],
    states: (context) => topKStates(context, topKRouter(context.scores, context.k)),
  },
  hash: {
    name: "HASH",
    lesson: "02_hash",
    source: "hash_layer",
    unit: "choice",
    pace: 500,
    idea: "A fixed rule: the expert is the remainder of the token's id. Scores are not used.",
    controls: [],
    states: (context) => hashStates(context, moduloTable(16, context.scores[0].length, context.k)),
  },
  quantile: {
    name: "Quantile balancing",
    lesson: "05_quantile",
    source: "quantile",
    unit: "batch",
    pace: 500,
    idea: "Each expert has a price that is kept from batch to batch. One step sets the prices that balance the batch.",
    controls: [noise],
    states: (context) =>
      biasStates(
        context,
        -1,
        "price",
        ({ scores, bias }) => quantileBias(scores, bias, context.k),
        batchSentence("The prices move to values that balance this batch,"),
      ),
  },
  bias: {
    name: "Bias balancing",
    lesson: "05_quantile",
    source: "balance",
    unit: "batch",
    pace: 300,
    idea: "A bias for each expert: up by u after a batch with too few tokens, down by u after one with too many.",
    controls: [{ name: "rate", label: "step u", min: 0.05, max: 2, step: 0.05, value: 0.25 }, noise],
    states: (context) =>
      biasStates(
        context,
        1,
        "bias",
        ({ bias, expert }) => updateBias(bias, expertCounts(expert, bias.length), { rate: context.params.rate }),
        batchSentence("Each bias moves by u,"),
      ),
  },
  expert_choice: {
    name: "Expert choice",
    lesson: "08_mixture_of_tokens",
    source: "expert_choice",
    unit: "round",
    pace: 900,
    idea: "The experts choose: each takes the C tokens that it scores highest. A token may get several experts, or none.",
    controls: [],
    states: expertChoiceStates,
  },
  mixture: {
    name: "Mixture of Tokens",
    lesson: "08_mixture_of_tokens",
    source: "mixture_of_tokens",
    unit: "",
    pace: 0,
    idea: "Each expert works on a weighted mean of all tokens, and every token gets its share of the result.",
    controls: [temperature],
    states: mixtureStates,
  },
  reinforce: {
    name: "RL-R",
    lesson: "06_reinforce",
    source: "reinforce",
    unit: "draw",
    pace: 150,
    idea: "A policy draws an expert for each token and learns from rewards. Here the reward is the score.",
    controls: [
      { name: "rate", label: "learning rate", min: 0.1, max: 4, step: 0.1, value: 1 },
      { name: "baseline", label: "baseline (0: none, 1: running mean)", min: 0, max: 1, step: 1, value: 1 },
    ],
    states: policyStates,
  },
};
