// The bounded law of Clark et al. 2022: loss by model size N and experts E. reference/laws/routed.py explains it.
//
// A law is {a, b, c, d, E_start, E_max}; numbers go in and come out one by one. Logarithms are decimal. With L0, a law has
// a floor (reference/laws/floored.py), for the loss, equal dense sizes and the cutoff.

/** Return the effective number of experts: E_start at one expert, and never above E_max. */
export function effectiveExperts(experts, { E_start, E_max }) {
  const saturation = 1 / E_max; // 0 if E_max is infinite
  return 1 / (1 / (experts - 1 + 1 / (1 / E_start - saturation)) + saturation);
}

/** Return the loss, nats per token. */
export function predictLoss(size, experts, law) {
  const [n, e] = [Math.log10(size), Math.log10(effectiveExperts(experts, law))];
  return (law.L0 ?? 0) + 10 ** (law.a * n + law.b * e + law.c * n * e + law.d);
}

/** Return what ten times the effective experts do to log10 of the loss at a size. */
export const slopeInExperts = (size, law) => law.b + law.c * Math.log10(size);

/** Return what ten times the parameters do to log10 of the loss at a number of experts. */
export const slopeInParameters = (experts, law) => law.a + law.c * Math.log10(effectiveExperts(experts, law));

/** Return the size of the dense model with the same loss. */
export function effectiveParameterCount(size, experts, law) {
  const [n, e] = [Math.log10(size), Math.log10(effectiveExperts(experts, law))];
  const start = Math.log10(law.E_start);
  return 10 ** (((law.a + law.c * e) * n + law.b * (e - start)) / (law.a + law.c * start));
}

/** Return the least E at which a size reaches a loss; Infinity where none does, 1 where the dense model does. */
export function expertsForLoss(size, loss, law) {
  const [n, target, slope] = [Math.log10(size), Math.log10(loss), slopeInExperts(size, law)];
  const [level, saturation] = [law.a * n + law.d, 1 / law.E_max];
  if (target - level >= slope * Math.log10(law.E_start)) return 1;
  if (slope >= 0) return Infinity;
  const left = 1 / 10 ** ((target - level) / slope) - saturation; // 1 / effective experts, less the limit
  return left > 0 ? Math.max(1, 1 + 1 / left - 1 / (1 / law.E_start - saturation)) : Infinity;
}

/** Return the size at which E experts reach a loss; NaN where the loss does not fall with size. */
export function sizeForLoss(experts, loss, law) {
  const slope = slopeInParameters(experts, law);
  const level = law.b * Math.log10(effectiveExperts(experts, law)) + law.d;
  return slope < 0 ? 10 ** ((Math.log10(loss) - level) / slope) : NaN;
}

/** Return the size from which more experts stop helping: where b + c log10 N reaches 0; Infinity if it never does. */
export const cutoff = ({ b, c }) => (c > 0 ? 10 ** (-b / c) : Infinity);

/** Table 3 of Clark et al. 2022. */
export const PRINTED = {
  "S-Base": { a: -0.082, b: -0.108, c: 0.009, d: 1.104, E_start: 1.847, E_max: 314.478 },
  "RL-R": { a: -0.083, b: -0.126, c: 0.012, d: 1.111, E_start: 1.88, E_max: 469.982 },
  Hash: { a: -0.087, b: -0.136, c: 0.012, d: 1.157, E_start: 4.175, E_max: 477.741 },
};
