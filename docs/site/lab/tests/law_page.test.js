// The sliders of the law are the law in other numbers, tables of readers are read, and intervals are those of the fit.

import assert from "node:assert/strict";
import test from "node:test";

import { PRINTED, predictLoss } from "../laws/routed.js";
import { fitsOf, bandOf, intervalOf } from "../page/law_fits.js";
import { SLIDERS, formatLaw, lawOf, parseLaw, slidersOf } from "../page/law_state.js";
import { readTable } from "../page/own_table.js";
import { normal, uniforms } from "../page/random.js";
import { ticksOf } from "../page/chart.js";

const near = (found, wanted, share = 1e-9) =>
  assert.ok(Math.abs(found - wanted) <= share * Math.abs(wanted), `${found}, not ${wanted}`);

test("sliders and law are the same law", () => {
  for (const law of Object.values(PRINTED).flatMap((law) => [0, 1.4].map((L0) => ({ ...law, L0 })))) {
    const values = slidersOf(law, 1.1e8);
    for (const [name, value] of Object.entries(lawOf(values, 1.1e8))) near(value, law[name]);
    near(lawOf({ ...values, floor: 9 }, 1.1e8).L0, 0.99 * values.level);
    near(values.level, predictLoss(1.1e8, 1, law));
    assert.ok(SLIDERS.every(({ name, min, max }) => values[name] >= min && values[name] <= max));
  }
});

test("an address gives the table and the sliders, and names what is wrong", () => {
  const values = { size: -0.08, gain: -0.04, bend: 0.01, level: 2.7, start: 2, most: 300 };
  const { table, values: read, ignored } = parseLaw(formatLaw("Hash", values, false), PRINTED);
  assert.deepEqual([table, read, ignored], ["Hash", values, []]);
  const floored = parseLaw(formatLaw("Hash", { ...values, floor: 1.5 }, false, true), PRINTED);
  assert.deepEqual([floored.floored, floored.values.floor, floored.ignored], [true, 1.5, []]);
  assert.equal(formatLaw("Hash", values, true, true), "table=Hash&law=floor");
  assert.equal(formatLaw("Hash", values, true), "table=Hash");
  assert.deepEqual(parseLaw("table=Nobody&size=5&gain=&colour=1", PRINTED).ignored, [
    "table",
    "size",
    "gain",
    "colour",
  ]);
});

test("the fit of made points is near the law that made them, inside its intervals", () => {
  const draw = uniforms(11);
  const rows = [16527360, 27279360, 57369600, 132163584, 368123904, 1308819456].flatMap((N) =>
    Array.from({ length: 10 }, (_, i) => [N, 2 ** i, predictLoss(N, 2 ** i, PRINTED["S-Base"])]),
  ).map(([N, E, loss]) => [N, E, loss * 10 ** (0.003 * normal(draw))]);
  const fits = fitsOf(rows);
  near(fits.fit.rmsle, 0.003, 0.2);
  const truth = predictLoss(1e8, 64, PRINTED["S-Base"]);
  const [low, high] = intervalOf(fits, (law) => predictLoss(1e8, 64, law));
  assert.ok(low < truth && truth < high && high / low < 1.05);
  assert.equal(bandOf(fits, 1e8, [1, 8, 64]).length, 6);
});

test("the fit with a floor finds the law that made the points, and needs four sizes", () => {
  const law = { a: -0.18, b: -0.16, c: 0.009, d: 1.56, E_start: 2.2, E_max: 400, L0: 1.4 };
  const rows = [1.7e7, 5.7e7, 1.3e8, 3.7e8, 1.3e9].flatMap((N) =>
    [1, 2, 4, 16, 64, 512].map((E) => [N, E, predictLoss(N, E, law)]),
  );
  const { fit, folds } = fitsOf(rows, true);
  for (const [name, value] of Object.entries(law)) near(fit.coefficients[name], value, 1e-4);
  assert.equal(folds.length, 5);
  assert.ok(fitsOf(rows).fit.rmsle > 1e-3);
  assert.match(fitsOf(rows.slice(0, 18), true).complaint, /3 different N; a floor needs 4/);
});

const HEAD = "hyper_id,step,num_experts,dense_parameter_count,loss_validation\n";

test("a table of results gives the last step of each run", () => {
  const rows = [1e7, 1e8].flatMap((N, i) => [1, 4, 16, 64].map((E, j) => [N, E, 3 - i / 2 - j / 10]));
  const lines = rows.flatMap(([N, E, loss], run) => [`${run},20,${E},${N},${loss}`, `${run},10,${E},${N},9`]);
  assert.deepEqual(readTable(HEAD + lines.join("\r\n")), rows);
  const short = rows.map(([N, E, loss]) => `${E}\t${N}\t${loss}`);
  assert.deepEqual(readTable(`E\tN\tloss\n${short.join("\n")}\n`), rows);
});

test("a table that is not one is refused with what is missing", () => {
  assert.throws(
    () => readTable("a,b\n1,2\n"),
    /no column for N and E and loss. Name it dense_parameter_count, num_experts/,
  );
  assert.throws(() => readTable(`${HEAD}0,1,1,1e7,3\n1,1,x,1e7,3\n`), /1 rows have a size/);
  assert.throws(() => readTable(""), /no column/);
});

test("a table that does not determine the law says why", () => {
  assert.match(fitsOf([[1e7, 1, 3]]).complaint, /needs 7 rows/);
  const oneSize = [1, 2, 4, 8, 16, 32, 64].map((E) => [1e7, E, 3 - E / 100]);
  assert.match(fitsOf(oneSize).complaint, /two or more sizes/);
});

test("ticks are round numbers within the axis", () => {
  assert.deepEqual(ticksOf({ low: 1e7, high: 2e13, log: true }), [1e7, 1e9, 1e11, 1e13]);
  assert.deepEqual(
    ticksOf({ low: 1.9, high: 3.2, log: true }).map((each) => each.toFixed(1)),
    ["2.0", "2.5", "3.0"],
  );
});

test("runs without a trend in N determine no size at which experts stop helping, and without saturation no E_max", () => {
  const rowsOf = (saturation) =>
    [1e7, 3e7, 1e8, 3e8].flatMap((N, i) =>
      [1, 4, 16, 64].map((E, j) => {
        const noise = 1 + 0.01 * Math.sin(3 * i * i + 5 * j);
        return [N, E, 10 * N ** -0.08 * (1 / E + saturation) ** 0.05 * noise];
      }),
    );
  const fits = fitsOf(rowsOf(0));
  assert.equal(intervalOf(fits, ({ b, c }) => 10 ** (-b / c)), null);
  assert.equal(fits.fit.limited, false);
  assert.ok(fitsOf(rowsOf(0.5)).fit.limited);
});
