// The page of budgets: its address, what its laws choose, and that limits bind.

import assert from "node:assert/strict";
import test from "node:test";

import { SHAPES, count, countsBySize } from "../laws/accounting.js";
import { bestOption, optimum, unlimited } from "../laws/planning.js";
import { PRINTED } from "../laws/routed.js";
import { RUN_TOKENS, fittedLaw, printedLaws } from "../page/budget_laws.js";
import { budgetOf, parseBudget } from "../page/budget_page.js";

const near = (found, wanted, share) => assert.ok(Math.abs(found / wanted - 1) <= share, `${found}, not ${wanted}`);
const sBase = () =>
  fittedLaw("S-Base", { fit: { coefficients: PRINTED["S-Base"] }, folds: [] }, [
    [1.3e9, 1],
    [1e7, 512],
  ]);
const allLaws = () => [...printedLaws(), sBase()];

test("an address gives a budget, and wrong entries are named", () => {
  const text = "flops=1e%2B22&memory=Infinity&inference=1e12&cached=0&bytes=1";
  assert.deepEqual(parseBudget(text), {
    values: { flops: 1e22, memory: Infinity, inference: 1e12, cached: 0, bytes: 1 },
    ignored: [],
  });
  assert.deepEqual(parseBudget("flops=1&memory=&bytes=3&colour=1&inference=-1").ignored, [
    "flops",
    "memory",
    "bytes",
    "colour",
    "inference",
  ]);
});

test("counts at the six sizes are those of the models, and rise between them", () => {
  const at = countsBySize("S-Base", 64);
  for (const shape of SHAPES) {
    const { dense_parameters: N, total_parameters, flops_per_token } = count(shape, "S-Base", 64);
    near(at(N).total, total_parameters, 1e-12);
    near(at(N).flops, flops_per_token, 1e-12);
  }
  assert.ok(at(3e8).total > at(2e8).total && at(1e10).flops > at(1e9).flops && at(1e6).flops > 0);
});

test("a model of each law costs what the budget has, in memory and in FLOPs", () => {
  const budget = budgetOf(parseBudget("flops=1e21&memory=20&inference=1e11&bytes=2").values);
  for (const law of allLaws()) {
    const [best] = bestOption(law.options, (option) => law.family(budget, option));
    assert.ok(best.memory <= budget.memory && best.tokens > 1e9 && best.loss > 1 && best.loss < 4, law.name);
    const [free] = bestOption(law.options, (option) => law.family(unlimited(1e21), option));
    assert.ok(free.loss < best.loss, law.name);
  }
});

test("a small memory takes experts away, and inference makes models smaller", () => {
  const joint = printedLaws().find(({ name }) => name.startsWith("Joint"));
  const best = (text) => bestOption(joint.options, (E) => joint.family(budgetOf(parseBudget(text).values), E))[0];
  assert.ok(best("memory=10").option < best("memory=1000").option);
  assert.ok(best("memory=1000&inference=1e13&flops=1e23").active < best("memory=1000&flops=1e23").active);
});

test("the fitted law trains on the tokens of its runs, or not at all", () => {
  const law = sBase();
  assert.equal(optimum(law.family(unlimited(1e18), 8)), null);
  const { tokens, active } = optimum(law.family(unlimited(1e21), 8));
  assert.equal(tokens, RUN_TOKENS);
  near(optimum(law.family(unlimited(1e26), 8)).active, 1.3e10, 1e-9);
  near(3 * countsBySize("S-Base", 8)(active).flops * tokens, 1e21, 1e-3);
});
