#!/usr/bin/env bash
# orbax-checkpoint 0.12.8: one loss of NaN makes `CheckpointManager` delete its best checkpoint and name a worse one.
#
# With `best_fn`, `best_mode="min"` and `max_to_keep=2`, the manager keeps the two checkpoints with the lowest losses.
# Here, the held-out losses are 3.0, 2.0, NaN, 2.5, 2.4 and 2.3, as after a spike from which a run recovers. The manager
# deletes the checkpoint of 2.0, keeps those of 2.4 and 2.3, and `best_step()` names the one of 2.3. With 9.0 instead of
# NaN, it keeps 2.0 and 2.3. Of 20 random orders of these six losses, 6 end without the best one. Nothing warns. The
# weights are gone, and a comparison of routers by their best checkpoints has a worse loss for this run.
#
# Cause: the manager sorts by the value of `best_fn`. Each comparison with NaN is false, so losses before NaN and losses
# after it are not compared with each other. The documentation of `best_fn` does not mention NaN. Let `best_fn` return
# infinity for NaN, or -infinity with `best_mode="max"`.
#
# Seen with orbax-checkpoint 0.12.8 and jax 0.10.2 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile orbax-checkpoint==0.12.8 jax==0.10.2 numpy==2.4.6
cat > "$folder/best.py" <<'PYTHON'
import math
import random
import tempfile

import numpy as np
import orbax.checkpoint as ocp


def finite(loss):
    return loss if math.isfinite(loss) else math.inf


def run(losses, value=float):
    """Save a checkpoint for each loss, and describe the checkpoints that stay, and return the best one's loss."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: value(metrics["loss"]), best_mode="min", enable_async_checkpointing=False
    )
    with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder, options=options) as manager:
        for step, loss in enumerate(losses):
            manager.save(step, args=ocp.args.StandardSave({"experts": np.ones(2)}), metrics={"loss": loss})
        manager.wait_until_finished()
        best = losses[manager.best_step()]
        kept = [losses[step] for step in manager.all_steps()]
    return f"keeps {kept}, best {best}", best


spike = [3.0, 2.0, math.nan, 2.5, 2.4, 2.3]
print(f"losses {spike}: {run(spike)[0]}")
print(f"9.0 instead of NaN: {run([9.0 if math.isnan(loss) else loss for loss in spike])[0]}")
print(f"infinity from best_fn: {run(spike, finite)[0]}")
shuffle = random.Random(0)
orders = [shuffle.sample(spike, 6) for _ in range(20)]
lost, lost_if_finite = (sum(run(order, value)[1] != 2.0 for order in orders) for value in (float, finite))
print(f"the best is not 2.0 in {lost} of 20 orders, {lost_if_finite} with infinity from best_fn")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore "$folder/best.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='losses [3.0, 2.0, nan, 2.5, 2.4, 2.3]: keeps [2.4, 2.3], best 2.3
9.0 instead of NaN: keeps [2.0, 2.3], best 2.0
infinity from best_fn: keeps [2.0, 2.3], best 2.0
the best is not 2.0 in 6 of 20 orders, 0 with infinity from best_fn'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }
