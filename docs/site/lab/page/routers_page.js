// The page "Routers side by side": one table of scores, and a card for each router.

import { button } from "./controls.js";
import { element } from "./draw.js";
import { ROUTERS } from "./routers.js";
import { routerCard } from "./card.js";
import { scorePanel } from "./score_table.js";
import { query, rememberer } from "./address.js";
import { IDS, forget, format, parse } from "./state.js";

/** Return {model, state, cards}: the state of the page and what cards ask of it. */
function modelOf(state, redraw) {
  const kept = {}; // id: {key, states}, computed anew only when what they depend on has changed
  const paramsOf = (id) => {
    const defaults = Object.fromEntries(ROUTERS[id].controls.map(({ name, value }) => [name, value]));
    return { ...defaults, ...state.params[id] };
  };
  const statesOf = (id) => {
    const { scores, k, capacity, seed } = state;
    const context = { scores, k, capacity, seed, ids: IDS.slice(0, scores.length), params: paramsOf(id) };
    const key = JSON.stringify([context, String(capacity)]);
    if (kept[id]?.key !== key) kept[id] = { key, states: ROUTERS[id].states(context) };
    return kept[id].states;
  };
  const stepOf = (id) => Math.min(state.steps[id] ?? ROUTERS[id].first ?? Infinity, statesOf(id).length - 1);
  const setStep = (id, step) => {
    state.steps[id] = step;
    redraw([id]);
  };
  const setParam = (id, name, value) => {
    state.params[id] = { ...state.params[id], [name]: value };
    redraw([id]);
  };
  /** Give prices that the reader set back to the auction, which begins anew. */
  const release = (id) => {
    if (!state.params[id]?.prices) return;
    delete state.params[id].prices;
    state.steps[id] = 0;
    redraw([id]);
  };
  return { paramsOf, statesOf, stepOf, setStep, setParam, release };
}

/** Put the page into `root`. */
export function start(root) {
  const { state, ignored } = parse(query(), ROUTERS);
  const cards = {};
  const remember = rememberer(() => format(state));
  const redraw = (ids = Object.keys(ROUTERS)) => {
    ids.forEach((id) => cards[id].show());
    remember();
  };
  const model = { ...modelOf(state, redraw), home: "../", lead: (id) => lead(id, true) };
  const scores = scorePanel(state, (entries) => {
    Object.assign(state, entries);
    if (entries.scores) forget(state);
    scores.show();
    redraw();
  });
  for (const [id, router] of Object.entries(ROUTERS)) cards[id] = routerCard(id, router, model);
  const layout = layoutOf(cards, (id) => lead(id, false));
  const lead = (id, scroll) => {
    state.lead = id;
    layout.show(id);
    remember();
    if (!scroll) return;
    layout.node.scrollIntoView({ block: "start" });
    layout.focus(id); // the button that was pressed has moved with its card
  };
  layout.top.prepend(scores.node);
  root.replaceChildren(...(ignored.length ? [warning(ignored)] : []), layout.node);
  scores.show();
  redraw();
  layout.show(state.lead);
  if (query()) layout.node.scrollIntoView({ block: "start" }); // a lesson leads to a state, not to the introduction
}

/** Put the card of one router into `root`. The address does not store its changes. */
export function startAlone(root, id) {
  const model = { ...modelOf(parse("", ROUTERS).state, () => card.show()), home: "" };
  const card = routerCard(id, ROUTERS[id], model);
  const lead = element('<div class="lab-lead"></div>');
  lead.append(card.node);
  root.replaceChildren(lead);
  card.show();
}

const warning = (names) =>
  element(`<p class="lab-warning">The address has entries that this page does not know and
  that it ignores: ${names.length}.</p>`);

/** Return {node, top, show}: the table and the leading card beside each other, and the other cards below. */
function layoutOf(cards, chosen) {
  const node = element(`<div class="lab-page"><div class="lab-top"><div class="lab-lead"></div></div>
    <h2>The same tokens, all routers</h2><div class="lab-bar lab-all"></div><div class="lab-rest"></div></div>`);
  const [top, place, all, rest] = [".lab-top", ".lab-lead", ".lab-all", ".lab-rest"].map((name) =>
    node.querySelector(name),
  );
  const tabs = element('<div class="lab-tabs" role="group" aria-label="The router beside the table"></div>');
  for (const [id, { name }] of Object.entries(ROUTERS)) {
    const tab = button(name, `Show ${name} beside the table`, () => chosen(id));
    tab.dataset.router = id;
    tabs.append(tab);
  }
  top.before(tabs);
  const each = (act) => Object.values(cards).forEach(act);
  all.append(
    button("Play all", "Play all routers from their current step", () => each((card) => card.playing() || card.start())),
    button("Pause all", "Stop all routers", () => each((card) => card.stop())),
    button("Step all", "One step of each router", () => each((card) => card.step())),
    button("Reset all", "Reset all routers", () => each((card) => card.reset())),
  );
  const show = (id) => {
    Object.entries(cards).forEach(([other, card]) => (other === id ? place : rest).append(card.node));
    tabs
      .querySelectorAll("button")
      .forEach((tab) => tab.setAttribute("aria-pressed", String(tab.dataset.router === id)));
    const live = (other) => (other === id ? "polite" : "off"); // one card alone is read aloud while it plays
    Object.entries(cards).forEach(([other, card]) =>
      card.node.querySelector(".lab-say").setAttribute("aria-live", live(other)),
    );
  };
  const focus = (id) => tabs.querySelector(`[data-router=${id}]`).focus();
  return { node, top, show, focus };
}

const root = typeof document === "undefined" ? null : document.getElementById("lab-routers");
if (root) root.dataset.router ? startAlone(root, root.dataset.router) : start(root);
