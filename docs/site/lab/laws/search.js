// The least value of a function on a line and on a rectangle: a scan, and its low points narrowed by golden section.
// reference/laws/numerics/_projection.py explains why.

const CANDIDATES = 3; // low points of a scan that are narrowed down
const GOLDEN = (Math.sqrt(5) - 1) / 2;

/** How fine a search is: points of a scan, and steps of golden section after it. */
export const FINE = { scan: 49, steps: 37 };
export const COARSE = { scan: 17, steps: 16 };

/** Return {value, point} at the least value of a function from low to high. */
export function leastOnLine(f, [low, high], effort = FINE) {
  if (low === high) return { value: f(low), point: low };
  const { scan, steps } = effort;
  const points = Array.from({ length: scan }, (_, i) => low + ((high - low) * i) / (scan - 1));
  const values = points.map(f);
  const around = (k) => [Math.max(k - 1, 0), Math.min(k + 1, scan - 1)];
  const lows = [...values.keys()].filter((k) => around(k).every((other) => values[k] <= values[other]));
  const best = lows.sort((i, j) => values[i] - values[j]).slice(0, CANDIDATES);
  const found = best.flatMap((k) => {
    const [left, right] = around(k);
    return [{ value: values[k], point: points[k] }, narrowed(f, points[left], points[right], steps)];
  });
  return found.reduce((a, b) => (b.value < a.value ? b : a));
}

/** Return {value, point} at the least value between low and high, where there is one low point. */
function narrowed(f, low, high, steps) {
  let [left, right] = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)];
  let [atLeft, atRight] = [f(left), f(right)];
  for (let step = 0; step < steps; step++) {
    if (atLeft <= atRight) {
      [high, right, atRight] = [right, left, atLeft];
      left = high - GOLDEN * (high - low);
      atLeft = f(left);
    } else {
      [low, left, atLeft] = [left, right, atRight];
      right = low + GOLDEN * (high - low);
      atRight = f(right);
    }
  }
  return atLeft <= atRight ? { value: atLeft, point: left } : { value: atRight, point: right };
}

/** Return {t, w, value} at the least value over a rectangle. */
export function minimise(f, tRange, wRange, effort = FINE) {
  const overW = (t) => leastOnLine((w) => f(t, w), wRange, effort);
  const { value, point: t } = leastOnLine((each) => overW(each).value, tRange, effort);
  return { t, w: overW(t).point, value };
}
