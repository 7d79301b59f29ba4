// The fit of a table and its intervals, by leaving out one size at a time.

import { fitComplaint, fitRouted } from "../laws/fitting.js";
import { fitFloored, floorComplaint } from "../laws/floored.js";
import { jackknifeEnds } from "../laws/intervals.js";
import { predictLoss } from "../laws/routed.js";

const columnsOf = (rows) => [0, 1, 2].map((place) => rows.map((row) => row[place]));

/** Return the sizes of a table, rising. */
export const sizesOf = (rows) => [...new Set(rows.map(([N]) => N))].sort((a, b) => a - b);

/** Return {fit, folds, complaint}: the best law of a table, and the laws without each size that can be fitted. */
export function fitsOf(rows, floored = false) {
  const sizes = sizesOf(rows);
  const complaint = fitComplaint(...columnsOf(rows)) || (floored ? floorComplaint(sizes) : "");
  if (complaint) return { fit: null, folds: [], complaint };
  const bounded = fitRouted(...columnsOf(rows));
  const fit = floored ? { ...bounded, ...fitFloored(...columnsOf(rows), bounded.coefficients) } : bounded;
  if (Number.isNaN(bounded.coefficients.a))
    return { fit: null, folds: [], complaint: "these rows show no bend in the number of experts" };
  const folds = sizes.map((left) => {
    const kept = rows.filter(([N]) => N !== left);
    if (fitComplaint(...columnsOf(kept))) return null;
    return (floored ? fitFloored(...columnsOf(kept)) : fitRouted(...columnsOf(kept), { fine: false })).coefficients;
  });
  return { fit, folds: folds.includes(null) ? [] : folds, complaint: "" };
}

/** Return [low, high] of a number of a law, in its logarithm, or null over six powers of ten and where it is unknown. */
export function intervalOf({ fit, folds }, numberOf) {
  const logarithm = (law) => Math.log10(numberOf(law));
  const ends = jackknifeEnds(logarithm(fit.coefficients), folds.map(logarithm));
  return ends[1] - ends[0] <= 6 ? ends.map((end) => 10 ** end) : null;
}

/** Return the outline of the band of a law at a size, over some numbers of experts; [] where it is not known. */
export function bandOf(fits, size, counts) {
  const ends = counts.map((E) => intervalOf(fits, (law) => predictLoss(size, E, law)));
  if (ends.includes(null)) return [];
  const side = (place) => counts.map((E, i) => [E, ends[i][place]]);
  return [...side(1), ...side(0).reverse()];
}
