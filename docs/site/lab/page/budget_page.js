// The page "Budget": what FLOPs, memory and tokens pay for, by each law.

import { bestOption } from "../laws/planning.js";
import { predictLoss } from "../laws/routed.js";
import { query, rememberer } from "./address.js";
import { fittedLaw, printedLaws } from "./budget_laws.js";
import { chart } from "./chart.js";
import { choice, slider } from "./controls.js";
import { element, factsOf } from "./draw.js";
import { fitsOf, intervalOf } from "./law_fits.js";
import { sizeText } from "./sizes.js";
import { powerOfTen, shown } from "./views.js";

const COLOURS = ["#0072b2", "#d55e00", "#b8860b", "#009e73", "#cc79a7", "#56b4e9", "#7a5fc0", "#7f7f7f"];
const NEARLY = 1.005; // times the least loss

const orNone = (value) => (value === 0 ? "none" : sizeText(value));

/** The sliders; one with `none` means 0 at its lower end, one with `endless` no limit at its upper end. */
const SLIDERS = [
  {
    name: "flops",
    label: "FLOPs, training and inference together",
    min: 1e17,
    max: 1e26,
    value: 1e21,
    text: powerOfTen,
  },
  {
    name: "memory",
    label: "memory for the weights, GB",
    min: 1,
    max: 1e5,
    value: 80,
    endless: true,
    text: (v) => shown(v, 0),
  },
  { name: "inference", label: "tokens of inference", min: 1e8, max: 1e14, value: 0, none: true, text: orNone },
  { name: "cached", label: "tokens in the cache (joint law)", min: 1e3, max: 1e7, value: 0, none: true, text: orNone },
];

/** Return {values, ignored} of an address such as flops=1e22&memory=80. */
export function parseBudget(text) {
  const values = { flops: 1e21, memory: 80, inference: 0, cached: 0, bytes: 2 };
  const ignored = [];
  for (const [name, word] of new URLSearchParams(text)) {
    const [control, value] = [SLIDERS.find((each) => each.name === name), word === "" ? NaN : Number(word)];
    const special = (control?.none && value === 0) || (control?.endless && value === Infinity);
    const fits = control
      ? special || (value >= control.min && value <= control.max)
      : name === "bytes" && [1, 2, 4].includes(value);
    if (fits) values[name] = value;
    else ignored.push(name);
  }
  return { values, ignored };
}

export const budgetOf = ({ flops, memory, inference, cached, bytes }) => ({
  flops,
  memory: memory * 1e9,
  inference_tokens: inference,
  cached_tokens: cached,
  bytes_per_number: bytes,
});

/** Put the page into `root`. */
export function start(root) {
  const { values, ignored } = parseBudget(query());
  const page = skeleton();
  const state = { values, laws: printedLaws() };
  const remember = rememberer(() => new URLSearchParams(state.values).toString());
  let waiting = false; // a slider moves faster than the laws are asked
  const redraw = () => {
    if (!waiting)
      requestAnimationFrame(() => {
        waiting = false;
        drawAll(page, state);
        remember();
      });
    waiting = true;
  };
  addControls(page, state, redraw);
  const words = ignored.length
    ? [element(`<p class="lab-warning">The address has ${ignored.length} entries that this page ignores.</p>`)]
    : [];
  root.replaceChildren(...words, page.node);
  drawAll(page, state);
  new ResizeObserver(() => drawAll(page, state)).observe(page.plot);
  setTimeout(() => fitAll(state, redraw)); // fits take a second; the printed laws are there at once
}

/** Add the laws that are fitted to runs, one after the other. */
function fitAll(state, redraw) {
  for (const [router, rows] of Object.entries(globalThis.labPoints.tables)) {
    const fits = fitsOf(rows);
    if (fits.fit) state.laws = [...state.laws, fittedLaw(router, fits, rows)];
  }
  redraw();
}

function skeleton() {
  const node = element(`<div class="lab-page"><p class="lab-say" aria-live="polite"></p>
    <div class="lab-top lab-law"><section class="lab-scores"><h2>The budget</h2><div class="lab-sliders"></div></section>
    <section class="lab-card"><h3>How flat is the optimum?</h3><div class="lab-plot"></div>
    <p class="lab-idea">Colours are those of the cards below. A line ends where the FLOPs or the memory end.</p></section></div>
    <h2>What each law chooses</h2><p>Losses of two laws are of two texts: compare their choices, not their losses.</p>
    <div class="lab-rest"></div><p class="lab-note-line">${globalThis.labPoints.source} Intervals: 95 %, leaving out one size at a time. Printed
    laws have none: their runs are not at hand. Laws that are fitted to runs here have no floor. <code>routelaws plan</code> also fits them
    with one, and takes the form that predicts left-out sizes better.</p></div>`);
  const find = (name) => node.querySelector(name);
  return { node, say: find(".lab-say"), place: find(".lab-sliders"), plot: find(".lab-plot"), rest: find(".lab-rest") };
}

function addControls(page, state, redraw) {
  for (const control of SLIDERS) {
    const inward = (value) =>
      control.none && value === 0 ? control.min : control.endless && value === Infinity ? control.max : value;
    const outward = (value) =>
      control.none && value <= control.min ? 0 : control.endless && value >= control.max ? Infinity : value;
    const text = (value) => control.text(outward(value));
    const made = slider({ ...control, logarithmic: true, value: inward(state.values[control.name]), text }, (value) => {
      state.values = { ...state.values, [control.name]: outward(value) };
      made.set(value);
      redraw();
    });
    page.place.append(made.node);
  }
  const bytes = choice(
    "bytes per number",
    [
      [1, "1 (fp8)"],
      [2, "2 (bf16)"],
      [4, "4 (fp32)"],
    ],
    (value) => {
      state.values = { ...state.values, bytes: Number(value) };
      redraw();
    },
  );
  bytes.set(String(state.values.bytes));
  page.place.append(bytes.node);
}

function drawAll(page, state) {
  const budget = budgetOf(state.values);
  const found = state.laws.map((law) => {
    const ranked = bestOption(law.options, (option) => law.family(budget, option));
    const listed = law.first ? ranked.filter(({ option }) => option === law.options[0]) : ranked;
    return { law, ranked, best: listed[0] ?? null };
  });
  page.say.textContent = sentenceOf(found, state.laws.length < 6);
  page.plot.innerHTML = flatChart(found, budget, page.plot.clientWidth);
  page.rest.innerHTML = found.map((each, i) => cardOf(each, budget, COLOURS[i])).join("");
}

function sentenceOf(found, waiting) {
  const sizes = found.filter(({ best }) => best).map(({ best }) => best.active);
  if (!sizes.length) return "No law has a model within this budget.";
  const range = `The laws choose ${sizeText(Math.min(...sizes))} to ${sizeText(Math.max(...sizes))} active parameters`;
  const none = found.length - sizes.length;
  return `${range}${none ? `; ${none} ${none === 1 ? "has" : "have"} no model within the budget` : ""}.${waiting ? " More fits are running." : ""}`;
}

function cardOf({ law, ranked, best }, budget, colour) {
  const head = `<article class="lab-card lab-choice-card" style="--colour:${colour}"><header><h3>${law.name}</h3></header>`;
  const unknown = `<p class="lab-idea">This law ignores ${law.unknown}</p></article>`;
  if (!best) return `${head}<p class="lab-say">This law has no model within the budget.</p>${unknown}`;
  return `${head}<p class="lab-say">${headline(law, best)}</p><dl class="lab-facts">${factsOf(choiceFacts(law, best, budget))}</dl>
    <p class="lab-idea">${nearlyAsGood(law, ranked, best)}</p>${unknown}`;
}

const optionText = (law, option) => (law.word ? `${law.word} = ${option}` : option);
const headline = (law, { option, active, tokens }) =>
  `${law.word ? `${optionText(law, option)}, ` : ""}N = ${sizeText(active)}, D = ${sizeText(tokens)} tokens`;

function choiceFacts(law, best, budget) {
  const full = best.memory > 0.98 * budget.memory ? " (full)" : "";
  const ends = law.fit && intervalOf(law, (each) => predictLoss(best.active, best.option, each));
  const times = best.active / law.largest;
  const runs = law.largest
    ? [
        [
          "largest N of its runs",
          sizeText(law.largest) + (times > 1.05 ? `; this is ${shown(times, times < 3 ? 1 : 0)}×` : ""),
        ],
      ]
    : [];
  return [
    ["active parameters N", sizeText(best.active)],
    ["all parameters P", sizeText(best.total)],
    ["training tokens D", sizeText(best.tokens)],
    ["tokens for each N", shown(best.tokens / best.active, 0)],
    ["memory", `${shown(best.memory / 1e9, 1)} GB${full}`],
    ["loss", shown(best.loss, 3) + (ends ? `, ${shown(ends[0], 3)} to ${shown(ends[1], 3)}` : "")],
    ...runs,
  ];
}

function nearlyAsGood(law, ranked, best) {
  if (law.first) {
    const [other] = ranked.filter(({ option }) => option !== best.option);
    return other
      ? `The numbers ${other.option} choose N = ${sizeText(other.active)}, D = ${sizeText(other.tokens)}.`
      : "";
  }
  const near = ranked.filter(({ option, loss }) => option !== best.option && loss < NEARLY * best.loss);
  return near.length
    ? `Within 0.5 % of that loss: ${near.map(({ option }) => optionText(law, option)).join(", ")}.`
    : "No other choice is within 0.5 % of that loss.";
}

/** Return the chart of the loss above each law's best, against active parameters, at the best option. */
function flatChart(found, budget, width) {
  const drawn = found.filter(({ best }) => best);
  const sizes = drawn.map(({ best }) => best.active);
  const [low, high] = sizes.length ? [Math.min(...sizes) / 10, Math.max(...sizes) * 10] : [1e8, 1e10];
  const marks = drawn.flatMap(({ law, best }) => {
    const colour = COLOURS[found.findIndex((each) => each.law === law)];
    const { family, low: from, high: to } = law.family(budget, best.option);
    const models = Array.from({ length: 400 }, (_, i) =>
      family(from * (Math.max(to, from) / from) ** (i / 399)),
    ).filter(Boolean);
    const points = [...models, best]
      .sort((a, b) => a.active - b.active)
      .map(({ active, loss }) => [active, 100 * (loss / best.loss - 1)]);
    return [
      { kind: "line", colour, points: points.filter(([N]) => N >= low && N <= high) },
      { kind: "dots", colour, points: [[best.active, 0]], titles: [law.name] },
    ];
  });
  const y = { low: -0.4, high: 6, label: "loss above the law's own best, %", ticks: [0, 2, 4, 6] };
  const x = { low, high, log: true, label: "active parameters N", text: sizeText };
  return chart({
    width,
    height: 360,
    x,
    y,
    marks,
    title: "Loss above the best choice of each law, against active parameters",
  });
}

const root = typeof document === "undefined" ? null : document.getElementById("lab-budget");
if (root) start(root);
