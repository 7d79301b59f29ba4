// A chart on logarithmic or straight axes, as SVG. It is drawn at the width that it has, so that text keeps its size.

const PAD = { left: 52, right: 58, top: 10, bottom: 38 };

/** Return a function from values to pixels. */
function scaleOf({ low, high, log }, from, to) {
  const inward = log ? Math.log10 : Number;
  return (value) => from + ((to - from) * (inward(value) - inward(low))) / (inward(high) - inward(low) || 1);
}

/** Return about `count` round values between low and high: 1, 2 and 5 times powers of ten. */
export function ticksOf({ low, high, log }, count = 5) {
  if (log && high / low > 30) {
    const step = Math.max(1, Math.ceil(Math.log10(high / low) / count));
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const powers = Math.floor(Math.log10(high) + 1e-9) - first;
    return Array.from({ length: Math.floor(powers / step) + 1 }, (_, i) => 10 ** (first + i * step));
  }
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

const pathOf = (points, x, y) =>
  points.map(([u, v], i) => `${i ? "L" : "M"}${x(u).toFixed(1)} ${y(v).toFixed(1)}`).join("");

/**
 * Return the SVG of a chart.
 *
 * x, y: {low, high, log, label, ticks, text}; marks: a list of
 *   {kind: "line", points, colour, dashed, label}   label stands at the line's end
 *   {kind: "band", points (up one side and down the other), colour}
 *   {kind: "dots", points, colour, titles}
 */
export function chart({ width, height = 320, x, y, marks, title }) {
  const [right, bottom] = [width - PAD.right, height - PAD.bottom];
  const [atX, atY] = [scaleOf(x, PAD.left, right), scaleOf(y, bottom, PAD.top)];
  const drawn = marks.map((mark) => drawMark(mark, atX, atY)).join("");
  const labels = spread(
    marks.filter((mark) => mark.label),
    atX,
    atY,
    right,
  );
  return `<svg class="lab-chart" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}">
    ${gridOf(x, y, atX, atY, right, bottom)}
    <svg x="${PAD.left}" y="${PAD.top}" width="${right - PAD.left}" height="${bottom - PAD.top}"
      viewBox="${PAD.left} ${PAD.top} ${right - PAD.left} ${bottom - PAD.top}">${drawn}</svg>
    ${labels}
    <text x="${(PAD.left + right) / 2}" y="${height - 4}" text-anchor="middle">${x.label}</text>
    <text class="lab-y" x="${-(PAD.top + bottom) / 2}" y="12" transform="rotate(-90)" text-anchor="middle">${y.label}</text></svg>`;
}

function gridOf(x, y, atX, atY, right, bottom) {
  const text = (axis, value) => (axis.text ?? String)(value);
  const columns = (x.ticks ?? ticksOf(x)).map(
    (value) =>
      `<line x1="${atX(value)}" x2="${atX(value)}" y1="${PAD.top}" y2="${bottom}"/>
     <text x="${atX(value)}" y="${bottom + 16}" text-anchor="middle">${text(x, value)}</text>`,
  );
  const rows = (y.ticks ?? ticksOf(y)).map(
    (value) =>
      `<line x1="${PAD.left}" x2="${right}" y1="${atY(value)}" y2="${atY(value)}"/>
     <text x="${PAD.left - 6}" y="${atY(value) + 4}" text-anchor="end">${text(y, value)}</text>`,
  );
  return `<g class="lab-grid-lines">${columns.join("")}${rows.join("")}</g>`;
}

function drawMark(mark, x, y) {
  const style = `--colour:${mark.colour}`;
  if (mark.kind === "dots") {
    const dots = mark.points.map(
      ([u, v], i) =>
        `<circle cx="${x(u).toFixed(1)}" cy="${y(v).toFixed(1)}" r="3.6"><title>${mark.titles?.[i] ?? ""}</title></circle>`,
    );
    return `<g class="lab-dots" style="${style}">${dots.join("")}</g>`;
  }
  const finite = mark.points.filter(([u, v]) => Number.isFinite(x(u)) && Number.isFinite(y(v)));
  if (finite.length === 0) return "";
  return `<path class="lab-${mark.kind}${mark.dashed ? " lab-dashed" : ""}" style="${style}" d="${pathOf(finite, x, y)}${mark.kind === "band" ? "Z" : ""}"/>`;
}

/** Return the labels at the ends of lines, moved apart where they would lie on each other. */
function spread(marks, x, y, right) {
  const ends = marks
    .map((mark) => ({ mark, at: y(mark.points.at(-1)[1]) }))
    .filter(({ at }) => Number.isFinite(at))
    .sort((a, b) => a.at - b.at);
  ends.forEach((end, i) => (end.at = i ? Math.max(end.at, ends[i - 1].at + 13) : end.at));
  return ends
    .map(
      ({ mark, at }) =>
        `<text class="lab-label" style="--colour:${mark.colour}" x="${right + 5}" y="${at + 4}">${mark.label}</text>`,
    )
    .join("");
}
