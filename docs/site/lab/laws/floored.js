// The fit of the bounded law with a floor L0: damped least squares (Levenberg and Marquardt) from the law without a floor
// and from floors above 0. reference/laws/floored.py explains the law.

import { fitRouted, leastSquares, rmsleOf } from "./fitting.js";
import { predictLoss } from "./routed.js";

const SHARES = [0, 0.3, 0.6, 0.8]; // of the least loss: the floors of the starts
const STEPS = 200;
const SMALL = 1e-5; // step of the derivatives

/** Return the law of seven unknowns: the plane about log10 N = centre, logarithms of E_start and E_max, and L0. */
function lawOf([level, size, gain, c, start, most, L0], centre) {
  const b = gain - c * centre;
  return { a: size, b, c, d: level - size * centre, E_start: 10 ** start, E_max: 10 ** most, L0: Math.max(L0, 0) };
}

/** Return the unknowns of a law without a floor, moved to the floor L0; `loss` is typical of the table. */
function unknownsOf({ a, b, c, d, E_start, E_max }, centre, L0, loss) {
  const share = 1 - L0 / loss; // log10(L - L0) moves 1 / share times as fast as log10 L
  const plane = [d + a * centre, a, b + c * centre, c].map((each) => each / share);
  plane[0] += Math.log10(loss) * (1 - 1 / share) + Math.log10(share);
  return [...plane, Math.log10(E_start), Math.min(Math.log10(E_max), 6), L0];
}

/** Return the unknowns with the least squares that are reached from a start, and those squares. */
function descended(point, residualsAt) {
  let [residuals, damping] = [residualsAt(point), 1e-3];
  const squaresOf = (values) => values.reduce((sum, value) => sum + value * value, 0);
  let squares = squaresOf(residuals);
  for (let step = 0; step < STEPS && damping < 1e9; step++) {
    const columns = point.map((_, i) => {
      const moved = residualsAt(point.map((value, j) => value + (i === j ? SMALL : 0)));
      return moved.map((value, row) => (value - residuals[row]) / SMALL);
    });
    const lengths = columns.map((column) => Math.sqrt(squaresOf(column)) || 1);
    const damped = columns.map((column, i) => [
      ...column,
      ...lengths.map((length, j) => (i === j ? Math.sqrt(damping) * length : 0)),
    ]);
    const target = [...residuals.map((value) => -value), ...point.map(() => 0)];
    const { solution } = leastSquares(damped, target);
    const next = point.map((value, i) => value + solution[i]);
    const trial = residualsAt(next);
    const trialSquares = squaresOf(trial);
    damping *= trialSquares < squares ? 0.2 : 5;
    if (!(trialSquares < squares)) continue;
    const fall = 1 - trialSquares / squares;
    [point, residuals, squares] = [next, trial, trialSquares];
    if (fall < 1e-10) break;
  }
  return { point, squares };
}

/** Return what stops a fit with a floor, or "". */
export const floorComplaint = (sizes) => {
  const count = new Set(sizes).size;
  return count < 4 ? `${count} different N; a floor needs 4 or more` : "";
};

/**
 * Return {coefficients, rmsle}: the law with a floor of least squares. `law`: the fit without a floor, if there is one.
 * A law with a floor of 0 is the law without a floor, so the error is never above that of `law`.
 */
export function fitFloored(sizes, experts, losses, law = fitRouted(sizes, experts, losses, { fine: false }).coefficients) {
  const centre = sizes.reduce((sum, N) => sum + Math.log10(N), 0) / sizes.length;
  const least = Math.min(...losses);
  const typical = 10 ** (losses.reduce((sum, loss) => sum + Math.log10(loss), 0) / losses.length);
  const residualsAt = (point) => {
    const made = lawOf(point, centre);
    if (!(made.E_start < made.E_max && made.L0 < least)) return losses.map(() => Infinity);
    return losses.map((loss, i) => Math.log10(predictLoss(sizes[i], experts[i], made) / loss));
  };
  const found = SHARES.map((share) => descended(unknownsOf(law, centre, share * least, typical), residualsAt));
  const best = found.reduce((a, b) => (b.squares < a.squares ? b : a));
  const coefficients = lawOf(best.point, centre);
  return { coefficients, rmsle: rmsleOf((N, E) => predictLoss(N, E, coefficients), sizes, experts, losses) };
}
