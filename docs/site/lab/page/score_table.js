// The table of scores that all routers see: edited by typing, by arrow keys, or by dragging a number sideways.

import { range } from "../routers/notation.js";
import { choice, draggable } from "./controls.js";
import { element, headOf, tokenName } from "./draw.js";
import { CAPACITIES, IDS, LIMITS, TABLES, WORDS, randomScores, resized, within } from "./state.js";
import { button } from "./controls.js";
import { scaledLevel, shown } from "./views.js";

const STEP = 0.5;

/** Return {node, show}: the panel of the table; `change(entries)` puts entries into the state. */
export function scorePanel(state, change) {
  const node = element(`<section class="lab-scores" aria-labelledby="lab-scores-title">
    <h2 id="lab-scores-title">The table of scores</h2>
    <p>The larger, the better a token and an expert suit each other. Type, press ↑ or ↓, or drag a number sideways.</p>
    <div class="lab-bar"></div><table class="lab-grid lab-edit"></table><div class="lab-bar"></div></section>`);
  const [table, [top, bottom]] = [node.querySelector("table"), node.querySelectorAll(".lab-bar")];
  const setters = choices(state, change);
  top.append(setters.table.node, ...buttons(state, change));
  bottom.append(setters.tokens.node, setters.experts.node, setters.k.node, setters.capacity.node);
  const show = () => {
    const size = `${state.scores.length} ${state.scores[0].length}`;
    if (table.dataset.size !== size) fill(table, state, change);
    table.dataset.size = size;
    showValues(table, state.scores);
    const { scores, name, k, capacity } = state;
    const values = { table: name || "own", tokens: scores.length, experts: scores[0].length, k, capacity };
    Object.entries(values).forEach(([each, value]) => setters[each].set(String(value)));
  };
  return { node, show };
}

const numbers = ([low, high]) => range(high - low + 1).map((i) => [low + i, low + i]);

function choices(state, change) {
  const size = (tokens, experts) => {
    const scores = resized(state.scores, tokens, experts, state.seed);
    change({ scores, name: "", k: Math.min(state.k, experts) });
  };
  return {
    table: choice(
      "table",
      [
        ["lessons", "of the lessons"],
        ["own", "your own"],
      ],
      (name) => name in TABLES && change({ scores: TABLES[name], name }),
    ),
    tokens: choice("tokens T", numbers(LIMITS.tokens), (value) => size(Number(value), state.scores[0].length)),
    experts: choice("experts E", numbers(LIMITS.experts), (value) => size(state.scores.length, Number(value))),
    k: choice(
      "per token k",
      [1, 2, 3].map((k) => [k, k]),
      (value) => change({ k: Math.min(Number(value), state.scores[0].length) }),
    ),
    capacity: choice(
      "capacity c",
      CAPACITIES.map((c) => [c, shown(c)]),
      (value) => change({ capacity: Number(value) }),
    ),
  };
}

function buttons(state, change) {
  const popular = () => state.scores.map(([first, ...rest]) => [within(first + 1, LIMITS.score), ...rest]);
  const drawn = () => {
    const seed = (state.seed % 9999) + 1;
    return { seed, scores: randomScores(state.scores.length, state.scores[0].length, seed), name: "" };
  };
  return [
    button("Randomise", "Draw a new table", () => change(drawn())),
    button("Crowd expert 0", "Add 1 to all scores of expert 0", () => change({ scores: popular(), name: "" })),
  ];
}

/** Put a field for each score into the table. */
function fill(table, state, change) {
  const experts = range(state.scores[0].length);
  const rows = state.scores.map(
    (_, t) =>
      `<tr>${tokenName(t, `${WORDS[t]} <small>id ${IDS[t]}</small>`)}${experts
        .map(
          (e) =>
            `<td class="lab-e${e}"><input type="number" step="${STEP}" min="${LIMITS.score[0]}" max="${LIMITS.score[1]}"
      inputmode="decimal" aria-label="score of token ${t} for expert ${e}"></td>`,
        )
        .join("")}</tr>`,
  );
  table.innerHTML = `<thead>${headOf(experts.length)}</thead><tbody>${rows.join("")}</tbody>`;
  table.querySelectorAll("input").forEach((input, place) => {
    const [t, e] = [Math.floor(place / experts.length), place % experts.length];
    const changed = () => {
      const value = input.valueAsNumber;
      if (!Number.isFinite(value)) return;
      const scores = state.scores.map((row) => [...row]);
      scores[t][e] = within(value, LIMITS.score);
      change({ scores, name: "" });
    };
    input.addEventListener("input", changed);
    input.addEventListener("blur", () => showValues(table, state.scores));
    draggable(input, STEP, changed);
  });
}

function showValues(table, scores) {
  const level = scaledLevel(scores);
  const flat = scores.flat();
  table.querySelectorAll("input").forEach((input, place) => {
    const typing = document.activeElement === input && (input.value === "" || Number(input.value) === flat[place]);
    if (!typing) input.value = flat[place];
    input.parentElement.style.setProperty("--level", level(flat[place]).toFixed(3));
  });
}
