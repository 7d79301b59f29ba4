// The address of a page says all of its state, and the links of the lessons say states that there are.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

import { PRINTED } from "../laws/routed.js";
import { parseBudget } from "../page/budget_page.js";
import { parseLaw } from "../page/law_state.js";
import { ROUTERS } from "../page/routers.js";
import { IDS, TABLES, WORDS, format, initial, parse } from "../page/state.js";

test("what a state is written as is read as the same state", () => {
  const state = {
    ...initial(),
    name: "",
    scores: [
      [1, -2.5],
      [0, 3],
      [4, 4],
    ],
    k: 2,
    capacity: Infinity,
    seed: 7,
  };
  Object.assign(state, { lead: "sinkhorn", params: { sinkhorn: { temperature: 0.1 } }, steps: { base: 3, top_k: 0 } });
  const { state: read, ignored } = parse(format(state), ROUTERS);
  assert.deepEqual(read, state);
  assert.deepEqual(ignored, []);
  assert.equal(format(initial()), "");
  assert.deepEqual(parse("", ROUTERS).state, initial());
});

test("a wrong entry is ignored, and named", () => {
  const wrong = [
    "table=1,2;3",
    "table=lesson9",
    "table=1,x;2,3",
    "table=1;2",
    "table=99,1;2,3",
    "lead=nobody",
    "k=9",
    "capacity=3",
    "seed=-1",
    "base.step=x",
    "base.colour=1",
    "nobody.step=1",
    "colour=red",
    "base.prices=1,x,0",
  ];
  for (const query of wrong) {
    const { state, ignored } = parse(query, ROUTERS);
    assert.equal(ignored.length, 1, query);
    assert.deepEqual(state.scores, TABLES.lessons, query);
  }
});

test("prices for another number of experts are ignored", () => {
  assert.equal(parse("base.prices=1,2", ROUTERS).state.params.base, undefined);
  assert.deepEqual(parse("table=5,1;4,2&base.prices=1,2", ROUTERS).state.params.base.prices, [1, 2]);
});

test("the table, its words and their ids are those of the lessons", () => {
  const text = readFileSync(new URL("../../../../tutorials/lesson.py", import.meta.url), "utf8");
  const [words, scores] = [/^WORDS = (.+)$/m, /^SCORES = np.array\(\s*(.+), float\s*\)$/m].map((name) => JSON.parse(text.match(name)[1]));
  assert.deepEqual(TABLES.lessons, scores);
  assert.deepEqual(WORDS.slice(0, 6), words);
  const count = (word) => WORDS.filter((other) => other === word).length;
  const vocabulary = [...new Set(WORDS)].sort((a, b) => count(b) - count(a) || WORDS.indexOf(a) - WORDS.indexOf(b));
  const ids = WORDS.map((word) => vocabulary.indexOf(word));
  assert.deepEqual(IDS, ids);
});

/** How each page of the lab reads its address. */
const READERS = {
  routers: (query) => parse(query, ROUTERS),
  law: (query) => parseLaw(query, PRINTED),
  budget: parseBudget,
};

test("every link of a lesson to the lab is understood", () => {
  const folder = new URL("../../../../tutorials/", import.meta.url);
  const texts = readdirSync(folder)
    .filter((name) => name.endsWith(".md"))
    .map((name) => readFileSync(new URL(name, folder), "utf8"));
  const links = texts.flatMap((text) => [...text.matchAll(/site\/lab\/(\w+)\.md\?([^)\s]+)\)/g)]);
  assert.ok(links.length > 10);
  for (const [link, page, query] of links) assert.deepEqual(READERS[page](query).ignored, [], link);
});
