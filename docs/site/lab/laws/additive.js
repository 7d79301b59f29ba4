// The laws with a term for size and a term for tokens: hoffmann.py, fine_grained.py, joint.py and sparsity.py of
// reference/laws/tokens.

import { effectiveExperts } from "./routed.js";

/** Hoffmann et al. 2022: a/N^alpha + b/D^beta + c. */
export const predictHoffmann = (N, D, k) => k.a / N ** k.alpha + k.b / D ** k.beta + k.c;

/** Krajewski, Ludziejewski et al. 2024: c + (g/G^gamma + a)/N^alpha + b/D^beta. */
export const predictFineGrained = (N, D, G, k) => k.c + (k.g / G ** k.gamma + k.a) / N ** k.alpha + k.b / D ** k.beta;

/** Return {m, mu, n, nu, c}: the joint law at one number of experts, m N^mu + n D^nu + c. */
export function atExperts(numExperts, k) {
  const count = effectiveExperts(numExperts, k);
  const log = Math.log(count);
  return {
    m: k.a * count ** k.delta,
    mu: k.alpha + k.gamma * log,
    n: k.b * count ** k.omega,
    nu: k.beta + k.zeta * log,
    c: k.c,
  };
}

/** Ludziejewski et al. 2025: dense and routed models in one law. */
export function predictJoint(N, D, E, k) {
  const { m, mu, n, nu, c } = atExperts(E, k);
  return m * N ** mu + n * D ** nu + c;
}

/** Abnar et al. 2025: total size P, tokens D and sparsity S, the share of the experts that lies idle. */
export function predictSparsity(P, D, S, k = PUBLISHED.sparsity) {
  const used = 1 - S;
  return k.a / P ** k.alpha + k.b / D ** k.beta + k.c / used ** k.lam + k.d / (used ** k.delta * P ** k.gamma) + k.e;
}

const PER_BLOCK = 64; // d over the number of blocks, of the models of both papers

/** Parameters, active parameters and training FLOPs per token of fine-grained models. */
export const fineGrainedParameters = (d, expansion) => (d ** 3 * (8 * expansion + 4)) / PER_BLOCK;
export const fineGrainedActive = (d) => (12 * d ** 3) / PER_BLOCK;
export const fineGrainedFlops = (d, expansion, G, router = 14) =>
  ((72 * d ** 2 + d * expansion * G * router) * d) / PER_BLOCK;

/** Parameters, active parameters and cached numbers of the models of the joint law. */
export const jointTotal = (d, E, vocabulary = 50257) => 2 * d * vocabulary + ((4 + 9 * E) * d ** 3) / PER_BLOCK;
export const jointActive = (d, vocabulary) => jointTotal(d, 1, vocabulary);
export const jointCache = (d, tokens) => (2 * tokens * d ** 2) / PER_BLOCK;

/** Active parameters of a model of which the share `always` works on each token, and 1 - S of the rest. */
export const sparsityActive = (P, S, always = 0) => P * (always + (1 - always) * (1 - S));

/** Printed coefficients. */
export const PUBLISHED = {
  hoffmann: { a: 406.4, alpha: 0.3392, b: 410.7, beta: 0.2849, c: 1.6934 },
  besiroglu: { a: 482.01, alpha: 0.3478, b: 2085.43, beta: 0.3658, c: 1.8172 },
  "E=64": { a: 18.1, alpha: 0.115, b: 30.8, beta: 0.147, g: 2.1, gamma: 0.58, c: 0.472 },
  "E=16": { a: 19.64, alpha: 0.124, b: 57.07, beta: 0.169, g: 1.18, gamma: 0.986, c: 0.472 },
  joint: {
    a: 35.91,
    alpha: -0.1889,
    delta: -0.2285,
    gamma: 0.0098,
    b: 35.98,
    beta: -0.1775,
    omega: 0.5529,
    zeta: -0.0259,
    E_start: 2.0732,
    E_max: 290.4521,
    c: 1.3637,
  },
  sparsity: {
    a: 16612.5,
    alpha: 0.5962,
    b: 5455.67,
    beta: 0.3954,
    c: 0.4598,
    lam: -0.1666,
    d: 17.26,
    delta: 0.1603,
    gamma: 0.1595,
    e: 0.94,
  },
};
