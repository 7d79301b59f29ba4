#!/usr/bin/env bash
# mlflow 3.17.2: a loss of infinity is read back as a finite number, so a diverged run stays in an analysis.
#
# The default store, a SQLite file, replaces inf by 1.8e308, the largest float. `math.isfinite` of the value is True, in
# `get_run`, `get_metric_history` and `search_runs`. A filter of finite losses keeps the run, its log loss is 709.8, and
# a fit in log loss takes it for a point. NaN stays NaN. A search `metrics.loss > 100` finds the run of inf, and not the
# run of NaN. The documents of `log_metric` mention the replacement. No message does.
#
# Test for values above 1e308, or log a flag of divergence next to the loss.
#
# Seen with mlflow 3.17.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile mlflow==3.17.2
cat > "$folder/diverged.py" <<'PYTHON'
import math

import mlflow

print("store:", mlflow.get_tracking_uri().split(":")[0])
names = {}
for name, loss in (("converged", 2.5), ("diverged", math.inf), ("undefined", math.nan)):
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 3.0, step=0)
        mlflow.log_metric("loss", loss, step=1)
    names[run.info.run_id] = name
client = mlflow.MlflowClient()
table = mlflow.search_runs().set_index("run_id")["metrics.loss"]
for key, name in names.items():
    last = client.get_run(key).data.metrics["loss"]
    history = [metric.value for metric in client.get_metric_history(key, "loss")]
    finite = [math.isfinite(value) for value in (last, history[-1], table[key])]
    print(f"{name}: {last:.3g}, finite {finite}, log {math.log(last):.1f}")
large = mlflow.search_runs(filter_string="metrics.loss > 100")
print("loss > 100:", *(names[key] for key in large["run_id"]))
PYTHON
seen=$(cd "$folder" && venv/bin/python -W ignore diverged.py 2> errors || cat "$folder/errors")
wanted='store: sqlite
converged: 2.5, finite [True, True, True], log 0.9
diverged: 1.8e+308, finite [True, True, True], log 709.8
undefined: nan, finite [False, False, False], log nan
loss > 100: diverged'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
