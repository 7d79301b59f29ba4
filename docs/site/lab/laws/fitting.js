// The fit of the bounded law: a search over two of its six unknowns, and least squares for the other four.
// reference/laws/fitting.py explains it.

import { studentQuantile } from "./intervals.js";
import { COARSE, FINE, minimise } from "./search.js";

const STRAIGHT = 1e-14;
const RESOLUTION = 1e-10; // log10; differences of predictions below this are the search's own
const TIE = 1e-13;

/** Pieces of the unit square, the smallest first; a larger one wins only where it is better by more than rounding. */
const FACES = [
  ["linear limit", [0, 0], [0, 0]],
  ["E_start at 1, E_max unbounded", [1, 1], [0, 0]],
  ["E_start at 1", [1, 1], [0, 1]],
  ["E_max unbounded", [0, 1], [0, 0]],
  ["interior", [0, 1], [0, 1]],
];

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** Return [rise, bend] of a point of the unit square. */
function shapeOf(t, w, top) {
  const stretch = (v) => Math.expm1(v * Math.log1p(top));
  const inverseStart = Math.min(stretch(t) / top, 1);
  const both = stretch(w) + stretch(1 - w);
  const [ratio, rest] = [stretch(w) / both, stretch(1 - w) / both];
  const [rise, bend] = [inverseStart * rest ** 2, inverseStart * rest * ratio];
  return Math.max(rise, bend) * top < STRAIGHT ? [0, 0] : [rise, bend];
}

/** Return the curve in experts, 0 at E = 1 and 1 at E - 1 = top. */
function expertCurve(extra, rise, bend, top) {
  if (rise === 0) return extra / top;
  return Math.log1p((rise * extra) / (1 + bend * extra)) / Math.log1p((rise * top) / (1 + bend * top));
}

/** Return the sum of products of two lists; loops, since a fit asks for it some hundred thousand times. */
function dot(u, v) {
  let total = 0;
  for (let i = 0; i < u.length; i++) total += u[i] * v[i];
  return total;
}

function take(from, share, what) {
  for (let i = 0; i < from.length; i++) from[i] -= share * what[i];
}

/** Return {solution, squares}: least squares by Gram and Schmidt, columns [p] of [n] each, target [n]. */
export function leastSquares(columns, target) {
  const q = columns.map((column) => Float64Array.from(column));
  const rest = Float64Array.from(target);
  const upper = q.map(() => []);
  q.forEach((column, j) => {
    const length = Math.sqrt(dot(column, column));
    for (let i = 0; i < column.length; i++) column[i] /= length;
    upper[j][j] = length;
    for (let k = j + 1; k < q.length; k++) take(q[k], (upper[j][k] = dot(column, q[k])), column);
    take(rest, (upper[j][q.length] = dot(column, rest)), column);
  });
  const solution = [];
  for (let j = q.length - 1; j >= 0; j--) {
    const later = solution.reduce((total, value, i) => total + upper[j][j + 1 + i] * value, 0);
    solution.unshift((upper[j][q.length] - later) / upper[j][j]);
  }
  return { solution, squares: dot(rest, rest) };
}

/** Return the least squares at one (rise, bend): {solution, squares} for 1, n, psi and psi n. */
function solveAt(rows, rise, bend) {
  const curve = new Map(rows.counts.map((x) => [x, expertCurve(x, rise, bend, rows.top)]));
  const psi = rows.extra.map((x) => curve.get(x));
  const columns = [rows.ones, rows.offset, psi, psi.map((value, i) => value * rows.offset[i])];
  return leastSquares(columns, rows.target);
}

/** Return the table in the units of the fit. */
function rowsOf(sizes, experts, losses) {
  const [logSize, logLoss] = [sizes.map(Math.log10), losses.map(Math.log10)];
  const extra = experts.map((count) => count - 1);
  const [centre, level] = [mean(logSize), mean(logLoss)];
  return {
    extra,
    counts: [...new Set(extra)],
    centre,
    level,
    top: Math.max(...extra),
    ones: sizes.map(() => 1),
    offset: logSize.map((n) => n - centre),
    target: logLoss.map((l) => l - level),
  };
}

/** Return what stops a fit of a table in words, or "" if there are enough rows that differ. */
export function fitComplaint(sizes, experts) {
  if (sizes.length < 7) return `${sizes.length} rows; the law has 6 numbers and needs 7 rows or more`;
  if (new Set(experts).size < 4) return `${new Set(experts).size} different E; the law needs 4 or more`;
  const several = new Set(sizes.filter((n) => new Set(experts.filter((_, i) => sizes[i] === n)).size > 1));
  return several.size < 2 ? "the law needs two or more sizes N with several E each" : "";
}

/**
 * Return {coefficients, objective, rmsle, status, rows, limited}: the best fit over the whole domain to columns N, E and
 * L. `limited`: whether the 95 % profile interval of E_max has an upper end; if not, E_max is not determined.
 * Without `fine` only the interior is searched, and less finely: for the many fits of an interval.
 */
export function fitRouted(sizes, experts, losses, { fine = true } = {}) {
  const rows = rowsOf(sizes, experts, losses);
  const squaresAt = (t, w) => solveAt(rows, ...shapeOf(t, w, rows.top)).squares;
  const pieces = fine ? FACES : FACES.slice(-1);
  const found = pieces.map(([status, tRange, wRange]) => ({
    status,
    ...minimise(squaresAt, tRange, wRange, fine ? FINE : COARSE),
  }));
  const lowest = Math.min(...found.map(({ value }) => value));
  const best = found.find(({ value }) => value <= lowest * (1 + TIE) + sizes.length * RESOLUTION ** 2);
  const [rise, bend] = shapeOf(best.t, best.w, rows.top);
  const { solution, squares } = solveAt(rows, rise, bend);
  const objective = squares / sizes.length;
  const coefficients = coefficientsOf(rows, solution, rise, bend, best.status);
  const allowed = squares * (1 + studentQuantile(0.95, sizes.length - 6) ** 2 / (sizes.length - 6));
  const limited = found.every((face) => face.value > allowed || !/unbounded|linear/.test(face.status));
  return { coefficients, objective, rmsle: Math.sqrt(objective), status: best.status, rows: sizes.length, limited };
}

/** Return the law's own six numbers; NaN in the linear limit, where there are none. */
function coefficientsOf(rows, [level, size, gain, interaction], rise, bend, status) {
  if (status === "linear limit") return { a: NaN, b: NaN, c: NaN, d: NaN, E_start: NaN, E_max: NaN };
  const both = rise + bend; // 1/E_start - 1/E_max
  const E_start = status.startsWith("E_start at 1") ? 1 : rise / both ** 2;
  const E_max = bend === 0 ? Infinity : rise / (both * bend);
  const span = Math.log1p((rise * rows.top) / (1 + bend * rows.top)) / Math.LN10;
  const [b, c] = [(gain - interaction * rows.centre) / span, interaction / span];
  const d = level + rows.level - size * rows.centre - b * Math.log10(E_start);
  return { a: size - c * Math.log10(E_start), b, c, d, E_start, E_max };
}

/** Return the root of the mean squared difference of log10 losses of any law `predict(N, E)`. */
export const rmsleOf = (predict, sizes, experts, losses) =>
  Math.sqrt(mean(losses.map((loss, i) => Math.log10(predict(sizes[i], experts[i]) / loss) ** 2)));
