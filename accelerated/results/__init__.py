"""Results of runs: read a table, choose rows, fit a law, predict. Commands, notebooks and reports enter here.

runs = results.read("table.csv").where("k == 1")
fits = runs.fit("routed-bounded")               # one fit for each router
fits.predict(n=370e6, experts=64)
fits["S-Base"].coefficients["E_max"]
fits.plot()
fits.to_dict()
runs.plan(results.Budget(flops=1e21))           # the best models for a budget
runs.next_run("slope", router="S-Base")         # the next run to train
"""

from routelaws.reference._lazy import lazy

_MODULES = ("blocks", "encoding", "fit", "misfit", "planning", "prediction", "runs")
_NAMES = {
    "runs": ("Fits", "Runs", "read"),
    "planning.plan": ("Budget", "Plan"),
    "planning.next_run": ("NextRuns",),
    "fit": ("Fit",),
    "prediction": ("Prediction", "Predictions"),
}
__all__, __getattr__, __dir__ = lazy(__name__, _MODULES, _NAMES)
