"""The last sections of a report: the runs that the table lacks, the method, and where to find more."""

import shlex

from ..errors import printable
from ..results.blocks import Block, Heading, two_digits
from ..wording import plural
from .finding import Report, bullets, distinct, listed
from .laws.compute import only_usual_kinds, without_law
from .laws.slopes import measured_slopes
from .used_runs import suspects, unused


def lacking_section(report: Report) -> list[Block]:
    """Return the comparisons for which the table lacks runs."""
    results, table = report.results, report.results.table
    lacking = {
        "no size has two values of E (for slopes)": len(measured_slopes(results)) > 0,
        **{finding.lacking: finding.answered(results) for finding in report.findings if finding.lacking},
        "no run has another k, R or width (to test the law that uses F and B)": not only_usual_kinds(results),
        "there is only one loss column, so no other text": len(table.loss_columns) > 1,
    }
    absent = [words for words, there in lacking.items() if not there]
    lack = f"**The table lacks runs for some comparisons:** {'; '.join(absent)}."
    sentences = [lack] if absent and table.routers else []
    return sentences + without_law(report)


def method_section(report: Report) -> list[Block]:
    """Return the methods, and the commands that repeat the results."""
    scatter, sizes = report.results.scatter, report.results.table.sizes
    blocks: list[Block] = [Heading("How it was computed")]
    if report.fitted:
        blocks.append(
            "**Fits.** For given E_start and E_max, the law is linear in its other constants. So the fit searches only "
            "over E_start and E_max. It searches the whole domain 1 ≤ E_start < E_max ≤ ∞, limits included, and finds "
            f"the global optimum. The objective is the {report.fitted[0].fit.best.criterion}. Intervals of constants "
            "contain every value that is not rejected at 95 %, by profile likelihood; they are wider if the runs of a "
            "size share errors, or if the errors are uneven. Intervals of means are Student's t intervals."
        )
    chance = "is not known: no configuration was trained with more than one seed."
    if scatter:
        chance = (
            "is measured by runs that differ only in the seed: a standard deviation of "
            f"{two_digits(scatter.percent)} % of the loss, from {plural(scatter.runs, 'run')} at "
            f"{plural(len(scatter.points), 'point')}."
        )
    return [
        *blocks,
        f"**Chance** {chance}",
        "**A law that uses N and E cannot predict** how the gain changes with more training or on other text. Nothing "
        f"was measured below N = {sizes[0]:,} or above N = {sizes[-1]:,}: the law extrapolates there.",
        *more_section(report),
    ]


def more_section(report: Report) -> list[Block]:
    """Return where to find further results, the unused runs, and the command that repeats the report."""
    sweep, lines, impossible = report.sweep, [], len(suspects(report))
    if sweep and sweep.waiting:
        lines.append(f"**Missing runs:** {', '.join(f'{i} ({name})' for i, name in sweep.waiting.items())}.")
    if sweep and sweep.left_out:
        left_out = "; ".join(f"run {i}: {why}" for i, why in sorted(sweep.left_out.items()))
        lines.append(f"**Not used for the law:** {left_out}.")
    if not report.full:
        left = [f"{len(ids)}, {reason}" for reason, ids in unused(report).items()]
        left += [f"{impossible} with impossible labels"] * bool(impossible)
        lines += [f"**Runs that no law uses:** {'; '.join(left)}."] if left else []
        lines += report.results.table.remarks
    table = "; every evaluation is in [results.csv](results.csv)" if sweep else ""
    lines.append(f"**Every number** is in [{report.numbers}]({report.numbers}), without rounding{table}.")
    if not report.full:
        shown = ("loss", "isoflop", "training" if sweep else "pairs")
        figures = [f"[{name}](figures/{name}.svg)" for name in report.drawn if name not in shown]
        lines += [f"**More figures:** {listed(figures)}."] if figures else []
        command = "routelaws report --full FOLDER" if sweep else "routelaws reproduce --full"
        lines.append(
            f"**Every table** is in the full report: run `{command}`. The tables cover slopes, equivalent dense sizes, "
            "residuals, forms of law, pairs, ablations, other texts, runs and method."
        )
    if sweep:
        lines.append(_how_to_repeat(sweep))
    return [Heading("More"), *bullets(lines)]


def _how_to_repeat(sweep) -> str:
    """Return the command that repeats a sweep, its seeds, its device and its code."""
    grid = sweep.preset or f"{sweep.name}.toml"
    corpus = [f"--corpus {' '.join(map(_quoted, sweep.corpus))}"] if sweep.corpus else []
    command = " ".join(["routelaws sweep", _quoted(grid), *corpus, "--out NEW_FOLDER"])
    seeds, devices, commits = (list(map(str, distinct(sweep.runs[name]))) for name in ("seed", "device", "commit"))
    several = " (the runs come from several versions of the code)" if len(commits) > 1 else ""
    return (
        f"**To repeat the sweep,** run `{command}`. Seeds {', '.join(seeds)}; device {', '.join(devices)}; commit "
        f"{listed(commits)}{several}."
    )


def _quoted(text: str) -> str:
    return printable(shlex.quote(text))
