// S-BASE on the page: row steps and column steps in turn, until the plan is balanced.

import { range, sum } from "../routers/notation.js";
import { columnStep, masses, planTerms, rowStep, sinkhornPlan } from "../routers/sinkhorn.js";
import { cellsOf, isBalanced, loadFacts, placed, shown } from "./views.js";

const TOLERANCE = 1e-3;
const MOST = 30; // column steps that are shown; Newton's method goes on from there

/** Return the plans of all half steps: {kind: "row", "column" or "Newton", plan}. */
function plansOf(logits) {
  let g = Array(logits[0].length).fill(0);
  const plans = [];
  for (let sweeps = 0; ; sweeps++) {
    const { logPlan, logMass, residual } = rowStep(logits, g);
    plans.push({ kind: "row", plan: logPlan.map((row) => row.map(Math.exp)) });
    if (residual <= TOLERANCE) return plans;
    if (sweeps === MOST) return [...plans, { kind: "Newton", plan: sinkhornPlan(logits).plan }];
    const next = columnStep(g, logMass);
    plans.push({ kind: "column", plan: logPlan.map((row) => row.map((entry, e) => Math.exp(entry + next[e] - g[e]))) });
    g = next;
  }
}

const offBy = (shares) => Math.max(...shares.map((share) => Math.abs(share * shares.length - 1)));

export function sinkhornStates({ scores, k, capacity, params }) {
  const logits = scores.map((row) => row.map((s) => s / params.temperature));
  const plans = plansOf(logits);
  const residuals = plans.map(({ plan }) => Math.max(offBy(masses(plan)), offBy(plan.map(sum))));
  return plans.map(({ kind, plan }, step) => () => {
    const [numTokens, numExperts] = [plan.length, plan[0].length];
    const expert = plan.map((row) =>
      range(numExperts)
        .sort((a, b) => row[b] - row[a] || a - b)
        .slice(0, k),
    );
    const { queues, slots, lost } = placed(expert, numExperts, k, capacity);
    const share = plan.map((row) => row.map((mass) => numTokens * mass));
    const mass = masses(plan).map((each) => shown(numExperts * each));
    const { entropy } = planTerms(plan, logits);
    const ended = step === plans.length - 1;
    return {
      heads: [{ name: "share ×E", values: mass }],
      cells: cellsOf(share, queues, { level: (value) => Math.min(value, 1) }),
      notes: kind === "column" ? plan.map((row) => `= ${shown(numTokens * sum(row))}`) : null,
      queues,
      slots,
      facts: [
        ["residual of the plan", shown(residuals[step], 4)],
        ["entropy", shown(entropy)],
        ...loadFacts(scores, queues, lost),
      ],
      say: sentence(kind, ended, residuals[step], isBalanced(queues)),
      good: ended && isBalanced(queues),
      trace: { name: "residual, logarithmic", values: residuals, level: TOLERANCE, logarithmic: true },
    };
  });
}

function sentence(kind, ended, residual, balanced) {
  if (ended) {
    const by = kind === "Newton" ? "Newton's method removes the remaining error. " : "";
    return `${by}The plan is balanced. ${balanced ? "So are the choices." : "The choices need not be: a split token goes entirely to the expert with its largest part."}`;
  }
  if (kind === "row")
    return `Row step: each token distributes all of its mass. The worst expert is ${shown(100 * residual, 1)}% off its share.`;
  return "Column step: each expert has its fair share. Now the rows no longer add up to 1.";
}
