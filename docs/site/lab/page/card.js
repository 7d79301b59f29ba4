// A router's card: its controls, its table, who goes where, and buttons that step, play and reset.

import { range } from "../routers/notation.js";
import { button, slider } from "./controls.js";
import { bodyOf, element, factsOf, headOf, queuesOf, traceOf } from "./draw.js";
import { WORDS } from "./state.js";

/**
 * Return {node, show, play}: the card of a router.
 *
 * model has statesOf(id), stepOf(id), paramsOf(id), setStep(id, step), setParam(id, name, value), lead(id), and `home`,
 * the path from the page to the landing page.
 */
export function routerCard(id, router, model) {
  const node = element(`<article class="lab-card" id="lab-card-${id}" aria-labelledby="lab-title-${id}">
    <header><h3 id="lab-title-${id}">${router.name}</h3>
    <a href="${model.home}tutorials/${router.lesson}.html">lesson ${Number(router.lesson.slice(0, 2))}</a></header>
    <p class="lab-idea">${router.idea}</p>
    <table class="lab-grid"><thead></thead><tbody></tbody><tfoot></tfoot></table>
    <p class="lab-say"></p><div class="lab-transport"></div><div class="lab-controls"></div><div class="lab-picture"></div><dl class="lab-facts"></dl></article>`);
  const parts = Object.fromEntries(
    ["header", "thead", "tbody", "tfoot", ".lab-say", ".lab-picture", ".lab-facts"].map((name) => [
      name.replace(".lab-", ""),
      node.querySelector(name),
    ]),
  );
  const sliders = router.controls.map((control) => {
    const made = slider(control, (value) => model.setParam(id, control.name, value));
    node.querySelector(".lab-controls").append(made.node);
    return [control.name, made];
  });
  const transport = transportOf(id, router, model);
  node.querySelector(".lab-transport").append(...transport.nodes);
  parts.header.append(button("Show on top", `Show ${router.name} beside the table`, () => model.lead(id)));
  const prices = id === "base" ? priceRow(model) : null;
  const show = () => {
    const [states, step] = [model.statesOf(id), model.stepOf(id)];
    const view = states[step]();
    const numExperts = view.cells[0].length;
    showHead(parts.thead, numExperts, prices);
    prices?.show(view.prices);
    parts.tbody.innerHTML = bodyOf(view, WORDS);
    parts.tfoot.innerHTML = queuesOf(view);
    parts.say.textContent = view.say;
    parts.picture.innerHTML = traceOf(view.trace, step);
    parts.facts.innerHTML = factsOf(view.facts);
    node.classList.toggle("lab-good", Boolean(view.good));
    sliders.forEach(([name, made]) => made.set(model.paramsOf(id)[name]));
    transport.show(states.length, step);
  };
  return { node, show, ...transport.actions };
}

function showHead(thead, numExperts, prices) {
  if (thead.dataset.experts === String(numExperts)) return;
  thead.dataset.experts = numExperts;
  thead.innerHTML = headOf(numExperts);
  if (prices) thead.append(prices.row(numExperts));
}

/** Return {row, show}: the row of BASE's prices, each with a slider; moving one takes over from the auction. */
function priceRow(model) {
  let made = [];
  const row = (numExperts) => {
    made = range(numExperts).map((e) =>
      slider(
        { label: `<span class="lab-hidden">price of expert ${e}</span>`, min: 0, max: 10, step: 0.25, value: 0 },
        (value) => {
          const view = model.statesOf("base")[model.stepOf("base")]();
          model.setParam(
            "base",
            "prices",
            view.prices.map((price, i) => (i === e ? value : price)),
          );
        },
      ),
    );
    const tr = element("<table><tr class='lab-prices'><th scope='row'>price</th></tr></table>").querySelector("tr");
    made.forEach(({ node }, e) => {
      const td = tr.insertCell();
      td.className = `lab-e${e}`;
      td.append(node);
    });
    return tr;
  };
  return { row, show: (prices) => made.forEach(({ set }, e) => set(Number(prices[e].toFixed(4)))) };
}

/** Return {nodes, show, actions}: the buttons, the slider of states, and what plays them. */
function transportOf(id, router, model) {
  let timer = null;
  const last = () => model.statesOf(id).length - 1;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const forward = () => {
    model.release(id);
    if (model.stepOf(id) < last()) model.setStep(id, model.stepOf(id) + 1);
    if (model.stepOf(id) >= last()) stop();
  };
  const start = () => {
    model.release(id);
    if (last() === 0) return;
    if (model.stepOf(id) >= last()) model.setStep(id, 0);
    play.textContent = "Pause";
    timer = setInterval(forward, router.pace);
  };
  const reset = () => {
    stop();
    model.release(id);
    model.setStep(id, 0);
  };
  const step = () => {
    stop();
    forward();
  };
  const play = button("Play", `Play ${router.name}`, () => (timer ? stop() : start()));
  const nodes = [button("Reset", "Back to the beginning", reset), button("Step", "One step forward", step), play];
  const scrub = slider({ label: router.unit, min: 0, max: 1, step: 1, value: 0 }, (value) => {
    stop();
    model.setStep(id, value);
  });
  const show = (count, at) => {
    const fixed = count === 1 && id !== "base";
    scrub.node.querySelector("input").max = count - 1;
    scrub.set(at);
    scrub.node.querySelector("output").textContent = `${at} of ${count - 1}`;
    [...nodes, scrub.node].forEach((each) => (each.hidden = fixed));
    scrub.node.hidden = count === 1;
  };
  return { nodes: [...nodes, scrub.node], show, actions: { start, stop, reset, step, playing: () => timer !== null } };
}
