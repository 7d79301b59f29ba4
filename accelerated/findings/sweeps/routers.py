"""The sections that only sweeps have: routed and dense runs, registered predictions, training, and the routers."""

from ...results.blocks import Block, Heading, Table, figure, percent, range_of, significant, span
from ...wording import plural
from ..finding import Report, distinct, listed, names, reach, router_name, table


def chance_section(report: Report) -> list[Block]:
    """Compare the largest E of each router with dense and with chance."""
    sweep = report.sweep
    if not report.compared:
        return []
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "dense loss": lambda row: figure(row.dense_loss, ".4f"),
        "E": lambda row: str(row.experts),
        "loss": lambda row: figure(row.routed_loss, ".4f"),
        "difference": lambda row: figure(row.difference, "+.4f"),
        "±": lambda row: figure(row.error, ".4f", "not known"),
        "in %": lambda row: figure(row.percent, "+.2f"),
        "seed spread": lambda row: figure(row.spread, ".4f", "not measured") + "*" * row.borrowed,
        "lower by more than chance?": lambda row: f"**{row.verdict}**",
    }
    spread = "No point was trained with two seeds, so the seed spread is not known."
    if sweep.spreads:
        spread = f"The seed spread is the range of losses at {plural(len(sweep.spreads), 'point')} with several seeds."
    error = "± is the standard error of the difference over documents, computed on the same windows."
    if sweep.runs["standard_error"].isna().all():
        error = "The error over documents is not known, because these runs did not save the loss of each window."
    error = sweep.few_documents or error
    star = " \\* This router has one seed at every point, so the largest spread of the other runs is shown."
    return [
        Heading("Does routing help?"),
        table(sweep.comparisons, columns, keys=2),
        f"{spread} {error}{star * bool(sweep.comparisons['borrowed'].any())}",
        *([*_measured_on(sweep), evaluation_words(sweep.runs), *_spreads(report)] if report.full else []),
    ]


def _measured_on(sweep) -> list[Block]:
    runs = sweep.runs.dropna(subset="standard_error")
    if runs.empty:
        return []
    errors = " to ".join(map(significant, reach(runs["standard_error"])))
    tokens, documents = (range_of(reach(runs[f"evaluation_{name}"])) for name in ("tokens", "documents"))
    return [
        f"Losses were measured on {tokens} tokens of {documents} documents; the standard error of one loss is "
        f"{errors} nats."
    ]


def evaluation_words(runs) -> str:
    """Return sentences on the objective, and on tokens of other sequences that affect a loss."""
    sentence = "In evaluation, routers draw no expert at random, use no later token and drop no token."
    masked, grouped = distinct(runs["mask_rate"].dropna()), distinct(runs[runs["grouped"]]["router"])
    if masked:
        sentence = (
            f"These models predict hidden tokens, {' or '.join(f'{rate:.3g}' for rate in masked)} % of each sequence, "
            "from the tokens on both sides, so their losses are not comparable with next-token losses. In evaluation, "
            "routers draw no expert at random and drop no token."
        )
    if grouped:
        later = "" if masked else ", but not on any later position"
        sentence += (
            f" With {names(grouped)}, a router groups the tokens at the same position of several sequences, "
            f"also in evaluation. So the loss of a sequence depends on the other sequences of its group{later}."
        )
    return sentence


def _spreads(report: Report) -> list[Block]:
    rows = []
    for each in report.sweep.spreads:
        at = "" if each.router == "Dense" else f", E = {each.E}"
        losses = ", ".join(figure(loss, ".4f") for loss in each.losses)
        rows.append(
            [f"{router_name(each.router)}, N = {report.size(each.N)}{at}", ", ".join(map(str, each.seeds))]
            + [losses, figure(each.range, ".4f"), figure(each.deviation, ".4f")]
        )
    return [Table(["point", "seeds", "losses", "range", "standard deviation"], rows)] if rows else []


def registered_section(report: Report) -> list[Block]:
    """Return the predictions for the largest model, made before its training, and the measured losses."""
    registered = report.sweep and report.sweep.registered
    if not registered:
        return []
    outcome = "None of these runs is finished yet."
    if registered.scored:
        outcome = (
            f"{registered.hits} of {registered.scored} measured losses lie within the "
            f"{percent(registered.level)} prediction interval."
        )

    def is_known(row) -> bool:
        return row.loss == row.loss

    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: f"{int(row.N):,}",
        "E": lambda row: str(int(row.E)),
        "law": lambda row: row.law if is_known(row) else f"none: {row.reason}",
        "predicted": lambda row: figure(row.loss, ".4f", ""),
        "prediction interval": lambda row: (
            span([None if end is None else float(end) for end in row.run_interval], ".4f") if is_known(row) else ""
        ),
        "measured": lambda row: " ".join(figure(loss, ".4f") for loss in row.measured) or "not yet" * is_known(row),
        "error": lambda row: f"{figure(100 * row.error, '+.1f')} %" * (row.error == row.error),
    }
    return [
        Heading("Predictions for the largest model"),
        f"The laws were fitted to the {len(registered.fitted_to)} smaller runs, before any model of the largest "
        f"size was trained. Their predictions are in `predictions.json`, written once at {registered.written}. "
        f"{outcome}",
        table(registered.predictions, columns, keys=3),
    ]


def routers_section(report: Report) -> list[Block]:
    """Return the loads of the experts, and the diagnostics of the routers."""
    blocks = _loads(report) + _learning(report) if report.sweep else []
    return [Heading("The routers"), *blocks] if blocks else []


def _loads(report: Report) -> list[Block]:
    columns = {
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "E": lambda row: str(row.experts),
        "busiest expert (fair = 1)": lambda row: figure(row.busiest, ".2f"),
        "experts without a token": lambda row: str(row.idle),
        "tokens dropped in training": lambda row: f"{figure(100 * row.dropped_fraction, '.2f')} %",
    }
    if report.sweep.loads.empty:
        return []
    return [
        "The load of an expert is its share of the validation tokens times the number of experts: 1 is a fair share. "
        "In evaluation, no expert is drawn at random and no token is dropped. In training, an expert drops the "
        "tokens above its capacity.",
        *report.figure(
            "load",
            "Load per expert at the largest size and E",
            "Tokens of each expert in units of a fair share, the busiest first; the dashed line is balance.",
        ),
        table(report.sweep.loads, columns, keys=3),
    ]


def _learning(report: Report) -> list[Block]:
    columns = {
        "run": lambda row: str(row.hyper_id),
        "router": lambda row: router_name(row.router),
        "N": lambda row: report.size(row.size),
        "E": lambda row: str(row.experts),
        "agreement (by chance)": lambda row: (
            f"{figure(row.agreement, '.2f')} ({figure(row.chance, '.2f')})" * (row.agreement == row.agreement)
        ),
        "information, bits": lambda row: figure(row.information, ".2f", ""),
        "entropy": lambda row: figure(row.entropy, ".2f", ""),
        "exchange": lambda row: figure(row.exchange, ".4f"),
        "learned": lambda row: "no" if row.reasons else "yes",
    }
    if report.sweep.learning.empty:
        return []
    return [
        "*Agreement* is the share of tokens with the same expert in training and evaluation. *Information* is the "
        "mutual information of expert and token id. *Entropy* is the entropy of RL-R's policy divided by ln E; at 1, "
        "all experts are equally likely. *Exchange* is the loss with randomly exchanged experts divided by the "
        "original loss. A router has not learned if its agreement is no better than chance, or if its experts are "
        "interchangeable (exchange 1).",
        table(report.sweep.learning, columns, keys=2),
    ]


def training_figure(report: Report) -> list[Block]:
    caption = (
        "Dense models, and the largest E of each router. Points are validation losses, thin lines the training loss"
    )
    caption += " (running mean). The first steps, with much higher losses, are not shown." if report.full else "."
    return report.figure("training", "Loss during training", caption)


def training_section(report: Report) -> list[Block]:
    if not report.sweep:
        return []
    return [
        Heading("Training"),
        *(training_figure(report) or ["There are no curves, because the logs of the runs are missing."]),
    ]


def not_used(sweep) -> list[str]:
    """Return sentences on missing runs, and on runs that no law uses."""
    waiting = ", ".join(f"{i} ({name})" for i, name in sweep.waiting.items())
    left_out = "; ".join(f"run {i}: {why}" for i, why in sorted(sweep.left_out.items()))
    sentences = [f"**Missing runs:** {waiting}."] if waiting else []
    return [*sentences, f"**Not used for the law:** {left_out}."] if left_out else sentences


def how_done(sweep) -> str:
    """Return the seeds, the device and the code of a sweep."""
    seeds, devices, commits = (list(map(str, distinct(sweep.runs[name]))) for name in ("seed", "device", "commit"))
    several = " (the runs come from several versions of the code)" if len(commits) > 1 else ""
    return f"Seeds {', '.join(seeds)}; device {', '.join(devices)}; commit {listed(commits)}{several}."
