// Intervals by leaving out one group at a time: the jackknife. reference/laws/confidence/intervals.py explains it.

/** Return the integral of cos^n from 0 to an angle, by the recursion in n. */
function cosinePower(n, angle) {
  if (n === 0) return angle;
  if (n === 1) return Math.sin(angle);
  return (Math.cos(angle) ** (n - 1) * Math.sin(angle) + (n - 1) * cosinePower(n - 2, angle)) / n;
}

/** Return q such that a Student t variable lies in [-q, q] with probability `level`. */
export function studentQuantile(level, degrees) {
  const wanted = level * cosinePower(degrees - 1, Math.PI / 2);
  let [low, high] = [0, Math.PI / 2];
  for (let step = 0; step < 80; step++) {
    const middle = (low + high) / 2;
    if (cosinePower(degrees - 1, middle) < wanted) low = middle;
    else high = middle;
  }
  return Math.sqrt(degrees) * Math.tan((low + high) / 2);
}

/** Return [low, high]: value plus and minus q standard errors of the jackknife, from the values without each group. */
export function jackknifeEnds(value, folds, level = 0.95) {
  if (folds.length < 2 || ![value, ...folds].every(Number.isFinite)) return [NaN, NaN];
  const mean = folds.reduce((a, b) => a + b, 0) / folds.length;
  const squares = folds.reduce((total, each) => total + (each - mean) ** 2, 0);
  const reach = studentQuantile(level, folds.length - 1) * Math.sqrt(((folds.length - 1) / folds.length) * squares);
  return [value - reach, value + reach];
}
