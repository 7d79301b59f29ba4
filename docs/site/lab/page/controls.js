// Sliders and buttons. A slider with `logarithmic` holds the logarithm to base 10 of its value.

import { element } from "./draw.js";
import { shown } from "./views.js";

let made = 0;

/** Return {node, set}: a slider with its label and value; `changed` gets each new value. */
export function slider({ label, min, max, step, value, logarithmic, text = shown }, changed) {
  const id = `lab-slider-${(made += 1)}`;
  const [inward, outward] = logarithmic ? [Math.log10, (x) => Number((10 ** x).toPrecision(3))] : [Number, Number];
  const node = element(`<div class="lab-slider"><label for="${id}">${label}</label><input type="range" id="${id}"
    min="${inward(min)}" max="${inward(max)}" step="${logarithmic ? 0.01 : step}"><output for="${id}"></output></div>`);
  const [input, output] = [node.querySelector("input"), node.querySelector("output")];
  const set = (next) => {
    if (document.activeElement !== input || outward(input.value) !== next) input.value = inward(next);
    output.textContent = text(next);
    input.setAttribute("aria-valuetext", text(next));
  };
  input.addEventListener("input", () => changed(outward(input.value)));
  set(value);
  return { node, set };
}

/** Return a button with its text; `title` says more. */
export function button(text, title, pressed) {
  const node = element(`<button type="button" title="${title}">${text}</button>`);
  node.addEventListener("click", pressed);
  return node;
}

/** Return {node, set}: a list to choose from, of pairs [value, text]. */
export function choice(label, pairs, changed) {
  const id = `lab-choice-${(made += 1)}`;
  const options = pairs.map(([value, text]) => `<option value="${value}">${text}</option>`).join("");
  const node = element(
    `<div class="lab-choice"><label for="${id}">${label}</label><select id="${id}">${options}</select></div>`,
  );
  const select = node.querySelector("select");
  select.addEventListener("change", () => changed(select.value));
  return { node, set: (value) => (select.value = value) };
}

/**
 * Let a number field be dragged sideways, a step for each 8 pixels. Up and down scrolls the page, as anywhere else;
 * a click alone puts the cursor into the field.
 */
export function draggable(input, step, changed) {
  input.addEventListener("pointerdown", (down) => {
    const start = Number(input.value);
    let dragged = false;
    const move = (event) => {
      const steps = Math.round((event.clientX - down.clientX) / 8);
      if (!dragged && Math.abs(event.clientX - down.clientX) < 5) return;
      dragged = true;
      event.preventDefault();
      input.value = Number((start + steps * step).toFixed(2));
      changed();
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      window.removeEventListener("pointercancel", up);
      if (dragged) input.blur();
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
    window.addEventListener("pointercancel", up);
  });
}
