"""The sections on the recommendations, on what does not reproduce, on the rows and on the method."""

from ...findings.words import count, counts_span, figure, joined, listed, loss_name, plural, router_name, table


def recommendations(results: dict) -> str:
    """Return each recommendation of the paper beside its evidence and the verdict."""
    rows = [(entry["words"], f"**{entry['verdict']}**", entry["because"]) for entry in results["advice"]]
    rules = "\n".join(f"- {e['words']} {e['rule'][0].upper()}{e['rule'][1:]}." for e in results["advice"])
    unchecked = (
        ""
        if all(entry["checked"] for entry in results["advice"])
        else (
            " The wording of the recommendations is ours; only the one on routed blocks was checked against the"
            " published text, the others are as the paper is usually quoted."
        )
    )
    return joined(
        "Verdicts follow from the numbers by the rules below the tables and from nothing else; the rules are our"
        " choice. *Open* means that the runs point neither way by more than their interval." + unchecked,
        table(("recommendation", "these runs", "because"), rows),
        _doublings(results),
        f"The rules:\n\n{rules}",
    )


def _doublings(results: dict) -> str:
    rows = []
    for entry in results["doublings"]:
        reached = {point["E"]: point for point in entry["reached"]}
        for step in entry["steps"]:
            point = reached.get(step["to"])
            rows.append(
                (
                    router_name(entry["router"]),
                    f"{step['from']} → {step['to']}",
                    step["sizes"],
                    f"{figure(step['percent']['mean'], '+.2f')} %",
                    "not known"
                    if step["percent"]["low"] is None
                    else f"{figure(step['percent']['low'], '+.2f')} to {figure(step['percent']['high'], '+.2f')} %",
                    "" if point is None else f"{figure(point['percent'], '.0f')} %",
                    "" if point is None else f"{figure(point['low'], '.0f')} to {figure(point['high'], '.0f')} %",
                )
            )
    if not rows:
        return ""
    head = (
        "router",
        "experts",
        "sizes",
        "change of the loss",
        "95 % interval over sizes",
        "of the whole fall",
        "range over sizes",
    )
    return joined(
        "What each step in E brings, measured, as a mean over the sizes that have both; and how much of the fall of log"
        " L from dense to the largest E is reached:",
        table(head, rows),
    )


def not_reproduced(results: dict) -> str:
    """Return in plain words what of the paper the runs do not give back, and why."""
    if not results["table"]["released"]:
        return (
            "These are not the runs of the paper, so there is nothing of it to reproduce; the laws above are those"
            " of this table."
        )
    laws = [law for law in results["laws"] if "printed" in law]
    points = [*_constants(laws), *_dense(results), *_texts(results)]
    points += [
        "**Not held against the paper** because we do not have its figures: the slopes at each size, the constants of"
        " the law in (F, B), and the fits to the other texts.",
        "**A limit of the runs, not of the fit:** every model was trained on the same number of tokens. Where the gain"
        " of routing ends, and at which size, can be different when larger models are trained on more.",
    ]
    return "\n".join(f"- {point}" for point in points)


def _constants(laws: list[dict]) -> list[str]:
    if not laws:
        return []
    outside = [
        f"{name} of {router_name(law['router'])}"
        for law in laws
        for name, inside in law["printed"]["inside"].items()
        if not inside
    ]
    scores = "; ".join(
        f"{router_name(law['router'])} {figure(law['printed']['rmsle'], '.4f')} as printed,"
        f" {figure(law['printed']['best_in_box'], '.5f')} for the best law that rounds to it,"
        f" {figure(law['rmsle'], '.5f')} for the best law"
        for law in laws
    )
    cutoffs = "; ".join(
        f"{router_name(law['router'])} {count(law['printed']['cutoff_of_rounded'])} from the rounded figures,"
        f" {count(law['printed']['N_cutoff'])} in the text, {count(law['N_cutoff'])} by our fit; laws that round to the"
        f" printed figures have {counts_span(*law['printed']['cutoff_box'])}"
        for law in laws
    )
    return [
        (
            "**Every printed constant lies inside the interval of our fit.** The constants themselves are not the same"
            " (see [Coefficients](#coefficients)): the objective is so flat that the runs do not tell them apart."
            if not outside
            else f"**Outside the interval of our fit:** {listed(outside)}."
        ),
        f"**The printed table cannot be used to predict.** It has three decimals, and log10 N multiplies c by up to"
        f" nine: RMSLE on the same rows: {scores}.",
        f"**N_cutoff does not follow from the printed table.** It is 10 to the power −b/c, and half a unit in the third"
        f" decimal of b and c moves it by a factor of ten and more: {cutoffs}.",
    ]


def _dense(results: dict) -> list[str]:
    dense = results["dense"]
    if "printed" not in dense:
        return []
    return [
        f"**The dense power law** fits with alpha {figure(dense['alpha']['value'], '.4f')} and N_c"
        f" {count(dense['N_c']['value'])}; printed are {figure(dense['printed']['alpha'], '.3f')} and"
        f" {count(dense['printed']['N_c'])}, which miss the dense runs by {figure(dense['printed']['rmsle'], '.4f')} in"
        f" log10 L, the fit by {figure(dense['rmsle'], '.4f')}; {_dense_inside(dense)}."
    ]


def _dense_inside(dense: dict) -> str:
    inside = [dense[name]["low"] <= dense["printed"][name] <= dense[name]["high"] for name in ("alpha", "N_c")]
    return "both lie inside the rough intervals of the fit" if all(inside) else "not both lie inside its intervals"


def _texts(results: dict) -> list[str]:
    open_ = [e for e in results["transfer"] if e["missing"] is None and not all(e["determined"].values())]
    if not open_:
        return []
    said = "; ".join(
        f"{loss_name(e['loss'])} with {router_name(e['router'])}"
        f" ({listed([name for name, known in e['determined'].items() if not known])})"
        for e in open_
    )
    return [f"**Not determined by the runs**, so that no number should be read off any fit: {said}."]


def rows(results: dict) -> str:
    """Return which runs are used for what, and which are left out and why."""
    facts, used = results["table"], results["rows"]
    labels = results["size_labels"]
    choice = (
        "those of the paper: routing frequency 0.5, k = 1, seed 42"
        if facts["row_choice"] == "clark"
        else "every seed, k = 1, the commonest routing frequency"
        if facts["row_choice"] == "every seed"
        else f"`{facts['row_choice']}`"
    )
    counts = listed([f"{router_name(r)} {n}" for r, n in used["routers"].items()])
    parts = [
        f"Of each run its last evaluation is used (steps {facts['last_steps'][0]:,} to {facts['last_steps'][1]:,})."
        f" The laws in N and E take {choice}; dense runs count for every router. That is, in runs: {counts}. The law in"
        " (F, B), the ablations and the pairs take every run but the suspect ones."
    ]
    if used["not_in_laws"]:
        parts.append("In no law in N and E, each run under its first reason:")
        parts.append(
            table(
                ("reason", "runs", "hyper_id"),
                [
                    (entry["reason"], entry["runs"], ", ".join(map(str, entry["hyper_ids"])))
                    for entry in used["not_in_laws"]
                ],
            )
        )
    if used["suspect"]:
        parts.append("Not used anywhere, because their labels cannot be right:")
        parts.append(
            table(
                ("hyper_id", "router", "N", "E", "R", "loss", "why"),
                [
                    (
                        e["hyper_id"],
                        router_name(e["router"]),
                        labels[str(e["N"])],
                        e["E"],
                        figure(e["R"], "g"),
                        figure(e["loss"], ".4f"),
                        e["reason"],
                    )
                    for e in used["suspect"]
                ],
            )
        )
    parts += [*results["table"]["remarks"], *_twice(used, labels), *_gaps(results, used, labels)]
    return joined(*parts)


def _twice(used: dict, labels: dict) -> list[str]:
    suspect = {entry["hyper_id"] for entry in used["suspect"]}
    kept = [
        str(i)
        for group in used["twice"]
        if suspect & set(group["hyper_ids"])
        for i in group["hyper_ids"]
        if i not in suspect
    ]
    found = (
        [
            f"Used although a suspect run has the same configuration, since it agrees with its neighbours:"
            f" {listed(kept)}."
        ]
        if kept
        else []
    )
    groups = [group for group in used["twice"] if not suspect & set(group["hyper_ids"])]
    if not groups:
        return found
    said = "; ".join(
        f"runs {listed([str(i) for i in group['hyper_ids']])} ({router_name(group['router'])}, N ="
        f" {labels[str(group['N'])]}, E = {group['E']}): losses {listed([figure(x, '.4f') for x in group['losses']])}"
        for group in groups
    )
    return [*found, f"The same configuration and seed more than once: {said}. All are used."]


def _gaps(results: dict, used: dict, labels: dict) -> list[str]:
    found = []
    if used["cells_missing"]:
        cells = listed(
            [
                f"{router_name(e['router'])} {labels[str(e['N'])]}"
                + ("" if e["router"] == "Dense" else f" with E = {e['E']}")
                for e in used["cells_missing"]
            ]
        )
        if len(used["cells_missing"]) <= 12:
            found.append(f"Missing from the grid: {cells}.")
        else:
            found.append(f"The grid has {plural(len(used['cells_missing']), 'gap')}.")
    if results["table"]["released"]:
        found.append(
            "The dense 130M model was not trained with seed 42 but with seeds 1, 2 and 3; the paper's choice of rows,"
            " seed 42, therefore has no dense model of that size."
        )
    if used["blank"]:
        blank = "; ".join(
            f"{run['hyper_id']} ({listed([loss_name(name) for name in run['losses']])})" for run in used["blank"]
        )
        found.append(f"Blank at the last evaluation: {blank}.")
    return found


def method(results: dict) -> str:
    """Return how the numbers were computed, briefly."""
    scatter = results["seed_scatter"]
    seeds = (
        "No configuration was run with more than one seed."
        if scatter is None
        else f"Chance is judged by runs that differ in the seed alone: a standard deviation of"
        f" {figure(scatter['percent'], '.2g')} % of the loss, from"
        f" {plural(scatter['runs'], 'run')} at"
        f" {plural(len(scatter['points']), 'point')}."
    )
    criterion = next((law["criterion"] for law in results["laws"] if law["missing"] is None), None)
    minimised = f" What is minimised: {criterion}." if criterion else ""
    return joined(
        "**Fits.** Given E_start and E_max the law is linear in the rest, so the search is over those two alone, over"
        f" their whole domain, 1 ≤ E_start < E_max ≤ ∞, limits included; the optimum is the global one.{minimised} An"
        " optimum at the edge is reported as such and not as a number.",
        "**Intervals** of the laws are profile likelihood intervals: all values that some law of the domain can have"
        " without being rejected at 95 %, taking misses as normal and independent. Intervals of means are Student's.",
        f"**Chance.** {seeds}",
        "**Numbers.** All of them are in [results.json](results.json), unrounded; the same table gives the same files.",
    )
