// What the page of budgets asks of each law: options, a family of models for each, and what the law does not know.

import { PUBLISHED } from "../laws/additive.js";
import { fineGrainedFamily, hoffmannFamily, jointFamily, routedFamily, sparsityFamily } from "../laws/planning.js";

/** Tokens of the released runs: 250,000 steps of 256 sequences of 2,048. */
export const RUN_TOKENS = 250000 * 256 * 2048;

const GRANULARITIES = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/** The laws with printed coefficients: `options` are tried one by one, `family(budget, option)` gives the models. */
const PRINTED_LAWS = [
  {
    name: "Dense: Hoffmann et al. 2022",
    options: ["refit of 2024", "as printed"],
    word: "",
    family: (budget, option) =>
      hoffmannFamily(budget, option === "as printed" ? PUBLISHED.hoffmann : PUBLISHED.besiroglu),
    first: true,
    largest: 1.62e10,
    unknown: "experts. Two papers fitted these numbers to the same runs; their difference shows how uncertain they are.",
  },
  {
    name: "Fine-grained: Krajewski et al. 2024, E = 64",
    options: GRANULARITIES,
    word: "G",
    family: (budget, G) => fineGrainedFamily(budget, 64, G, PUBLISHED["E=64"]),
    largest: 8.5e7,
    unknown: "embeddings, and it holds only for 64 experts. Its printed numbers have two or three digits.",
  },
  {
    name: "Fine-grained: Krajewski et al. 2024, E = 16",
    options: GRANULARITIES,
    word: "G",
    family: (budget, G) => fineGrainedFamily(budget, 16, G, PUBLISHED["E=16"]),
    largest: 8.5e7,
    unknown: "embeddings, and it holds only for 16 experts.",
  },
  {
    name: "Joint: Ludziejewski et al. 2025",
    options: [1, 2, 4, 8, 16, 32],
    word: "E",
    family: (budget, E) => jointFamily(budget, E, PUBLISHED.joint),
    largest: 2.7e9,
    unknown: "granularity. It holds for up to 32 experts and one expert per token.",
  },
  {
    name: "Sparsity: Abnar et al. 2025",
    options: [0, 0.25, 0.5, 0.75, 0.9, 0.95],
    word: "idle share S",
    family: (budget, S) => sparsityFamily(budget, S, PUBLISHED.sparsity, 0.05),
    unknown: "the cost of routing. Its numbers are from secondary copies. 5 % of P are always active here (our choice).",
  },
];

/** Return the law of a router as fitted to its runs, for the cards of the page. */
export function fittedLaw(router, { fit, folds }, rows) {
  const [largest, most] = [0, 1].map((place) => Math.max(...rows.map((row) => row[place])));
  const counts = Array.from({ length: 12 }, (_, i) => 2 ** i).filter((E) => E <= most);
  return {
    name: `Fitted here: ${router}, Clark et al. 2022`,
    options: counts,
    word: "E",
    fit,
    folds,
    family: (budget, E) => routedFamily(budget, router, E, fit.coefficients, { tokens: RUN_TOKENS, largest }),
    largest,
    unknown:
      "tokens: all models train on the 131B tokens of its runs. Sizes end at ten times the largest run, and remaining FLOPs are not used.",
  };
}

export const printedLaws = () => PRINTED_LAWS;
