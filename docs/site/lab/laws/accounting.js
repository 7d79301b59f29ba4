// N, P and F of the paper's models; reference/accounting.py explains the formulas.

const VOCABULARY = 32000;
const SEQUENCE = 2048;

/** Tokens per step and steps of the released runs. */
export const TOKENS_PER_STEP = 256 * 2048;

/** [d, blocks, heads, width of a head] of the six sizes of the paper. */
export const SHAPES = [
  [512, 6, 8, 32],
  [512, 8, 8, 64],
  [640, 10, 12, 64],
  [896, 12, 16, 64],
  [1536, 12, 12, 128],
  [2048, 24, 16, 128],
];

/** Return {dense_parameters, total_parameters, flops_per_token, utilisation} of a model; FLOPs are those of the forward pass. */
export function count([d, blocks, heads, width], router = "Dense", numExperts = 1, options = {}) {
  const { k = 1, frequency = 0.5, flopIncrease = 1, vocabulary = VOCABULARY, sequence = SEQUENCE } = options;
  const a = heads * width;
  const dense = blocks * (5 * d * a + 8 * d * d + 4 * d);
  const attention = 10 * d * a + 6 * sequence * a + 3 * sequence * heads;
  const flops = blocks * (attention + 16 * d * d + 10 * d) + 2 * vocabulary * d;
  const counted = (total, all) => ({
    dense_parameters: dense,
    total_parameters: total,
    flops_per_token: all,
    utilisation: total / all,
  });
  // The table counts a wide dense layer as so many experts that are all used.
  const [experts, used] = router === "Dense" ? [flopIncrease, flopIncrease] : [numExperts, k];
  if (experts === 1 && router === "Dense") return counted(dense, flops);
  const routed = Math.round(frequency * blocks);
  const baseline = router === "RL-R" ? d * Math.floor(d / 8) + Math.floor(d / 8) : 0;
  const total = dense + routed * ((experts - 1) * 8 * d * d + d * experts + baseline);
  return counted(total, flops + routed * (2 * d * experts + 2 * baseline + (used - 1) * 16 * d * d));
}

/**
 * Return a function from a size to {total, flops}: P, and FLOPs of the forward pass per token, at sizes between and
 * beyond the six, on straight lines of logarithms.
 */
export function countsBySize(router, numExperts) {
  const counts = SHAPES.map((shape) => count(shape, router, numExperts));
  const logs = ["dense_parameters", "total_parameters", "flops_per_token"].map((name) =>
    counts.map((each) => Math.log(each[name])),
  );
  return (size) => {
    const x = Math.log(size);
    let i = 0;
    while (i < SHAPES.length - 2 && logs[0][i + 1] < x) i += 1;
    const share = (x - logs[0][i]) / (logs[0][i + 1] - logs[0][i]);
    const [total, flops] = logs.slice(1).map((values) => Math.exp(values[i] * (1 - share) + values[i + 1] * share));
    return { total, flops };
  };
}
