// A table of results in a file of the reader's own.

/** Names of columns, in lower case, that are understood; the first are those of this project's own tables. */
const COLUMNS = {
  N: ["dense_parameter_count", "dense_parameters", "n", "params", "parameters"],
  E: ["num_experts", "experts", "e"],
  loss: ["loss_validation", "val_loss", "validation_loss", "loss", "l"],
};

const split = (line) => line.split(line.includes("\t") ? "\t" : ",").map((cell) => cell.trim().replace(/^"|"$/g, ""));

/**
 * Return {rows: [[N, E, loss], ...], router}: what a CSV file says, the last step of each run.
 * Throws an Error whose message names what is missing.
 */
export function readTable(text) {
  const [head, ...lines] = text
    .split(/\r?\n/)
    .filter((line) => line.trim())
    .map(split);
  const names = (head ?? []).map((name) => name.toLowerCase());
  const places = Object.fromEntries(
    Object.entries(COLUMNS).map(([key, known]) => [key, names.indexOf(known.find((name) => names.includes(name)))]),
  );
  const missing = Object.keys(places).filter((key) => places[key] < 0);
  if (missing.length) {
    throw new Error(
      `The file has no column for ${missing.join(" and ")}. Name it ${missing.map((key) => COLUMNS[key][0]).join(", ")}.`,
    );
  }
  const entries = lines.map((cells) => ({
    values: [places.N, places.E, places.loss].map((place) => Number(cells[place] || NaN)),
    run: names.includes("hyper_id") ? cells[names.indexOf("hyper_id")] : null,
    step: names.includes("step") ? Number(cells[names.indexOf("step")]) : 0,
  }));
  const good = entries.filter(
    ({ values: [N, E, loss] }) => N > 0 && E >= 1 && loss > 0 && [N, E, loss].every(Number.isFinite),
  );
  if (good.length < 7) throw new Error(`${good.length} rows have a size, experts and a loss; the law needs 7 or more.`);
  return lastSteps(good).map(({ values }) => values);
}

/** Return the entry with the largest step of each run; all entries where the file names no runs. */
function lastSteps(entries) {
  const last = new Map();
  entries.forEach((entry, i) => {
    const key = entry.run ?? i;
    if (!last.has(key) || entry.step >= last.get(key).step) last.set(key, entry);
  });
  return [...last.values()];
}
