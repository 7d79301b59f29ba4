"""Sentences of reports that depend on the results: each is rendered from changed results, without a fit.

The results are the approved ones of `reproduce`. The approved file has, for each change, the lines that it gives.
"""

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas

from routelaws.accelerated.findings.finding import Report, Results, TableFacts
from routelaws.accelerated.findings.laws.dense import DenseLaw
from routelaws.accelerated.findings.laws.law import RouterLaw
from routelaws.accelerated.findings.laws.printed import COLUMNS, LAWS
from routelaws.accelerated.findings.laws.refits import CHOICES
from routelaws.accelerated.findings.opening import first_page
from routelaws.accelerated.findings.report import FINDINGS, body
from routelaws.accelerated.findings.routers.advice import judge
from routelaws.accelerated.findings.runs import Repeated, Scatter, SizeScatter
from routelaws.accelerated.findings.sweeps import registered
from routelaws.accelerated.findings.sweeps.chance import Comparison
from routelaws.accelerated.findings.sweeps.loads import Learning
from routelaws.accelerated.findings.sweeps.report import Seconds, SweepFacts
from routelaws.accelerated.results.blocks import markdown
from routelaws.accelerated.results.encoding import Constant
from routelaws.accelerated.results.floor import FormErrors
from routelaws.accelerated.results.misfit import Bend, Misfit, Rise, SizeMiss
from routelaws.accelerated.results.misfit import Test as FTest
from routelaws.accelerated.results.planning.isoflop import Profile
from routelaws.accelerated.training.window_losses import few_documents
from routelaws.reference.laws import Minimum, MinimumDifference, Range

RESULTS = Results(json.loads((Path(__file__).parent / "approved" / "reproduce.json").read_text(encoding="utf-8")))
FRAMES = [name for name, rows in RESULTS.items() if isinstance(rows, list) and name not in ("laws", "isoflop")]
EMPTY = {"refits": ["router", "choice"], "printed": COLUMNS, "printed_laws": LAWS}
RESULTS |= {name: pandas.DataFrame(RESULTS[name], columns=EMPTY.get(name)) for name in FRAMES}
for frame in map(RESULTS.get, FRAMES):
    frame[frame.columns.intersection(["N", "E"])] = frame[frame.columns.intersection(["N", "E"])].astype("Int64")
RESULTS["other_intervals"]["N"] = RESULTS["other_intervals"]["N"].astype(float)


def law_of(record: dict, kind: type) -> RouterLaw:
    """Return the law behind a record of results.json."""
    law, miss = object.__new__(kind), record["misfit"]
    known = {name: Constant(**each) for name, each in record["coefficients"].items()}
    known |= {name: Constant(**each) for name, each in record.get("derived", {}).items() if name == "N_cutoff"}
    seeds, largest = (miss[name] for name in ("beyond_seeds", "largest_size"))
    bend = miss["bend"] and Bend(miss["bend"].pop("value"), FTest(*miss["bend"].values()))
    largest = largest and SizeMiss(largest["N"], 1, largest["log10"])
    sizes = [SizeMiss(*size.values()) for size in miss["sizes"]]
    misfit = Misfit(sizes, bend, seeds and FTest(*seeds.values()), largest, [], None, miss["rise"])
    best = SimpleNamespace(criterion=record.get("criterion"))
    fit = {"status": record["status"], "rmsle": record["rmsle"], "misfit": misfit, "best": best, "forms": []}
    vars(law).update(record, constants=known, fit=SimpleNamespace(**fit, floor_helps=False))
    return law


RESULTS["laws"] = [law_of(record, RouterLaw) for record in RESULTS["laws"]]
RESULTS |= {"dense": law_of(RESULTS["dense"], DenseLaw), "table": TableFacts(**RESULTS["table"])}
SCATTER = RESULTS["seed_scatter"]
SIZES, POINTS = [SizeScatter(**each) for each in SCATTER["sizes"]], [Repeated(**each) for each in SCATTER["points"]]
RESULTS["seed_scatter"] = Scatter(**SCATTER | {"sizes": SIZES, "points": POINTS})
LAW, PAIRS, FREQUENCY = RESULTS["laws"][1], RESULTS["pairs"], RESULTS["routing_frequency"]
UNSETTLED, UNKNOWN = {"verdict": "open", "low": -0.5}, {"verdict": "not known", "low": math.nan}


def pairs(*changes: dict) -> pandas.DataFrame:
    """Return the first row of the pairs with each of the changes."""
    return pandas.concat([PAIRS.iloc[:1].assign(**change) for change in changes])


UNEQUAL = {"equal_p": 0.04, "sizes": [SizeScatter(n, d, d, 1) for n, d in ((1e7, 0.1), (1e9, 3.0))]}
SPREAD = Repeated("Hash", 1e7, 4, [1, 2], [2.5, 2.25], 0.25, 0.125)
COMPARED = pandas.DataFrame([
    Comparison("Hash", n, 32, 3.0, 3.0 + change, change, percent, 0.25, False, 0.0625, verdict)
    for n, change, percent, verdict in (
        (10**7, -0.25, -10.0, "yes"), (10**8, -0.125, -5.0, "yes"), (10**9, 0.125, 5.0, "no, within the spread"))
])  # fmt: skip
LEARNED = Learning(3, "Hash", 10**7, 4, 1, 0.25, 0.9, math.nan, math.nan, 1.25, [])
RUNS = pandas.DataFrame({
    "router": ["Dense", "Hash", "Hash"], "experts": [1, 4, 32], "corpus": [(), ("a/notes.txt", "b/books"), ()],
    "tokens": [1000, 2_000_000, 1000], "vocabulary": [300, 512, 300], "share": 50.0, "k": 1, "seed": [1, 2, 1],
    "device": ["cpu", "gpu", "cpu"], "commit": "abc", "standard_error": [0.001, 0.25, 0.25],
    "evaluation_tokens": [1000.0, 2000.0, 2000.0], "evaluation_documents": 20.0, "mask_rate": math.nan,
    "grouped": False,
})  # fmt: skip
NO_ERROR = RUNS.assign(standard_error=math.nan)
SWEEP = {
    "name": "mine", "preset": None, "corpus": ["my notes.txt"], "planned": 10, "runs": RUNS,
    "waiting": {8: "hash-E4", 9: "dense"}, "left_out": {7: "odd", 3: "blank"}, "spreads": [SPREAD],
    "comparisons": COMPARED, "registered": None, "loads": pandas.DataFrame(columns=["router"]),
    "learning": pandas.DataFrame([LEARNED]), "not_learned": None, "few_documents": "",
    "sessions": [{}, {}], "seconds": Seconds(61.0, 2.0, 3.0),
}  # fmt: skip
OTHER_TEXTS = {name: RESULTS[name].query("loss != 'loss_validation'") for name in ("gains", "texts")}
OF_LAWS = "slopes", "gains", "worth", "refits", "other_intervals", "resamples", "texts", "text_constants"
NOTHING_FITTED = {name: RESULTS[name].iloc[:0] for name in OF_LAWS}
NO_LAW = {f"laws {i} missing": "the reason" for i in (0, 1)} | OTHER_TEXTS
DENSE_ONLY = {"laws": [], "table routers": [], "pairs": PAIRS.iloc[:0]} | NOTHING_FITTED
OPEN = {"determined": False}
PRINTED = pandas.DataFrame({
    "router": ["Hash"] * 7 + ["Dense"] * 2, "name": [*LAW.constants, "alpha", "N_c"],
    "printed": [0.5] * 6 + [9e11, 0.078, 3.568e13], "fitted": [0.25] * 6 + [9.2e9, 0.0777, 5.89e13],
    "inside": [True] * 2 + [False] + [True] * 4 + [False] * 2,
})  # fmt: skip
PRINTED_LAWS = pandas.DataFrame(
    [("Hash", 0.0004, 0.01, 0.0004, 8e11, 1e9, 1e15), ("Dense", 0.0002, 0.002, *[math.nan] * 4)], columns=LAWS
)
NO_MINIMUM = Minimum(*[math.nan] * 4)


def profile(times: float) -> Profile:
    """Return a profile of 1e18 FLOPs times a number. Its minima grow as FLOPs^0.5 and FLOPs^0.75, up to eight times."""
    minima = Minimum(2e8 * times**0.5, 2.5, 0.1, 0.25), Minimum(1e8 * times**0.75, 2.25, math.nan, math.nan)
    minima = minima if times < 8 else (minima[1], NO_MINIMUM)
    known = ("Hash, E 4", 1e18 * times, np.array([1e7, 1e9]), np.ones(2), 0.0125)
    return Profile(*known, *minima, MinimumDifference(0.5, 0.25), "a reason", np.ones((2, 2)))


SIGNS = ["no, the interval includes 0", "yes", "no, it is positive", "yes", "yes", "yes"]
SLOPES = {"slopes": RESULTS["slopes"].assign(sign=SIGNS, effective_high=[-0.1, math.inf, *[-0.1] * 4])}
C_OPEN, C_BELOW = {"low": -0.1}, {"low": -0.1, "high": -0.05}
BENT, SCATTERED = {"p": 0.04}, {"percent": 1.0}
CHANCE, NO_CHANCE = {"p": 0.5}, {"p": 0.01}
RISE = Rise(1.0, (1e7, 1e9), (2.0, 3.0))

S_BASE_ONLY = {name: RESULTS[name].query("router != 'Hash'") for name in OF_LAWS}
KNIFE, TEXTS, WORTH = (RESULTS[name] for name in ("other_intervals", "text_constants", "worth"))
NO_KNIFE, CUTOFFS = KNIFE.assign(jackknife_high=math.inf), KNIFE["name"] == "N_cutoff"
REFITS = pandas.DataFrame([
    ("Hash", choice, 24, "interior", 0.000404, 1e-7, *(each.value for each in LAW.constants.values()))
    for choice in CHOICES
], columns=["router", "choice", "rows", "status", "rmsle", "objective", *LAW.constants])  # fmt: skip
TABLE, FORMS_FRAME = RESULTS["runs"], RESULTS["forms"]
TWICE = pandas.concat([TABLE[9:12], TABLE[9:10].assign(hyper_id=[99], suspect="odd", loss=2.5)])
ONE_MISSING = FORMS_FRAME.assign(missing=["the reason", *FORMS_FRAME["missing"][1:]], size_verdict="worse")
FLOOR_BEST = np.where(FORMS_FRAME["law"] == "routed-bounded-floor", "best", "worse")
CUTOFF, FLOOR = Range("N_cutoff", None, 9.52e9, 7.77e9, 1.19e10, ""), Range("L0", None, 0.0625, 0.0, 0.25, "")
FORMS = [
    FormErrors("routed-bounded", 0.002, -300.0, 0.004, 0.004, None, None, CUTOFF, []),
    FormErrors("routed-bounded-floor", 0.001, -310.0, 0.002, 0.002, None, FLOOR, CUTOFF, []),
]

NOTHING = {
    **{key: RESULTS[key].iloc[:0] for key in ("pairs", "experts_per_token", "gains_per_flop", "routing_frequency")},
    "table loss_columns": ["loss"], "kinds": RESULTS["kinds"].query("kind == 'main grid'"),
    "slopes": RESULTS["slopes"].assign(slope=math.nan),
}  # fmt: skip


def changed(old, steps: list[str], new):
    """Return results with a new value at the end of some steps, such as laws, 0, missing; fields are merged."""
    if not steps:
        fields = isinstance(new, dict) and not isinstance(old, pandas.DataFrame)
        for name, value in new.items() if fields else ():
            old = changed(old, [name], value)
        return old if fields else new
    step, *rest = steps
    if isinstance(old, (dict, list)):
        results, step = copy.copy(old), int(step) if step.isdigit() else step
        results[step] = changed(old[step], rest, new)
        return results
    value = changed(getattr(old, step), rest, new)
    if hasattr(old, "_replace"):
        return old._replace(**{step: value})
    results = copy.copy(old)
    setattr(results, step, value)
    return results


def altered(changes: dict) -> dict:
    results = RESULTS
    for path, value in changes.items():
        results = changed(results, path.split(), value)
    return results


def advised(changes: dict) -> dict:
    """Return the change of the recommendations that follows from other changes."""
    return {"advice": judge(altered(changes))}


OF_A_TABLE = {
    "no certain gain": {"gains": RESULTS["gains"].assign(high=0.1)},
    "some gains": {"gains": RESULTS["gains"].assign(high=[-0.1, 0.1] * 6)},
    "routing helps more": {f"laws {i} constants c": C_BELOW for i in (0, 1)},
    "fading is open, no jackknife": {"laws 0 constants c": C_OPEN, "other_intervals": NO_KNIFE},
    "a cutoff is open": {"laws 0 constants N_cutoff": OPEN, "other_intervals": NO_KNIFE},
    "all cutoffs are open": {"laws 0 constants N_cutoff": OPEN, "laws 1 constants N_cutoff": OPEN},
    "within chance": {"seed_scatter": SCATTERED, "laws 0 fit misfit bend test": BENT}
    | {f"laws {i} fit misfit seeds": CHANCE for i in (0, 1)},
    "beyond chance": {"seed_scatter": UNEQUAL | SCATTERED, "laws 0 fit misfit seeds": NO_CHANCE},
    "a fit beyond 100 %": {"seed_scatter": {"percent": 131.6}}
    | {f"laws {i} fit rmsle": math.log10(13.04) for i in (0, 1)}
    | {f"laws {i} constants N_cutoff value": 1103.2e9 for i in (0, 1)},
    "a bad fit, no scatter": {"seed_scatter": None, "laws 0 fit rmsle": math.log10(1.06)}
    | {f"laws {i} fit misfit bend test": BENT for i in (0, 1)},
    "an exact fit": {f"laws {i} fit rmsle": math.log10(1 + 1e-9) for i in (0, 1)}
    | {"forms": RESULTS["forms"].assign(size_percent=math.nan), "laws 0 fit misfit seeds": NO_CHANCE},
    "no law": NO_LAW,
    "a law of one router": {"laws 0 missing": "too few runs"} | S_BASE_ONLY,
    "dense runs only": DENSE_ONLY | {"table condition": True},
    "two dense sizes": DENSE_ONLY | {"dense fit misfit largest": None},
    "a pair, not settled": {"pairs": pairs(UNSETTLED)},
    "one of two pairs": {"pairs": pairs({}, UNKNOWN)},
    "seven pairs": {"pairs": pairs(*[UNSETTLED] * 7)},
    "printed, one outside": {
        "printed": PRINTED, "printed_laws": PRINTED_LAWS, "table released": True,
        "text_constants": TEXTS.assign(determined=[True, True, False] + [True] * 25),
    },
    "printed, all inside": {
        "printed": PRINTED.assign(inside=True), "printed_laws": PRINTED_LAWS.assign(best_in_box=0.002),
        "table released": True,
    },
    "open constants": {
        "laws 0 constants E_max": OPEN,
        "text_constants": TEXTS.assign(determined=(TEXTS["loss"] != "loss_c4") | (TEXTS["router"] != "Hash")),
    },
    "some constants of other texts": {"text_constants": TEXTS.assign(determined=TEXTS["name"] != "c")},
    "cautions": {"laws 0 cautions": ["a caution", "is it so?"], "laws 1 cautions": ["a caution"]},
    "two sizes, few runs": {"laws 0 sizes": [1, 2], "laws 0 rows": 11, "laws 1 rows": 12},
    "one spare run": {"laws 0 rows": 7, "laws 1 rows": 7},
    "slopes are open": SLOPES,
    "linear limit": SLOPES | {"laws 0 fit status": "linear limit"},
    "no E_start, no E_max": {"laws 0 fit status": "E_start at 1, E_max unbounded"},
    "E_max in the runs, c open": {"laws 1 constants E_max value": 256.0, "laws 0 constants c": {"low": -0.1}},
    "c below 0": {"laws 0 constants c": {"low": -0.1, "high": -0.05}},
    "other rows and Huber's sum": {"refits": REFITS, "huber": 0.001},
    "endless resamples": {
        "resamples": RESULTS["resamples"].assign(
            unbounded_runs=[3, 0], undetermined_sizes=[0, 1], undetermined_runs=[0, 2]
        ),
    },
    "whole resamples": {"resamples": RESULTS["resamples"].assign(undetermined_sizes=0)},
    "a rising law": {"laws 0 fit misfit rise": RISE},
    "rising laws": {f"laws {i} fit misfit rise": RISE for i in (0, 1)} | {"dense fit misfit rise": RISE},
    "rising dense runs": {"dense fit status": "N_c at 0"},
    "no dense law": {"dense missing": "the reason"},
    "a bend": {"laws 0 fit misfit bend test": BENT, "laws 0 fit misfit": {"seeds": None, "largest": None}},
    "one form is missing": {"forms": ONE_MISSING},
    "a floor is better": {f"laws {i} fit": {"floor_helps": True, "forms": FORMS} for i in (0, 1)}
    | {"forms": RESULTS["forms"].assign(size_verdict=FLOOR_BEST)},
    "blank losses": {"runs": TABLE.assign(losses=[{"loss_c4": None, "loss_pile": None} if i in (3, 7) else {}
                                                  for i in TABLE["hyper_id"]])},
    "a text without a law": {"texts": pandas.concat([RESULTS["texts"].iloc[:3], RESULTS["texts"].iloc[3:].assign(
        missing="the reason", loss="loss_my_books")])},
    "small dense runs": {"dense sizes": [10_000_000, 100_000_000]},
    "a bend of the only law": {
        "laws 0 missing": "the reason", "laws 1 fit misfit bend test": BENT, **S_BASE_ONLY,
    },
    "slopes do not fade": {"slopes": RESULTS["slopes"].assign(slope=-0.1)},
    "k without a comparison": {"gains_per_flop": RESULTS["gains_per_flop"].iloc[:0]},
    "no kind is off": {"kinds": RESULTS["kinds"].assign(percent=0.0)},
    "suspects": {"runs": TWICE},
    "repeated runs and gaps": {
        "runs": pandas.concat([TABLE, TWICE, *[TABLE[3:4]] * 8]),
        "gaps": pandas.DataFrame([("Hash", 10**7, 4), ("Dense", 10**7, 1)], columns=["router", "N", "E"]),
    },
    "many gaps": {"gaps": pandas.DataFrame([("Hash", 10**7, 4)] * 13, columns=["router", "N", "E"])},
    "nothing to compare": NOTHING,
    **{f"nothing in {path}": {path: value} for path, value in NOTHING.items()},
    "E_start at 1": {"laws 0 fit status": "E_start at 1"},
    "nothing is determined": {f"laws 0 constants {name}": OPEN for name in LAW.constants},
    "no constant of any law": {f"laws {i} constants {name}": OPEN for name in LAW.constants for i in (0, 1)},
    "a wide interval": {"laws 0 constants E_max": OPEN | {"low": 1.5, "high": 2e6}},
    "a wide equivalent size": {"worth": WORTH.assign(
        low=[1e6, *WORTH["low"][1:]], high=[1.1e12, *WORTH["high"][1:]])},
    "a wide jackknife": {"other_intervals": KNIFE.assign(
        jackknife_low=KNIFE["jackknife_low"].where(~CUTOFFS, 2.55e-17),
        jackknife_high=KNIFE["jackknife_high"].where(~CUTOFFS, 1.47e41))},
    "RL-R": {"table routers": ["Hash", "RL-R"]},
    "isoFLOP profiles": {"isoflop": [profile(times) for times in (1, 2, 4, 8)]},
    "advice on size alone": advised({
        key: RESULTS[key].iloc[:0] for key in ("doublings", "pairs", "gains_per_flop", "routing_frequency")
    }),
    "no advice on size": advised(OTHER_TEXTS),
    "routing hurts": advised({"gains": RESULTS["gains"].assign(low=[0.01, *[-0.02] * 11], high=[0.02, *[-0.01] * 11])}),
    "sizes far from 1.3B": advised({"gains": RESULTS["gains"].query("N < 1e9 or loss != 'loss_validation'")}),
    "more experts help": advised({"doublings": RESULTS["doublings"].assign(high=-0.125)}),
    "more routed blocks help": advised({
        "routing_frequency": pandas.concat([FREQUENCY, FREQUENCY[:1].assign(R=1.0, lower=2)]),
    }),
    "no law in compute": {
        "utilisation": RESULTS["utilisation"].assign(missing="the reason"), "kinds": RESULTS["kinds"].iloc[:0],
    },
}  # fmt: skip

PREDICTED = {"router": "S-Base", "N": 1_234_567.0, "E": 16.0, "law": "bilinear", "loss": 2.5, "reason": ""}


def scored(entries: list[dict], fitted_to: list[int], scored: int, hits: int) -> registered.RegisteredScore:
    frame = pandas.DataFrame(entries, columns=registered.COLUMNS)
    return registered.RegisteredScore("noon", [], fitted_to, "loss_validation", 0.8, frame, scored, hits)


OF_A_SWEEP = {
    "unfinished": {},
    "several of all": {
        "waiting": {}, "sessions": [{"jobs": 2}, {"jobs": 4}], "preset": "smoke", "corpus": [], "drawn": [],
        "runs": RUNS[1:].assign(share=[25.0, 50.0], k=[1, 2], corpus=[("text",)] * 2, tokens=1000, vocabulary=300,
                                commit=["abc", "def"]),
    },
    "no seeds": {"spreads": [], "runs": NO_ERROR, "comparisons": pandas.concat([
        COMPARED.assign(difference=0.25, spread=math.nan), COMPARED[:1].assign(router="Z", spread=math.nan)])},
    "several E": {"sessions": [], "comparisons": pandas.concat([
        COMPARED, COMPARED.assign(router="S-Base", experts=16, verdict="yes")])},
    "all sizes": {"comparisons": pandas.concat([COMPARED[:2], COMPARED[:1].assign(router="Z", borrowed=True)])},
    "nothing to compare": {"comparisons": COMPARED[:0]},
    "predictions": {"registered": scored([
        PREDICTED | {"run_interval": [2.45, 2.55], "measured": [2.52, 2.58], "error": 0.02},
        PREDICTED | {"run_interval": [2.45, None], "measured": [2.4], "error": -0.04},
        PREDICTED | {"run_interval": [2.45, 2.55], "measured": [], "error": None},
        PREDICTED | {"law": None, "loss": None, "reason": "too few", "measured": [3.0]},
    ], [0, 1, 2], 3, 1)},
    "predictions without runs": {"registered": scored([], [0, 1], 0, 0)},
    "not learned": {
        "not_learned": "the words",
        "learning": pandas.DataFrame([LEARNED._replace(reasons=["why"], agreement=math.nan, entropy=0.5)]),
    },
    "two documents": {
        "few_documents": few_documents(20, 2), "runs": NO_ERROR, "comparisons": COMPARED.assign(error=math.nan),
    },
    "masked": {"runs": RUNS.assign(mask_rate=[15.0, 20.0, 20.0])},
    "grouped": {"runs": RUNS.assign(grouped=True, router="MoT")},
    "both": {"runs": RUNS.assign(grouped=True, router="MoT", mask_rate=15.0)},
}  # fmt: skip


def lines(changes: dict, sweep: dict | None) -> list[str]:
    """Return the lines of the full report, followed by the lines of the short report."""
    results = altered(changes)
    drawn = ["loss", "slopes", "coefficients", "forms", "frequency", "load", "isoflop"]
    sweep = dict(sweep or {})
    curves = sweep.pop("drawn", ["training"])
    sweep = SweepFacts(**sweep) if sweep else None
    findings = (*SweepFacts.findings * bool(sweep), *FINDINGS)
    blocks = [
        block
        for full, names in ((True, drawn + curves), (False, drawn + curves * (sweep is None)))
        for part in (first_page, body)
        for block in part(Report(results, names, sweep, full=full, findings=findings))
    ]
    return markdown(blocks).splitlines()


def test_the_sentences_are_the_approved_ones(approved):
    """Each case gives the lines that the unchanged reports of the table and of the sweep lack."""
    cases = [(name, changes, None) for name, changes in OF_A_TABLE.items()]
    cases += [(f"sweep: {name}", {}, SWEEP | changes) for name, changes in OF_A_SWEEP.items()]
    cases += [("sweep: dense runs only", DENSE_ONLY, SWEEP | {"runs": RUNS[:1]})]
    cases += [
        ("sweep: no run has learned", DENSE_ONLY, SWEEP | {"not_learned": "the words", "comparisons": COMPARED[:0]})
    ]
    seen, said = set(lines({}, None)), []
    for name, changes, sweep in cases:
        new = dict.fromkeys(line for line in lines(changes, sweep) if line not in seen)
        said += [f"# {name}", *new]
        seen |= set(new) if sweep and name == "sweep: unfinished" else set()
    approved("report-sentences.txt", "\n".join(said) + "\n", 0)
