// The law of the page, as seven sliders that each mean something where the runs are.
//
// The paper's b and d are values at N = 1, far below any model. The sliders are taken at a size N0 among the runs:
//   size    d log10 L / d log10 N of a dense model      gain   d log10 L / d log10 of effective experts, at N0
//   bend    c, how much the gain changes per decade     level  loss of the dense model at N0
//   start   E_start                                     most   E_max
//   floor   L0, below the level; with a floor, the slopes are those of L - L0

/** Return the law {a, b, c, d, E_start, E_max, L0} of slider values at the size N0. */
export function lawOf({ size, gain, bend, level, start, most, floor = 0 }, centre) {
  const [n, s] = [Math.log10(centre), Math.log10(start)];
  const law = { a: size - bend * s, b: gain - bend * n, c: bend, E_start: start, E_max: most };
  law.L0 = Math.min(floor, 0.99 * level); // the loss stays above the floor
  return { ...law, d: Math.log10(level - law.L0) - law.a * n - law.b * s - law.c * n * s };
}

/** Return the slider values of a law at the size N0. */
export function slidersOf({ a, b, c, d, E_start, E_max, L0 = 0 }, centre) {
  const [n, s] = [Math.log10(centre), Math.log10(E_start)];
  const level = L0 + 10 ** (a * n + b * s + c * n * s + d);
  return { size: a + c * s, gain: b + c * n, bend: c, level, start: E_start, most: E_max, floor: L0 };
}

export const SLIDERS = [
  { name: "floor", label: "floor L₀, nats per token", min: 0, max: 3, step: 0.01, digits: 2 },
  { name: "level", label: "loss of the dense model at N₀", min: 1, max: 6, step: 0.001, digits: 3 },
  { name: "size", label: "slope in N: decades of loss per decade", min: -0.4, max: 0, step: 0.0005, digits: 4 },
  { name: "gain", label: "slope in Ê at N₀", min: -0.2, max: 0.1, step: 0.0005, digits: 4 },
  { name: "bend", label: "c: change of that slope per decade of N", min: -0.02, max: 0.04, step: 0.0005, digits: 4 },
  { name: "start", label: "E_start", min: 1, max: 30, logarithmic: true, digits: 2 },
  { name: "most", label: "E_max", min: 31, max: 1e5, logarithmic: true, digits: 0 },
];

/** Return {table, floored, values, ignored} of an address such as table=Hash&law=floor&size=-0.08. */
export function parseLaw(query, tables) {
  const [found, values, ignored] = [{ table: null, floored: false }, {}, []];
  for (const [name, text] of new URLSearchParams(query)) {
    const control = SLIDERS.find((each) => each.name === name);
    const value = Number(text);
    if (name === "table" && text in tables) found.table = text;
    else if (name === "law" && text === "floor") found.floored = true;
    else if (control && text !== "" && value >= control.min && value <= control.max) values[name] = value;
    else ignored.push(name);
  }
  return { ...found, values, ignored };
}

/** Return the query of a state: the table, the form and all sliders, unless they are those of the fit. */
export function formatLaw(table, values, fitted, floored = false) {
  const query = new URLSearchParams(floored ? { table, law: "floor" } : { table });
  const shown = SLIDERS.filter(({ name }) => floored || name !== "floor");
  if (!fitted) for (const { name } of shown) query.set(name, Number(values[name].toPrecision(6)));
  return query.toString();
}
