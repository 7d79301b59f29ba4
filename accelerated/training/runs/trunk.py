"""Several budgets from one run: a run can begin at a checkpoint of another run, its trunk.

Take two runs that differ only in the schedule. They have the same weights, batches and noise until their learning rates
first differ. So the trunk is trained once, and its learning rate stays at the peak. A run with a smaller budget begins
with the trunk's state at the step at which its own decay starts (Hägele et al. 2024, arXiv 2405.18392, section 3). Its
losses are bit for bit the losses of the same run trained from step 0.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ..configuration import CHANGEABLE, PLACES, TrainConfig
from ..optimizer import rates_of_steps
from .checkpoints import Checkpoints, Restored
from .record import record_in
from .run_folder import check_files, read_config

NOT_IN_STATE = (
    "schedule", "learning_rate", "warmup", "warmup_steps", "decay", "decay_shape", "steps", "evaluations",
    "evaluation_tokens", "steps_per_call", "checkpoint_every", *PLACES, *CHANGEABLE,
)  # fmt: skip
"""Fields that may differ between a run and its trunk; learning rates and texts have their own checks."""


class Trunk(NamedTuple):
    """The start of a run: a step of another run."""

    folder: Path
    step: int

    def __str__(self) -> str:
        """Return the name of the trunk in the results table, such as `002-top_k-E8-d16-L2-s42@320`."""
        return f"{self.folder.absolute().name}@{self.step}"

    def checkpoints(self, tell: Callable[[str], None] = print) -> Checkpoints:
        """Return the checkpoints of the run. `tell` gets a line for each damaged checkpoint."""
        return Checkpoints(self.folder / "checkpoints", tell)

    def is_saved(self) -> bool:
        """Return whether the run has a checkpoint of the step."""
        return self.step in self.checkpoints().steps()


def check_trunk(trunk: Trunk, config: TrainConfig) -> None:
    """Raise `InputError` if a run, trained from step 0, would differ from the trunk before `trunk.step`.

    The message names the first different field, the first different learning rate, or the available checkpoints.
    """
    there = read_config(trunk.folder)
    if different := config.difference(there, NOT_IN_STATE):
        name, ours, theirs = different
        raise InputError(
            f"{trunk.folder}: its {name} is {theirs!r}, not {ours!r}; use the settings of this run, because the decay "
            "continues it"
        )
    ours, theirs = (np.asarray(rates_of_steps(run))[: trunk.step] for run in (config, there))
    if len(ours) < trunk.step:
        raise InputError(f"steps is {config.steps}; a decay that begins at step {trunk.step:,} needs more steps")
    apart = np.flatnonzero(ours[: len(theirs)] != theirs)
    if apart.size:
        raise InputError(
            f"{trunk.folder}: its learning rate at step {apart[0] + 1:,} is {theirs[apart[0]]:.6g}, but "
            f"{ours[apart[0]]:.6g} in the new run; both must be equal up to step {trunk.step:,}: use a smaller --at, "
            "or the schedule and warm-up of the old run and more steps"
        )
    trunk.checkpoints().check_has(trunk.step)


def begin(trunk: Trunk, config: TrainConfig, like: dict, tell: Callable[[str], None]) -> Restored:
    """Return the checkpoint of the trunk, with the trunk's name among its fields.

    Args:
        like: the state of the run (see `Checkpoints.restore`).

    Raises:
        InputError: `check_trunk` raises this error, or the checkpoint is missing or damaged.
    """
    check_trunk(trunk, config)
    there = read_config(trunk.folder)
    checkpoints = trunk.checkpoints(tell)

    def check(step: int, extra: dict) -> None:
        check_files(trunk.folder, there, record_in(extra), f"the checkpoint of step {step:,}")

    try:
        restored = checkpoints.restore_at(trunk.step, like, check)
    finally:
        checkpoints.close()
    return restored._replace(extra=restored.extra | {"trunk": str(trunk)})


def check_growth(folder: Path, before: TrainConfig, config: TrainConfig, saved: Sequence[int]) -> None:
    """Raise `InputError` if a run gets more steps after its learning rate has begun to decay.

    Args:
        config: the configuration with the new steps.
        saved: the steps of the checkpoints, newest first.
    """
    if saved and saved[0] > before.stable_steps():
        raise InputError(
            f"{folder}: cannot go on from {before.steps:,} to {config.steps:,} steps, because its learning rate decays "
            f"from step {before.stable_steps():,} on; start a new run with another --out, --decay-from {folder} and "
            "--at STEP; possible steps: "
            f"{', '.join(f'{step:,}' for step in sorted(saved) if step <= before.stable_steps()) or 'none'}"
        )
