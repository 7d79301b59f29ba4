// What the page of routers shows, and how the address says it.

import { normal, uniforms } from "./random.js";

/** The table of lessons 1 to 8, [T, E], and the text of lesson 2, which begins with its six tokens. */
export const TABLES = {
  lessons: [
    [8, 7, 1],
    [11, 7, 4],
    [6, 4, 2],
    [1, 4, -3],
    [0, 1, -1],
    [8, 2, 6],
  ],
};
export const WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "sat", "on", "the", "cat"];

/** The id of each word in the vocabulary of lesson 2: frequent words have low ids. */
export const IDS = [0, 1, 2, 3, 0, 4, 5, 0, 6, 2, 3, 0, 1];

export const LIMITS = { tokens: [2, 12], experts: [2, 6], score: [-20, 20] };
export const CAPACITIES = [0.5, 1, 1.25, 1.5, 2, Infinity];

export const within = (value, [low, high]) => Math.min(Math.max(value, low), high);

/** Return the state of a page without an address. */
export function initial() {
  return { name: "lessons", scores: TABLES.lessons, k: 1, capacity: 1, seed: 1, lead: "base", params: {}, steps: {} };
}

/** Return [T, E] of an address such as 7,6,0;9,5,2; null if it is no table that the page can show. */
function tableOf(text) {
  const rows = text.split(";").map((row) => row.split(",").map(Number));
  const sized = [
    [rows.length, LIMITS.tokens],
    [rows[0].length, LIMITS.experts],
  ];
  const fits = sized.every(([size, limits]) => within(size, limits) === size);
  const [low, high] = LIMITS.score;
  const whole = rows.every((row) => row.length === rows[0].length && row.every((s) => s >= low && s <= high));
  return fits && whole ? rows : null;
}

/** Return {state, ignored}: what the address says, and the names of what it says wrongly. */
export function parse(query, routers) {
  const [state, ignored] = [initial(), []];
  for (const [name, text] of new URLSearchParams(query)) {
    if (!readEntry(state, name, text, routers)) ignored.push(name);
  }
  state.k = Math.min(state.k, state.scores[0].length);
  forget(state);
  return { state, ignored };
}

/** Forget prices that are for another number of experts. */
export function forget(state) {
  if ((state.params.base?.prices?.length ?? state.scores[0].length) === state.scores[0].length) return;
  delete state.params.base.prices;
  if (Object.keys(state.params.base).length === 0) delete state.params.base;
}

/** Put one entry of the address into a state, and return whether it is one. */
function readEntry(state, name, text, routers) {
  const value = Number(text);
  const [id, option] = name.split(".");
  if (name === "table") {
    const scores = TABLES[text] ?? tableOf(text);
    if (scores) Object.assign(state, { scores, name: text in TABLES ? text : "" });
    return Boolean(scores);
  }
  if (name === "lead") return text in routers && Boolean((state.lead = text));
  if (name === "k") return [1, 2, 3].includes(value) && Boolean((state.k = value));
  if (name === "capacity") return CAPACITIES.includes(value) && Boolean((state.capacity = value));
  if (name === "seed") return Number.isInteger(value) && value > 0 && Boolean((state.seed = value));
  if (!(id in routers) || option === undefined) return false;
  if (option === "step") return Number.isInteger(value) && value >= 0 && ((state.steps[id] = value), true);
  return readOption(state, routers[id], id, option, text);
}

/** Put an option of one router into a state, and return whether there is one. */
function readOption(state, router, id, option, text) {
  const numbers = text.split(",").map(Number);
  const control = router.controls.find((each) => each.name === option);
  const isPrices = id === "base" && option === "prices";
  if (!(control || isPrices) || !numbers.every(Number.isFinite)) return false;
  state.params[id] ??= {};
  state.params[id][option] = isPrices ? numbers : within(numbers[0], [control.min, control.max]);
  return true;
}

/** Return the query of a state, without what is as in `initial`. */
export function format(state) {
  const [first, query] = [initial(), new URLSearchParams()];
  if (state.lead !== first.lead) query.set("lead", state.lead);
  if (state.name !== first.name) query.set("table", state.name || state.scores.map((row) => row.join()).join(";"));
  for (const name of ["k", "capacity", "seed"]) if (state[name] !== first[name]) query.set(name, state[name]);
  for (const [id, params] of Object.entries(state.params)) {
    for (const [option, value] of Object.entries(params)) query.set(`${id}.${option}`, [value].flat().join());
  }
  for (const [id, step] of Object.entries(state.steps)) query.set(`${id}.step`, step);
  return query.toString().replaceAll("%2C", ",").replaceAll("%3B", ";");
}

/** Return random scores [T, E] with one digit after the point; experts with low numbers are liked more. */
export function randomScores(numTokens, numExperts, seed) {
  const draw = uniforms(seed);
  const score = (e) => 4 + 1.5 * normal(draw) + (3 * (numExperts - 1 - 2 * e)) / (2 * numExperts);
  return Array.from({ length: numTokens }, () =>
    Array.from({ length: numExperts }, (_, e) => within(Math.round(10 * score(e)) / 10, [0, 9])),
  );
}

/** Return a table cut to, or filled up to, another number of tokens and experts. */
export function resized(scores, numTokens, numExperts, seed) {
  const fill = randomScores(numTokens, numExperts, seed);
  return fill.map((row, t) => row.map((s, e) => scores[t]?.[e] ?? s));
}
