// The auction of the page keeps its promise, and a price that a reader moves is judged by the proof of lesson 3.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { ROUTERS } from "../page/routers.js";
import { IDS, TABLES, randomScores } from "../page/state.js";
import { auction } from "../routers/auction.js";
import { balancedAssignment, dualBound } from "../routers/base.js";

test("the auction ends with a balanced choice within T times the least raise of the best one", () => {
  for (let seed = 1; seed <= 30; seed++) {
    const scores = randomScores(12, 2 + 2 * (seed % 3), seed);
    const states = auction(scores, 0.1);
    const { prices, bids, free } = states.at(-1);
    assert.deepEqual(free, []);
    assert.ok(bids.every((held) => held.length === scores.length / prices.length));
    const sum = bids.flatMap((held, e) => held.map(({ token }) => scores[token][e])).reduce((a, b) => a + b);
    assert.ok(dualBound(scores, prices) - sum <= scores.length * 0.1 + 1e-9);
    assert.ok(balancedAssignment(scores).objective - sum >= -1e-9);
  }
});

test("prices only rise, and the bids are those of lesson 3", () => {
  const states = auction(TABLES.lessons, 1 / 8);
  for (let i = 1; i < states.length; i++) {
    assert.ok(states[i].prices.every((price, e) => price >= states[i - 1].prices[e]));
  }
  assert.deepEqual(
    states.at(-1).bids.map((held) => held.map(({ token }) => token).sort()),
    [
      [1, 2],
      [0, 3],
      [4, 5],
    ],
  );
});

const base = (prices) => {
  const params = { epsilon: 0.125, prices };
  return ROUTERS.base.states({ scores: TABLES.lessons, params })[0]();
};

test("the prices of lesson 3 are proved best, others are not", () => {
  assert.equal(base([3, 2, 0]).good, true);
  assert.deepEqual(
    base([3, 2, 0]).queues.map((queue) => queue.map(({ token }) => token)),
    [
      [1, 2],
      [0, 3],
      [4, 5],
    ],
  );
  assert.equal(base([3, 0, 0]).good, false);
  assert.match(base([0, 0, 0]).say, /Tokens 0, 1, 2 and 5 wish for expert 0, which has 2 slots: raise its price/);
});

const PRINTED_AS = { hash: "HASH", top_k: "top-1", sinkhorn: "S-BASE", base: "BASE", quantile: "quantile balancing" };

test("the routers send the tokens to the experts that lesson 8 prints", () => {
  const page = readFileSync(new URL("../../../../tutorials/08_mixture_of_tokens.md", import.meta.url), "utf8");
  for (const [id, name] of Object.entries(PRINTED_AS)) {
    const printed = page.match(new RegExp(`^${name} +\\[([\\d ]+)\\]`, "m"))[1].split(" ").map(Number);
    const params = Object.fromEntries(ROUTERS[id].controls.map((control) => [control.name, control.value]));
    const context = { scores: TABLES.lessons, k: 1, capacity: Infinity, seed: 1, ids: IDS.slice(0, 6), params };
    const { queues } = ROUTERS[id].states(context).at(-1)();
    const expert = printed.map((_, t) => queues.findIndex((queue) => queue.some(({ token }) => token === t)));
    assert.deepEqual(expert, printed, name);
  }
});

test("each router has a view for each state of each table, and loads that add up", () => {
  for (const scores of [...Object.values(TABLES), randomScores(7, 3, 5)]) {
    for (const [id, router] of Object.entries(ROUTERS)) {
      const params = Object.fromEntries(router.controls.map(({ name, value }) => [name, value]));
      const context = { scores, k: 1, capacity: 1.25, seed: 3, ids: [0, 5, 7, 3, 0, 8, 1], params };
      const states = router.states({ ...context, ids: context.ids.slice(0, scores.length) });
      const views = states.map((state) => state());
      assert.ok(
        views.every(
          ({ cells, say }) => cells.length === scores.length && say.endsWith(".") && !/NaN|undefined/.test(say),
        ),
      );
      assert.ok(
        views.every(({ facts }) => facts.every(([, text]) => !/NaN|undefined/.test(text))),
        id,
      );
      const whole = ["base", "hash", "top_k", "sinkhorn", "quantile", "bias", "reinforce"].includes(id);
      if (whole) assert.equal(views.at(-1).queues.flat().length, scores.length, id);
    }
  }
});
