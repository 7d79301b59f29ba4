// Draws views as HTML: tables, queues, facts and traces. All text comes from this project, none from the address.

import { range } from "../routers/notation.js";
import { shown } from "./views.js";

/** Return an element of some HTML. */
export function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

/** Return the head of a table: a column for each expert, in its colour. */
export function headOf(numExperts, corner = "token") {
  const word = numExperts > 4 ? '<span class="lab-hidden">expert </span>' : "expert "; // no room for it in narrow columns
  const names = range(numExperts).map((e) => `<th scope="col" class="lab-e${e}">${word}${e}</th>`);
  return `<tr><th scope="col">${corner}</th>${names.join("")}</tr>`;
}

export const tokenName = (t, word) => `<th scope="row"><b>${t}</b> <span>${word}</span></th>`;

/** Return the rows of a view: those above the tokens, and one for each token. */
export function bodyOf(view, words) {
  const heads = (view.heads ?? []).map(
    ({ name, values }) =>
      `<tr class="lab-head"><th scope="row">${name}</th>${values.map((text) => `<td>${text}</td>`).join("")}</tr>`,
  );
  const rows = view.cells.map(
    (cells, t) => `<tr>${tokenName(t, words[t])}${cells.map((cell, e) => cellOf(cell, e, view, t)).join("")}</tr>`,
  );
  return [...heads, ...rows].join("");
}

function cellOf({ text, level, chosen, lost }, e, view, t) {
  const classes = [`lab-e${e}`, chosen && "lab-chosen", lost && "lab-lost"].filter(Boolean).join(" ");
  const hint = lost ? " (no slot)" : chosen ? " (chosen)" : "";
  const last = e === view.cells[t].length - 1;
  const note = view.notes && last ? `<i class="lab-note">${view.notes[t]}</i>` : "";
  return `<td class="${classes}" style="--level:${level.toFixed(3)}">${text}<span class="lab-hidden">${hint}</span>${note}</td>`;
}

/** Return the row of queues below a table: a chip for each token, a dashed box for each empty slot. */
export function queuesOf({ queues, slots }) {
  if (!queues) return "";
  const fair = Math.ceil(queues.flat().length / queues.length);
  const drawn = slots <= 2 * Math.max(fair, 1) ? slots : 0; // with slots for all tokens, empty ones are not drawn
  const cells = queues.map((queue, e) => {
    const chips = queue.map(
      ({ token, lost }) =>
        `<li class="${lost ? "lab-over" : "lab-in"}">${token}<span class="lab-hidden">${lost ? " has no slot" : ""}</span></li>`,
    );
    const empty = range(Math.max(0, drawn - queue.length)).map(() => '<li class="lab-empty" aria-hidden="true"></li>');
    return `<td class="lab-e${e}"><ul>${[...chips, ...empty].join("")}</ul></td>`;
  });
  return `<tr class="lab-queues"><th scope="row">tokens</th>${cells.join("")}</tr>`;
}

export const factsOf = (facts) => facts.map(([name, text]) => `<div><dt>${name}</dt><dd>${text}</dd></div>`).join("");

/** Return the picture of a number over all states, with a dot at the state that is shown. */
export function traceOf(trace, step) {
  if (!trace || trace.values.length < 2) return "";
  const height = (value) => (trace.logarithmic ? Math.log10(Math.max(value, 1e-16)) : value);
  const heights = [...trace.values, trace.level].map(height);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const x = (i) => (100 * i) / (trace.values.length - 1);
  const y = (value) => 36 - (32 * (height(value) - low)) / (high - low || 1);
  const points = trace.values.map((value, i) => `${x(i).toFixed(2)},${y(value).toFixed(2)}`).join(" ");
  const ends = `from ${shown(trace.values[0])} to ${shown(trace.values.at(-1), 3)}`;
  return `<figure class="lab-trace"><figcaption>${trace.name}: <b>${shown(trace.values[step], 3)}</b></figcaption>
    <div><svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="${trace.name}, ${ends}">
    <line x1="0" x2="100" y1="${y(trace.level)}" y2="${y(trace.level)}"/><polyline points="${points}"/></svg>
    <i style="left:${x(step)}%;top:${(100 * y(trace.values[step])) / 40}%"></i></div></figure>`;
}
