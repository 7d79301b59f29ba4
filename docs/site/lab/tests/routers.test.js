// Each router of the lab passes the conformance vectors of the function of the same name.

import assert from "node:assert/strict";
import test from "node:test";

import { auxiliaryLoss, updateBias, zLoss } from "../routers/balance.js";
import { balancedAssignment } from "../routers/base.js";
import { dispatch, expertCapacity } from "../routers/experts.js";
import { expertChoiceRouter } from "../routers/expert_choice.js";
import { balancedTable, hashLayer, moduloTable } from "../routers/hash_layer.js";
import { mixingWeights } from "../routers/mixture_of_tokens.js";
import { softmax, topKIndices } from "../routers/notation.js";
import { quantileBias } from "../routers/quantile.js";
import { logPolicy, logProbability, policyTerms } from "../routers/reinforce.js";
import { sinkhornPlan, sinkhornRouter } from "../routers/sinkhorn.js";
import { topKRouter } from "../routers/top_k.js";
import { failures, readVectors } from "./vectors.js";

/** What the lab has in place of a function of the vectors, as a function of the inputs of a case. */
const LAB = {
  "notation.softmax": (i) => i.logits.map(softmax),
  "notation.top_k_indices": (i) => topKIndices(i.scores, i.k),
  "experts.expert_capacity": (i) => expertCapacity(i.num_tokens, i.num_experts, i.k, i.capacity_factor),
  "experts.dispatch": (i) => dispatch(i.expert, i.num_experts, i.capacity, i),
  "balance.auxiliary_loss": (i) => auxiliaryLoss(i.logits, i.expert, i),
  "balance.update_bias": (i) => updateBias(i.bias, i.counts, i),
  "balance.z_loss": (i) => zLoss(i.logits),
  "routers.base.balanced_assignment": (i) => balancedAssignment(i.scores, i.k),
  "routers.expert_choice.expert_choice_router": (i) => expertChoiceRouter(i.logits, i.capacity_factor, i),
  "routers.hash_layer.balanced_table": (i) => balancedTable(i.counts, i.num_experts, i.k),
  "routers.hash_layer.hash_layer": (i) => hashLayer(i.token_ids, i.num_experts),
  "routers.hash_layer.modulo_table": (i) => moduloTable(i.vocab_size, i.num_experts, i.k),
  "routers.mixture_of_tokens.mixing_weights": (i) => mixingWeights(i.logits, i.temperature, { oneHot: i.one_hot }),
  "routers.quantile.quantile_bias": (i) => quantileBias(i.scores, i.bias, i.k, { numSteps: i.num_steps }),
  "routers.reinforce.log_policy": (i) => logPolicy(i.logits, i.k, i.nucleus),
  "routers.reinforce.log_probability": (i) => logProbability(i.logits, i.expert, i.nucleus),
  "routers.reinforce.policy_terms": (i) => policyTerms(i.logits, i.expert, i.value, i.reward, i),
  "routers.sinkhorn.sinkhorn_plan": (i) => sinkhornPlan(i.logits, { numSweeps: i.num_sweeps }),
  "routers.sinkhorn.sinkhorn_router": (i) => sinkhornRouter(i.logits, i.k, { ...i, numSweeps: i.num_sweeps }),
  "routers.top_k.top_k_router": (i) => topKRouter(i.logits, i.k, i),
};

const vectors = Object.fromEntries(readVectors().map((document) => [document.function, document]));

for (const [name, run] of Object.entries(LAB)) {
  test(name, async (t) => {
    assert.ok(vectors[name], "no vectors of this function");
    for (const given of vectors[name].cases) {
      const skip = ("mask" in given.inputs || given.name === "unavailable experts") &&
        "the lab has no padding and no unavailable experts";
      await t.test(given.name, { skip }, () => assert.deepEqual(failures(run, given), []));
    }
  });
}
