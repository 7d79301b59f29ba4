"""Figures of the peak memory of a whole run: `routelaws train` with evaluations, checkpoints and diagnosis.

Each run is a new process. Its peak is the largest resident memory, with the interpreter and all libraries.
"""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from .figure import Figure, Job, Side

FLOOR = 4 * 4
"""Bytes for each parameter that AdamW needs at least: weight, gradient and two moments, float32."""

RUN = """
import re, sys
from routelaws.accelerated.cli import main
if main(sys.argv[1:]):
    sys.exit(1)
with open("/proc/self/status") as file:
    print("peak", re.search(r"VmHWM:\\s+(\\d+)", file.read())[1])
"""


def training_run(router: str, experts: int = 1, d_model: int = 256, resumed: bool = False, quick: bool = False) -> Job:
    """Return a job that measures the peak memory of a run of two evaluations, GB. It runs once.

    Args:
        resumed: whether to measure a second process, which resumes at half of the steps.
    """
    sizes = {"router": router, "experts": experts, "d_model": 16 if quick else d_model, "vocab_size": 1024}
    sizes |= {"blocks": 4, "steps": 16, "evaluations": 2}
    text = Path(sysconfig.get_path("stdlib")) / "asyncio"

    @functools.cache
    def peak() -> float:
        environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        with tempfile.TemporaryDirectory() as folder:
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
            command = [sys.executable, "-c", RUN, "train", "--out", f"{folder}/run", "--corpus", str(text), *flags]
            for _ in range(1 + resumed):
                shutil.rmtree(f"{folder}/run/checkpoints/{sizes['steps']}", ignore_errors=True)
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout.rpartition("peak ")[2]) * 1024 / 1e9

    def facts() -> dict:
        from routelaws.accelerated.training.configuration import from_mapping

        parameters = from_mapping(sizes, "benchmark").accounting().total_parameters
        return {"parameters": parameters, "floor_gb": round(FLOOR * parameters / 1e9, 3)}

    return Job(peak, facts, measures=True)


def _peak(name: str, what: str, limit: float, **options) -> Figure:
    what = f"peak memory in GB of a whole run, {what}, d = 256, L = 4 (not a ratio)"
    sides = {"run": Side("memory:training_run", options)}
    return Figure(name, what, sides, lambda peaks: peaks["run"], ("at most", limit), backend="cpu")


FIGURES = (
    _peak("memory-dense", "dense", 1.0, router="dense"),
    _peak("memory-sbase-e32", "S-BASE, E = 32", 1.5, router="sinkhorn", experts=32),
    _peak("memory-sbase-e32-resumed", "S-BASE, E = 32, resumed", 1.5, router="sinkhorn", experts=32, resumed=True),
)
