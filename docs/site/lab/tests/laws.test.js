// Each law of the lab passes the conformance vectors of the function of the same name.

import assert from "node:assert/strict";
import test from "node:test";

import { count } from "../laws/accounting.js";
import * as additive from "../laws/additive.js";
import { fitRouted } from "../laws/fitting.js";
import { jackknifeEnds } from "../laws/intervals.js";
import * as planning from "../laws/planning.js";
import * as routed from "../laws/routed.js";
import { failures, readVectors } from "./vectors.js";

/** Return f of each entry of some inputs, which have one length or are lone numbers. */
function each(f, ...inputs) {
  const length = Math.max(0, ...inputs.filter(Array.isArray).map((input) => input.length));
  const entry = (i) => inputs.map((input) => (Array.isArray(input) ? input[i] : input));
  return length ? Array.from({ length }, (_, i) => f(...entry(i))) : f(...entry(0));
}

const GRANULARITIES = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/** Return an optimum under the names of the reference's records. */
const record = ({ x, option, active, total, ...rest }, flops) => ({
  ...rest,
  flops,
  parameters: total,
  total_parameters: total,
  active_parameters: active,
  d_model: x,
  granularity: option,
  num_experts: option,
});

const OTHER_MODELS = [
  ...["granularity", "group_size", "activation", "positions", "output_norm", "learned_temperature"],
  ...["shared_experts", "router_bias", "latent_width", "zero_experts"],
];

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
  "accounting.count": (i) =>
    count([i.d_model, i.num_blocks, i.num_heads, i.kqv_size], i.router_type, i.num_experts, {
      k: i.k,
      frequency: i.routing_frequency,
      flopIncrease: i.flop_increase,
      vocabulary: i.vocab_size,
      sequence: i.sequence_length,
    }),
  "laws.hoffmann.predict_hoffmann": (i) => each(additive.predictHoffmann, i.dense_parameters, i.tokens, i.coefficients),
  "laws.fine_grained.predict_fine_grained": (i) =>
    each(additive.predictFineGrained, i.total_parameters, i.tokens, i.granularity, i.coefficients),
  "laws.fine_grained.fine_grained_parameters": (i) => each(additive.fineGrainedParameters, i.d_model, i.expansion),
  "laws.fine_grained.fine_grained_active": (i) => each(additive.fineGrainedActive, i.d_model),
  "laws.fine_grained.fine_grained_flops": (i) =>
    each(additive.fineGrainedFlops, i.d_model, i.expansion, i.granularity, i.router_flops),
  "laws.joint.predict_joint": (i) =>
    each(additive.predictJoint, i.active_parameters, i.tokens, i.num_experts, i.coefficients),
  "laws.joint.at_experts": (i) => additive.atExperts(i.num_experts, i.coefficients),
  "laws.joint.joint_total": (i) => each(additive.jointTotal, i.d_model, i.num_experts, i.vocab_size),
  "laws.joint.joint_active": (i) => each(additive.jointActive, i.d_model, i.vocab_size),
  "laws.joint.joint_cache": (i) => each(additive.jointCache, i.d_model, i.cached_tokens),
  "laws.sparsity.predict_loss": (i) =>
    each(additive.predictSparsity, i.total_parameters, i.tokens, i.sparsity, i.coefficients),
  "laws.sparsity.sparsity_active": (i) =>
    each(additive.sparsityActive, i.total_parameters, i.sparsity, i.always_active),
  "laws.sparsity.sparsity_optimum": (i) =>
    record(
      planning.optimum(
        planning.sparsityFamily(planning.unlimited(i.flops), i.sparsity, i.coefficients, i.always_active),
      ),
    ),
  "laws.planning.hoffmann_optimum": (i) =>
    record(planning.optimum(planning.hoffmannFamily(planning.unlimited(i.flops), i.coefficients)), i.flops),
  "laws.planning.fine_grained_optimum": (i) =>
    record(
      planning.bestOption(i.granularities ?? GRANULARITIES, (G) =>
        planning.fineGrainedFamily(planning.unlimited(i.flops), i.expansion, G, i.coefficients),
      )[0],
      i.flops,
    ),
  "laws.planning.joint_optimum": (i) =>
    record({
      option: i.num_experts,
      ...planning.optimum(planning.jointFamily(i.budget, i.num_experts, i.coefficients, i.vocab_size)),
    }),
  "laws.intervals.jackknife_ends": (i) => jackknifeEnds(i.value, i.folds, i.level),
};

const vectors = Object.fromEntries(readVectors().map((document) => [document.function, document]));

for (const [name, run] of Object.entries(LAB)) {
  test(name, async (t) => {
    assert.ok(vectors[name], "no vectors of this function");
    for (const given of vectors[name].cases) {
      const other = OTHER_MODELS.some((option) => name === "accounting.count" && option in given.inputs);
      await t.test(given.name, { skip: other && "the lab counts the paper's models alone" }, () =>
        assert.deepEqual(failures(run, given), []),
      );
    }
  });
}
