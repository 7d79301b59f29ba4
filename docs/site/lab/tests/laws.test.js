// Each law of the lab passes the conformance vectors of the function of the same name.

import assert from "node:assert/strict";
import test from "node:test";

import { fitRouted } from "../laws/fitting.js";
import { jackknifeEnds } from "../laws/intervals.js";
import * as routed from "../laws/routed.js";
import { failures, readVectors } from "./vectors.js";

/** Return f of each entry of some inputs, which have one length or are lone numbers. */
function each(f, ...inputs) {
  const length = Math.max(0, ...inputs.filter(Array.isArray).map((input) => input.length));
  const entry = (i) => inputs.map((input) => (Array.isArray(input) ? input[i] : input));
  return length ? Array.from({ length }, (_, i) => f(...entry(i))) : f(...entry(0));
}

/** What the lab has in place of a function of the vectors, as a function of the inputs of a case. */
const LAB = {
  "laws.routed.effective_experts": (i) => each((E) => routed.effectiveExperts(E, i), i.num_experts),
  "laws.routed.predict_loss": (i) => each(routed.predictLoss, i.dense_parameters, i.num_experts, i.coefficients),
  "laws.routed.slope_in_experts": (i) => each(routed.slopeInExperts, i.dense_parameters, i.coefficients),
  "laws.routed.slope_in_parameters": (i) => each(routed.slopeInParameters, i.num_experts, i.coefficients),
  "laws.routed.effective_parameter_count": (i) =>
    each(routed.effectiveParameterCount, i.dense_parameters, i.num_experts, i.coefficients),
  "laws.routed.experts_for_loss": (i) => each(routed.expertsForLoss, i.dense_parameters, i.loss, i.coefficients),
  "laws.routed.size_for_loss": (i) => each(routed.sizeForLoss, i.num_experts, i.loss, i.coefficients),
  "laws.routed.cutoff": (i) => routed.cutoff(i.coefficients),
  "laws.fitting.fit_routed": (i) => fitRouted(i.dense_parameters, i.num_experts, i.loss),
  "laws.intervals.jackknife_ends": (i) => jackknifeEnds(i.value, i.folds, i.level),
};

const vectors = Object.fromEntries(readVectors().map((document) => [document.function, document]));

for (const [name, run] of Object.entries(LAB)) {
  test(name, async (t) => {
    assert.ok(vectors[name], "no vectors of this function");
    for (const given of vectors[name].cases) {
      await t.test(given.name, () => assert.deepEqual(failures(run, given), []));
    }
  });
}
