// Numbers of parameters and tokens as text.

import { powerOfTen, shown } from "./views.js";

/** Return a number of parameters as text: 16.5M, 1.3B. */
export function sizeText(N) {
  if (!(N < 1e16)) return N === Infinity ? "no size" : powerOfTen(N);
  const [unit, letter] = [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "K"],
    [1, ""],
  ].find(([each]) => N >= each) ?? [1, ""];
  return `${shown(N / unit, N / unit < 10 ? 1 : 0)}${letter}`;
}
