// Reads the conformance vectors (docs/vectors.md) and applies their rules, in double precision.

import { readdirSync, readFileSync } from "node:fs";

const FOLDER = new URL("../../../../conformance/vectors/", import.meta.url);
const U = 2 ** -53; // half the distance from 1 to the next number: the unit of a bound
const TINY = 2 ** -1022;

const NO_DECIMALS = { inf: Infinity, "-inf": -Infinity, nan: NaN };

/** Return what a value of a file stands for: numbers, nested arrays, and objects for trees and records. */
export function decode(value) {
  if (Array.isArray(value)) return value.map(decode);
  if (typeof value === "string") return NO_DECIMALS[value] ?? value;
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, decode(child)]));
}

/** Return every {function, parameters, fields, cases} of the folder, one for each function. */
export function readVectors() {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith(".json"));
  return files.flatMap((name) => {
    const file = JSON.parse(readFileSync(new URL(name, FOLDER), "utf8"));
    if (file.format !== 3) throw new Error(`${name}: format is ${file.format}; this reader knows 3`);
    return file.functions;
  });
}

const close = (found, wanted, allowed) =>
  Object.is(found, wanted) || found === wanted || Math.abs(found - wanted) <= allowed;

/** Return where two nested arrays are further apart than allowed (a number or an array); "" if nowhere. */
function compare(found, wanted, allowed = 0) {
  if (Array.isArray(wanted)) {
    if (!Array.isArray(found) || found.length !== wanted.length) return `found ${JSON.stringify(found)}, other shape`;
    const each = wanted.map((value, i) => compare(found[i], value, Array.isArray(allowed) ? allowed[i] : allowed));
    return each.find((message) => message) ?? "";
  }
  const fits = typeof wanted === "number" ? close(Number(found), wanted, allowed) : found === wanted;
  return fits ? "" : `found ${found}, expected ${wanted}`;
}

const slack = (bound) => (Array.isArray(bound) ? bound.map(slack) : U * bound + TINY);
const falling = (values) => [...values].sort((a, b) => b - a);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const picked = (of, found) => of.map((row, t) => found[t].map((e) => row[e]));

/** The rules of docs/vectors.md: each takes (check, found, the whole result) and returns what is wrong, or "". */
const RULES = {
  equal: (check, found) => compare(found, check.value),
  close: (check, found) => compare(found, check.value, slack(check.bound)),
  "one of": (check, found) =>
    check.answers.some((answer) => !compare(found, answer)) ? "" : `found ${JSON.stringify(found)}, no right answer`,
  "top k": (check, found) => {
    if (found.some((row) => new Set(row).size < row.length)) return "an index is repeated";
    return compare(
      picked(check.of, found),
      check.of.map((row, t) => falling(row).slice(0, found[t].length)),
    );
  },
  balanced: (check, found) => {
    if (found.some((row) => new Set(row).size < row.length)) return "an expert is repeated";
    const counts = Array(check.num_experts).fill(0);
    found.flat().forEach((e) => (counts[e] += 1));
    const least = found.flat().length / check.num_experts;
    const fair = counts.every((count) => count === Math.floor(least) || count === Math.ceil(least));
    return fair ? "" : `loads ${counts}`;
  },
  objective: (check, found) => compare(sum(picked(check.of, found).flat()), check.value, slack(check.bound)),
  certificate: (check, prices) => {
    const [numTokens, numExperts] = [check.of.length, prices.length];
    const best = check.of.map((row) => sum(falling(row.map((s, e) => s - prices[e])).slice(0, check.k)));
    const more = falling(prices).slice(0, (numTokens * check.k) % numExperts);
    const dual = sum(best) + Math.floor((numTokens * check.k) / numExperts) * sum(prices) + sum(more);
    return compare(dual, check.value, slack(check.bound));
  },
  marginals: (check, plan) => {
    if (!plan.flat().every((mass) => mass >= 0)) return "an entry is negative or NaN";
    const rows = plan.map((row) => sum(row) * plan.length);
    const columns = plan[0].map((_, e) => sum(plan.map((row) => row[e])) * plan[0].length);
    const allowed = slack(check.bound);
    return (
      compare(
        rows,
        rows.map(() => 1),
        allowed,
      ) ||
      compare(
        columns,
        columns.map(() => 1),
        check.tolerance + allowed,
      )
    );
  },
  potentials: (check, plan, result) => {
    const g = result[check.potentials];
    const wanted = check.of.map((row) => {
      const values = row.map((z, e) => z + g[e]);
      const weights = values.map((value) => Math.exp(value - Math.max(...values)));
      return weights.map((weight) => weight / sum(weights) / check.of.length);
    });
    return compare(
      plan,
      wanted,
      wanted.map((row) => row.map((w) => U * check.bound * w + TINY)),
    );
  },
};

/** Return what the output named by a path is: "", "gate", "coefficients.a", or "*.loss" of each record of a list. */
function outputOf(result, path) {
  const follow = (value, [name, ...rest]) => {
    if (name === undefined) return value;
    return name === "*" ? value.map((each) => follow(each, rest)) : follow(value[name], rest);
  };
  return follow(result, path === "" ? [] : path.split("."));
}

/** Return the messages of the checks of a case that do not hold. */
export function failures(run, given) {
  const inputs = decode(given.inputs);
  const result = run(inputs);
  return given.checks.map(decode).flatMap((check) => {
    const of = typeof check.of === "string" ? inputs[check.of] : check.of;
    const message = RULES[check.rule]({ ...check, of }, outputOf(result, check.output), result);
    return message ? [`${check.output || "result"} (${check.rule}): ${message}`] : [];
  });
}
