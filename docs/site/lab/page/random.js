// Random numbers that a seed repeats: the address of a page is all that another reader needs to see the same draws.

/** Return a function that draws uniform numbers in [0, 1): the generator mulberry32. */
export function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Return a table [rows, columns] of what `draw` draws. */
export const drawTable = (rows, columns, draw) =>
  Array.from({ length: rows }, () => Array.from({ length: columns }, draw));

/** Return one standard normal number, after Box and Muller. */
export const normal = (draw) => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());

/** Return one standard Gumbel number. */
export const gumbel = (draw) => -Math.log(-Math.log(Math.min(Math.max(draw(), 1e-12), 1 - 1e-12)));
