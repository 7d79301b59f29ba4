"""The loops of the law are compiled while a sweep trains: all that its report needs, by a process that ends with it."""

import os
import subprocess
import sys
import time

import pytest

from routelaws.accelerated.report.ahead import compiled_ahead

from .test_report import make_sweep

WHAT_IS_LOADED = """
import sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from routelaws.accelerated.kernels import law_fit, law_intervals
from routelaws.accelerated.report.ahead import compile_loops
from routelaws.accelerated.report.engine import write_report

def loaded():
    return {
        (name, signature)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("routelaws.accelerated.")
        for name, loop in vars(module).items()
        if isinstance(loop, Dispatcher)
        for signature in loop.signatures
    }

compile_loops()
before = loaded()
write_report(Path(sys.argv[1]))
assert before
print(sorted(name for name, _ in loaded() - before))
"""


def test_a_report_of_a_sweep_needs_no_other_loop(tmp_path):
    make_sweep(tmp_path / "sweep")
    found = subprocess.run(
        [sys.executable, "-c", WHAT_IS_LOADED, tmp_path / "sweep"], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"


def test_the_process_is_gone_after_also_when_training_is_given_up():
    with pytest.raises(KeyboardInterrupt), compiled_ahead() as process:
        assert process.poll() is None
        raise KeyboardInterrupt
    assert process.poll() is not None


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no priorities here")
def test_the_process_leaves_the_cores_to_those_who_train():
    with compiled_ahead() as process:
        end = time.monotonic() + 60
        while os.getpriority(os.PRIO_PROCESS, process.pid) < 19 and time.monotonic() < end:
            time.sleep(0.05)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
