// The page "A law to move": seven sliders, a switch for the floor, the runs of a table, and what the law says of them.

import { cutoff, effectiveParameterCount, predictLoss, slopeInExperts, PRINTED } from "../laws/routed.js";
import { rmsleOf } from "../laws/fitting.js";
import { jackknifeEnds } from "../laws/intervals.js";
import { query, rememberer } from "./address.js";
import { chart } from "./chart.js";
import { button, choice, slider } from "./controls.js";
import { element, factsOf } from "./draw.js";
import { bandOf, fitsOf, intervalOf, sizesOf } from "./law_fits.js";
import { sizeText } from "./sizes.js";
import { SLIDERS, formatLaw, lawOf, parseLaw, slidersOf } from "./law_state.js";
import { readTable } from "./own_table.js";
import { shown } from "./views.js";

const COLOURS = ["#56b4e9", "#0072b2", "#009e73", "#b8860b", "#d55e00", "#cc79a7", "#7a5fc0"];

const geometricMean = (values) => 10 ** (values.reduce((sum, value) => sum + Math.log10(value), 0) / values.length);
const grid = (low, high, count) => Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));

/** Return everything that follows from a table: rows, sizes, the size N0 of the sliders, and the fits. */
function analysed(rows, floored) {
  const sizes = sizesOf(rows);
  const centre = Number(geometricMean(sizes).toPrecision(2));
  return { rows, sizes, centre, fits: fitsOf(rows, floored), most: Math.max(...rows.map(([, E]) => E)) };
}

/** Put the page into `root`. */
export function start(root) {
  const { source, tables } = globalThis.labPoints;
  const { table, floored, values, ignored } = parseLaw(query(), tables);
  const state = { table: table ?? "S-Base", floored, values: {}, fitted: false, tables, note: source };
  const page = skeleton();
  const remember = rememberer(() => formatLaw(state.table, state.values, state.fitted, state.floored));
  const redraw = () => {
    drawAll(page, state);
    page.sliders.forEach(([name, made]) => made.set(state.values[name]));
    page.floor.setAttribute("aria-pressed", state.floored);
    page.sliders.find(([name]) => name === "floor")[1].node.hidden = !state.floored;
    if (state.table !== "own") remember();
  };
  const use = (law, fitted) => {
    state.values = slidersOf(law, state.data.centre);
    state.fitted = fitted;
    redraw();
  };
  const load = (name, start = {}) => {
    state.table = name;
    state.data = analysed(tables[name], state.floored);
    page.choice.set(name);
    use(state.data.fits.fit?.coefficients ?? PRINTED["S-Base"], true);
    if (Object.keys(start).length) {
      Object.assign(state, { values: { ...state.values, ...start }, fitted: false });
      redraw();
    }
  };
  addControls(page, state, { load, use, redraw });
  const words = ignored.length
    ? [element(`<p class="lab-warning">The address has ${ignored.length} entries that this page ignores.</p>`)]
    : [];
  root.replaceChildren(...words, page.node);
  load(state.table, values);
  new ResizeObserver(() => drawAll(page, state)).observe(page.loss);
}

function skeleton() {
  const node = element(`<div class="lab-page"><div class="lab-bar"></div><p class="lab-say" aria-live="polite"></p>
    <div class="lab-top lab-law"><section class="lab-scores"><h2>The law</h2><div class="lab-sliders"></div><dl class="lab-facts"></dl></section>
    <section class="lab-card"><h3>Loss against experts</h3><div class="lab-plot"></div></section></div>
    <div class="lab-rest lab-wide"><section class="lab-card"><h3>What the law misses</h3><div class="lab-plot"></div></section>
    <section class="lab-card"><h3>What experts are worth, and where they stop helping</h3><div class="lab-plot"></div></section></div>
    <p class="lab-note-line"></p></div>`);
  const [loss, residual, worth] = node.querySelectorAll(".lab-plot");
  const find = (name) => node.querySelector(name);
  return {
    node,
    loss,
    residual,
    worth,
    bar: find(".lab-bar"),
    say: find(".lab-say"),
    facts: find(".lab-facts"),
    place: find(".lab-sliders"),
    note: find(".lab-note-line"),
  };
}

function addControls(page, state, { load, use, redraw }) {
  const names = Object.keys(state.tables).map((name) => [name, name]);
  page.choice = choice("runs", [...names, ["own", "your own table"]], (name) => {
    if (name in state.tables) return load(name);
    page.choice.set(state.table);
    page.say.textContent = "Choose a file on the right, or drop one on this page.";
    return page.file.focus();
  });
  page.file = element('<input type="file" accept=".csv,.tsv,.txt,text/csv" aria-label="your own table">');
  const read = async (file) => {
    try {
      state.tables.own = readTable(await file.text());
      load("own");
    } catch (error) {
      page.say.textContent = error.message;
    }
  };
  page.file.addEventListener("change", () => page.file.files.length && read(page.file.files[0]));
  dropZone(page.node, read);
  page.floor = button("With a floor", "Fit these runs with or without an irreducible loss", () => {
    state.floored = !state.floored;
    load(state.table);
  });
  page.bar.append(
    page.choice.node,
    button(
      "Best fit",
      "Move the sliders to the least squares of these runs",
      () => state.data.fits.fit && use(state.data.fits.fit.coefficients, true),
    ),
    page.floor,
    button("As printed", "The numbers of the paper's table 3", () =>
      use(PRINTED[state.table] ?? PRINTED["S-Base"], false),
    ),
    element('<label class="lab-drop">Your own table (CSV): drop it here, or <span></span></label>'),
  );
  page.bar.querySelector(".lab-drop span").append(page.file);
  page.sliders = SLIDERS.map((control) => {
    const text = (value) => (control.name === "most" && value >= control.max ? "∞" : shown(value, control.digits));
    const made = slider({ ...control, value: control.min, text }, (value) => {
      state.values = {
        ...state.values,
        [control.name]: control.name === "most" && value >= control.max ? Infinity : value,
      };
      state.fitted = false;
      redraw();
    });
    page.place.append(made.node);
    return [control.name, made];
  });
}

/** Read a file that is dropped on the page; it is not sent anywhere. */
function dropZone(node, read) {
  const over = (event) => {
    event.preventDefault();
    node.classList.toggle("lab-over-drop", event.type === "dragover");
  };
  ["dragover", "dragleave", "drop"].forEach((name) => node.addEventListener(name, over));
  node.addEventListener("drop", (event) => event.dataTransfer.files.length && read(event.dataTransfer.files[0]));
}

function drawAll(page, state) {
  if (!state.data) return;
  const law = lawOf(state.values, state.data.centre);
  page.loss.innerHTML = lossChart(state.data, law, page.loss.clientWidth);
  page.residual.innerHTML = residualChart(state.data, law, page.residual.clientWidth);
  page.worth.innerHTML = worthChart(state.data, law, page.worth.clientWidth);
  page.facts.innerHTML = factsOf(lawFacts(state.data, law, state.floored));
  page.say.textContent = sentenceOf(state, law);
  page.note.textContent =
    `${state.table === "own" ? "Your table stays in this browser." : state.note} ` +
    "Bands and intervals: 95 %, leaving out one size at a time.";
}

function errorOf({ rows }, law) {
  return rmsleOf(
    (N, E) => predictLoss(N, E, law),
    rows.map(([N]) => N),
    rows.map(([, E]) => E),
    rows.map(([, , L]) => L),
  );
}

function sentenceOf({ data, fitted }, law) {
  if (!data.fits.fit) return `No fit: ${data.fits.complaint}. The sliders still move a law.`;
  const times = errorOf(data, law) / data.fits.fit.rmsle;
  if (fitted) return `The best law for these ${data.rows.length} runs. Move a slider and watch the errors grow.`;
  return times < 1.005 ? "As good as the best fit." : `The errors are ${shown(times)} times those of the best fit.`;
}

function floorText(fits) {
  const { fit, folds } = fits;
  if (!fit) return "none";
  const [low, high] = jackknifeEnds(fit.coefficients.L0, folds.map(({ L0 }) => L0));
  const ends = Number.isFinite(low) ? `, ${shown(Math.max(low, 0))} to ${shown(high)}` : "";
  return `${shown(fit.coefficients.L0)}${ends}`;
}

function lawFacts(data, law, floored) {
  const { fits, sizes, centre } = data;
  const ends = fits.fit && intervalOf(fits, cutoff);
  const facts = [
    ["miss, root mean square of log₁₀", shown(errorOf(data, law), 5)],
    ["of the best fit", fits.fit ? shown(fits.fit.rmsle, 5) : "none"],
    ["N₀", sizeText(centre)],
    ["experts stop helping at N =", sizeText(cutoff(law))],
    ["this N by the fit, 95 % interval", ends ? `${sizeText(ends[0])} to ${sizeText(ends[1])}` : "not determined"],
    [`slope in Ê at ${sizeText(sizes[0])}`, shown(slopeInExperts(sizes[0], law), 4)],
    [`slope in Ê at ${sizeText(sizes.at(-1))}`, shown(slopeInExperts(sizes.at(-1), law), 4)],
    ["64 experts at N = 100B lower the loss by", `${shown(predictLoss(1e11, 1, law) - predictLoss(1e11, 64, law), 3)} nats`],
    ...(floored ? [["floor L₀ by the fit, 95 % interval", floorText(fits)]] : []),
    ["E_max by the fit", (floored ? fits.fit && intervalOf(fits, ({ E_max }) => E_max) : fits.fit?.limited) ? shown(fits.fit.coefficients.E_max, 0) : "not determined"],
  ];
  const printed = Object.entries(law).map(([name, value]) => [name, shown(value, 4)]);
  return [...facts, ...["a", "b", "c", "d"].map((name) => printed.find(([each]) => each === name))];
}

const expertAxis = (most) => ({
  low: 0.88,
  high: Math.max(most, 2) * 1.14,
  log: true,
  label: "experts E",
  ticks: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].filter(
    (E) => E <= most && (most < 64 || Math.log2(E) % 3 === 0),
  ),
});

function lossChart({ rows, sizes, fits, most }, law, width) {
  const counts = grid(1, most, 60);
  const losses = rows.map(([, , loss]) => loss);
  const marks = sizes.flatMap((N, i) => {
    const [colour, mine] = [COLOURS[i % COLOURS.length], rows.filter(([each]) => each === N)];
    const band = fits.fit ? bandOf(fits, N, grid(1, most, 16)) : [];
    const titles = mine.map(([, E, loss]) => `N ${sizeText(N)}, E ${E}, loss ${shown(loss, 3)}`);
    return [
      { kind: "band", points: band, colour },
      { kind: "line", points: counts.map((E) => [E, predictLoss(N, E, law)]), colour, label: sizeText(N) },
      { kind: "dots", points: mine.map(([, E, loss]) => [E, loss]), colour, titles },
    ];
  });
  const y = {
    low: Math.min(...losses) / 1.03,
    high: Math.max(...losses) * 1.03,
    log: true,
    label: "loss, nats per token",
    text: (v) => shown(v),
  };
  return chart({
    width,
    height: 400,
    x: expertAxis(most),
    y,
    marks,
    title: "Loss of each run, and the law, against the number of experts",
  });
}

function residualChart({ rows, sizes, most }, law, width) {
  const miss = (N, E, loss) => 100 * (loss / predictLoss(N, E, law) - 1);
  const far = Math.max(1, ...rows.map((row) => Math.abs(miss(...row)))) * 1.1;
  const dots = sizes.map((N, i) => ({
    kind: "dots",
    colour: COLOURS[i % COLOURS.length],
    points: rows.filter(([each]) => each === N).map((row) => [row[1], miss(...row)]),
  }));
  const zero = {
    kind: "line",
    points: [
      [0.88, 0],
      [most * 1.14, 0],
    ],
    colour: "var(--ink)",
    dashed: true,
  };
  const y = { low: -far, high: far, label: "loss above the law, %", text: (v) => shown(v, 1) };
  return chart({
    width,
    x: expertAxis(most),
    y,
    marks: [zero, ...dots],
    title: "How far each run is above the law, in percent",
  });
}

function worthChart({ sizes, fits, most }, law, width) {
  const high = Math.max(10 ** 13, sizes.at(-1) * 10);
  const along = grid(sizes[0], high, 80);
  const worth = (N, E) => effectiveParameterCount(N, E, law) / N;
  const counts = [8, 64, 512].filter((E) => E <= Math.max(most, 8));
  const lines = counts.map((E, i) => ({
    kind: "line",
    colour: COLOURS[[0, 2, 4][i]],
    label: `E ${E}`,
    points: along.map((N) => [N, worth(N, E)]),
  }));
  const runs = {
    kind: "band",
    colour: "var(--muted)",
    points: [
      [sizes[0], 1e-9],
      [sizes.at(-1), 1e-9],
      [sizes.at(-1), 1e9],
      [sizes[0], 1e9],
    ],
  };
  const one = {
    kind: "line",
    points: [
      [sizes[0], 1],
      [high, 1],
    ],
    colour: "var(--ink)",
    dashed: true,
  };
  const ends = fits.fit && intervalOf(fits, cutoff);
  const span = ends
    ? [
        {
          kind: "band",
          colour: "var(--accent)",
          points: [
            [ends[0], 1e-9],
            [ends[1], 1e-9],
            [ends[1], 1e9],
            [ends[0], 1e9],
          ],
        },
      ]
    : [];
  const stop = {
    kind: "line",
    colour: "var(--accent)",
    points: [
      [cutoff(law), 1e-9],
      [cutoff(law), 1e9],
    ],
  };
  const tops = lines.flatMap(({ points }) => points.map(([, v]) => v)).filter(Number.isFinite);
  const y = {
    low: Math.max(Math.min(0.5, ...tops), 0.05),
    high: Math.min(Math.max(3, ...tops) * 1.2, 1e4),
    log: true,
    label: "worth of E experts, × N",
    text: (v) => shown(v, 1),
  };
  const x = { low: sizes[0], high, log: true, label: "dense parameters N (grey: the runs)", text: sizeText };
  return chart({
    width,
    x,
    y,
    marks: [runs, ...span, one, stop, ...lines],
    title: "Size of the dense model with the same loss, over N",
  });
}

const root = typeof document === "undefined" ? null : document.getElementById("lab-law");
if (root) start(root);
