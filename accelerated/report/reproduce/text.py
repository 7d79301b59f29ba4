"""The report as Markdown: what it is, what came out, and then section by section.

Every number is taken from the results; every judgement is made from them, so that another table gets another report.
"""

import math

from ...findings.forms import FINAL
from ...findings.words import (
    count,
    counts_span,
    experts,
    figure,
    joined,
    listed,
    loss_name,
    plural,
    router_name,
    span,
    table,
)
from . import laws_text, rows_text, runs_text

BAD, EXACT = 5.0, 1e-6
"""Percent of the loss: a law that misses by more fits badly, one that misses by no more fits exactly."""

ALIKE = 1.01
"""How many times the RMSLE of the best law that of a law may be for the two to count as equally good."""

NOTHING = "Too few routed runs for anything to be said; the sections below say what is missing."

PAPER = "[Clark et al. 2022](https://arxiv.org/abs/2202.01169), *Unified Scaling Laws for Routed Language Models*"


def markdown(results: dict, drawn: list[str]) -> str:
    """Return the report.

    Args:
        results: of `reproduction.gather`.
        drawn: names of the figures that are there.
    """
    sections = [
        ("Words and symbols", _symbols(results)),
        ("Loss and the law", laws_text.figure_one(results, drawn)),
        ("Coefficients", laws_text.coefficients(results, drawn)),
        ("Slopes and gains", laws_text.slopes(results, drawn)),
        ("What a routed model is worth", laws_text.worth(results)),
        ("Which form of law", laws_text.forms(results, drawn)),
        ("Router against router", runs_text.routers(results, drawn)),
        ("Experts per token", runs_text.per_token(results, drawn)),
        ("Routing frequency", runs_text.frequency(results, drawn)),
        ("One law for every kind of run", runs_text.utilisation(results, drawn)),
        ("Other texts", runs_text.transfer(results, drawn)),
        ("The recommendations", rows_text.recommendations(results)),
        ("What does not reproduce", rows_text.not_reproduced(results)),
        ("Which runs were used", rows_text.rows(results)),
        ("How it was computed", rows_text.method(results)),
        ("Every pair of runs", runs_text.every_pair(results)),
    ]
    sections = [(head, body) for head, body in sections if body]
    contents = "\n".join(f"- [{head}](#{head.lower().replace(' ', '-')})" for head, _ in sections)
    findings = "\n".join(f"- **{head}** {body}" for head, body in summary(results)) or NOTHING
    title = "the released runs, fitted again" if results["table"]["released"] else results["table"]["name"]
    parts = [
        f"# Scaling laws of routed language models: {title}",
        _what(results),
        f"## What came out\n\n{findings}",
        f"## Contents\n\n{contents}",
    ]
    return "\n\n".join(parts + [f"## {head}\n\n{body}" for head, body in sections]) + "\n"


def summary(results: dict) -> list[tuple[str, str]]:
    """Return the findings as (head, text), as many as the table has data for."""
    found = [
        _gain(results),
        _fading(results),
        _misfit(results),
        _routers(results),
        _printed(results),
        _unknown(results),
        _advice(results),
    ]
    return [entry for entry in found if entry]


def _what(results: dict) -> str:
    facts = results["table"]
    routed = (
        "A *routed* language model (Mixture-of-Experts) holds, in some of its blocks, E feed-forward networks, the"
        " *experts*, and a *router* sends every token through k of them. The model grows with E; the cost per token"
        " hardly does. How much lower is its loss, and does that last as models grow?"
    )
    whose = (
        f"This report fits the laws of {PAPER}, to the runs that its authors released, and puts what comes out"
        " beside what the paper prints, with intervals."
        if facts["released"]
        else f"This report fits the laws of {PAPER}, to the runs in `{facts['name']}`. These are other runs than the"
        " paper's, so its printed constants are not compared with them."
    )
    sizes = [results["size_labels"][str(size)] for size in facts["sizes"]]
    several = f"N = {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"N = {sizes[0]}"
    text = f"The table `{facts['name']}` holds {plural(facts['runs'], 'run')} of {plural(len(sizes), 'size')}"
    text += f" ({several} parameters per token, embeddings left out)"
    if not facts["routers"]:
        return joined(routed, f"{whose} {text}, all dense: there is nothing to say about routing.")
    text += (
        f", routed by {listed([router_name(r) for r in facts['routers']])}, with E ="
        f" {facts['experts'][0]} to {facts['experts'][-1]}. Losses are"
        if len(facts["experts"]) > 1
        else f", routed by {listed([router_name(r) for r in facts['routers']])}, with E = {facts['experts'][0]}."
        " Losses are"
    )
    text += f" {loss_name(facts['loss_column'])} losses of each run's last evaluation, in nats per token: lower is"
    text += " better."
    return joined(routed, f"{whose} {text} Intervals are at 95 %.")


def _fitted(results: dict) -> list[dict]:
    return [law for law in results["laws"] if law["missing"] is None]


def _gain(results: dict) -> tuple[str, str] | None:
    laws = _fitted(results)
    if not laws:
        return None
    gains = [gain for law in laws for gain in law["gains"]]
    below = sum(gain["high"] < 0 for gain in gains)
    head = (
        "Routing lowers the loss at every size trained."
        if below == len(gains)
        else f"Routing lowers the loss at {below} of {len(gains)} points (router and size)."
        if below
        else "No gain from routing is certain."
    )
    said = []
    for law in laws:
        first, last = law["gains"][0], law["gains"][-1]
        text = f"{router_name(law['router'])} {_percent_at(results, first)}"
        said.append(text + (f", {_percent_at(results, last)}" if last is not first else ""))
    many = sorted({gain["E"] for gain in gains})
    text = f"By the fitted law, E = {' or '.join(map(str, many))} experts change the loss of the dense model by: "
    return head, text + "; ".join(said) + "."


def _percent_at(results: dict, gain: dict) -> str:
    value, low, high = gain["percent"]
    at = results["size_labels"][str(gain["N"])]
    return f"{figure(value, '+.1f')} % at {at} ({span(low, high, '+.1f')})"


def _fading(results: dict) -> tuple[str, str] | None:
    laws = [law for law in _fitted(results) if len(law["sizes"]) > 1 and law["status"] != "linear limit"]
    if not laws:
        return None
    certain = [law for law in laws if law["intervals"]["c"]["low"] > 0]
    rising = [law for law in laws if law["intervals"]["c"]["high"] < 0]
    head = (
        "It helps less as models grow."
        if len(certain) == len(laws)
        else "It helps more as models grow."
        if len(rising) == len(laws)
        else "Whether it helps less as models grow is not settled."
    )
    said = []
    for law in laws:
        interval = law["intervals"]["N_cutoff"]
        times = law["N_cutoff_times"]
        known = law["determined"]["N_cutoff"]
        text = f"{router_name(law['router'])} {count(interval['value']) if known else 'open'} ("
        text += counts_span(interval["low"], interval["high"])
        said.append(text + (f"; {figure(times, '.0f')} times the largest model)" if known else ")"))
    return head, (
        "N_cutoff, the size at which by the law more experts would no longer help, is "
        + "; ".join(said)
        + f". These are extrapolations, not predictions.{_wider(results)}"
    )


def _wider(results: dict) -> str:
    """Return the intervals of N_cutoff that allow for misses which the runs of one size share."""
    said = [
        f"{router_name(entry['router'])} {counts_span(*each['jackknife'])}"
        for entry in results["other_intervals"]
        for each in entry["quantities"]
        if each["name"] == "N_cutoff" and all(map(math.isfinite, each["jackknife"]))
    ]
    return f" If the law is a little wrong size by size (jackknife), it is {'; '.join(said)}." if said else ""


def _misfit(results: dict) -> tuple[str, str] | None:
    laws, scatter = _fitted(results), results["seed_scatter"]
    if not laws:
        return None
    worst = max(law["rmsle_percent"] for law in laws)
    text = f"The law misses the losses it was fitted to by at most {figure(worst, '.2g')} % (root mean square)"
    if scatter is None:
        text += "; no run was repeated with another seed, so how much of that is chance is not known."
    else:
        text += f"; runs that differ in their seed alone scatter by {figure(scatter['percent'], '.2g')} %"
        text += f" ({plural(scatter['runs'], 'run')} at"
        text += f" {plural(len(scatter['points']), 'point')})"
        text += ", so most of the miss is the law's." if worst > 2 * scatter["percent"] else "."
    out = [
        entry["leave_one_size_out"]["rmsle_percent"]
        for entry in results["forms"]
        if entry["law"] == FINAL and entry["leave_one_size_out"]
    ]
    known = [value for value in out if value is not None]
    if known:
        text += f" Sizes that the fit has not seen it misses by up to {figure(max(known), '.2g')} %."
    good = scatter is not None and worst <= 2 * scatter["percent"]
    head = (
        "The law fits as well as chance allows."
        if good
        else "The law fits badly."
        if worst > BAD
        else "The law is good, not exact."
        if worst > EXACT
        else "The law fits exactly."
    )
    return head, text


def _routers(results: dict) -> tuple[str, str] | None:
    pairs = [pair for pair in results["pairs"] if pair["overall"] is not None]
    if not pairs:
        return None
    said, decided = [], 0
    for pair in pairs:
        overall = pair["overall"]
        better, worse = pair["first"], pair["second"]
        if overall["mean"] > 0:
            better, worse = worse, better
        known = overall["low"] is not None and (overall["high"] < 0 or overall["low"] > 0)
        decided += known
        mean = figure(abs(overall["mean"]), ".2f")
        said.append(
            f"{router_name(better)} against {router_name(worse)}: {mean} % lower in the mean"
            + (f" ({_turned(overall)})" if overall["low"] is not None else "")
            + ("" if known else ", not settled")
        )
    verb = "are" if decided > 1 else "is"
    settled = f"Of {plural(len(pairs), 'pair')} of routers, {decided or 'none'} {verb} settled."
    head = "The routers differ." if decided == len(pairs) else settled
    return head, "At the same N and E: " + "; ".join(said) + "."


def _turned(overall: dict) -> str:
    """Return the interval of a difference whose mean is said without its sign."""
    if overall["mean"] > 0:
        return span(overall["low"], overall["high"], ".2f")
    return span(-overall["high"], -overall["low"], ".2f")


def _printed(results: dict) -> tuple[str, str] | None:
    laws = [law for law in _fitted(results) if "printed" in law]
    if not laws:
        return None
    inside = sum(sum(law["printed"]["inside"].values()) for law in laws)
    number = sum(len(law["printed"]["inside"]) for law in laws)
    rounding = "; ".join(
        f"{router_name(law['router'])} {figure(law['printed']['rmsle_percent'], '.2f')} %, the best fit"
        f" {figure(law['rmsle_percent'], '.2f')} %"
        for law in laws
    )
    flat = all(law["printed"]["best_in_box"] <= ALIKE * law["rmsle"] for law in laws)
    head = (
        "The printed constants hold within their intervals, which are wide."
        if inside == number
        else f"{inside} of {number} printed constants lie within the intervals of the fit."
    )
    return head, (
        f"As printed, with three decimals, they miss the losses of the same runs by more (root mean square: {rounding})"
        + (": rounding alone does that" if flat else "")
        + ". N_cutoff cannot be computed from the printed table at all; see"
        " [What does not reproduce](#what-does-not-reproduce)."
    )


def _unknown(results: dict) -> tuple[str, str] | None:
    main = results["table"]["loss_column"]
    fits = [entry for entry in results["transfer"] if entry["missing"] is None and entry["loss"] != main]
    laws = _fitted(results)
    if not laws:
        return None
    wide = "; ".join(f"{router_name(law['router'])} {_limit(law)}" for law in laws)
    text = f"E_max, where more experts stop counting, is {wide}."
    open_ = [entry for entry in fits if not all(entry["determined"].values())]
    nothing = [entry for entry in fits if not any(entry["determined"].values())]
    if len(results["table"]["loss_columns"]) > 1 and open_:
        text += f" Of the fits to other texts, {len(open_)} of {len(fits)} leave at least one constant open"
        names = listed([f"{loss_name(e['loss'])} with {router_name(e['router'])}" for e in nothing])
        text += f"; all of them: {names}." if nothing else "."
    return "Some constants the runs do not fix.", text


def _limit(law: dict) -> str:
    interval = law["intervals"]["E_max"]
    value = experts(interval["value"]) if law["determined"]["E_max"] else "open"
    return f"{value} ({experts(interval['low'])} to {experts(interval['high'])})"


def _advice(results: dict) -> tuple[str, str] | None:
    judged = [entry for entry in results["advice"] if entry["verdict"] != "cannot be said"]
    if not judged:
        return None
    said = "; ".join(f"{entry['words'].rstrip('.')}: **{entry['verdict']}**" for entry in judged)
    text = f"{said}. The reasons are under [The recommendations](#the-recommendations)."
    return "The paper's recommendations, held against these runs.", text


def _symbols(results: dict) -> str:
    rows = [
        ("loss, L", "cross-entropy on text that was not trained on", "nats per token"),
        (
            "N",
            "parameters that one token passes through, embeddings left out; a dense model has no others",
            "parameters",
        ),
        ("E", "experts per routed block; 1 is a dense model", "experts"),
        ("k", "experts that one token passes through", "experts"),
        ("R", "share of the blocks that are routed", "1"),
        ("P", "all parameters, every expert counted", "parameters"),
        ("F", "compute of the forward pass of 2,048 tokens", "TeraFLOPs"),
        ("B", "parameters per unit of compute, P over the forward FLOPs of one token", "parameters per FLOP"),
        ("Ê", "effective experts: E_start for a dense model, rising with E towards E_max", "experts"),
        ("log10", "decimal logarithm; 0.01 in log10 L is 2.3 % of the loss", ""),
        ("RMSLE", "root of the mean squared difference of log10 losses, predicted less measured", "log10"),
    ]
    routers = {
        "Hash": "HASH: the expert is fixed by the token itself; nothing is learned.",
        "S-Base": "S-BASE: a token goes to the expert it scores highest, after a step that balances the batch"
        " (Sinkhorn).",
        "RL-R": "RL-R: the router is trained by reinforcement: the reward is a good prediction of the next token.",
    }
    own = [f"- {routers[router]}" for router in results["table"]["routers"] if router in routers]
    return joined(table(("symbol", "meaning", "unit"), rows), "\n".join(own))
