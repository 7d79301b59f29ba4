"""Loops are compiled once, even if several processes start at the same time."""

import os
import subprocess
import sys
import time

from numba import types

from routelaws.accelerated.kernels import assignment, compile

FIRST_CALL = """
import sys
import time
import numpy as np
from routelaws.accelerated.kernels.auction import _take
print("ready", flush=True)
sys.stdin.read()
_take(np.ones(8, np.float32), np.float32(1))
print(sum(_take.stats.cache_misses.values()), sum(_take.stats.cache_hits.values()))
"""


def test_of_processes_that_start_together_one_compiles_and_the_others_read(tmp_path):
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path))
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = [subprocess.Popen([sys.executable, "-c", FIRST_CALL], env=environment, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.close()
    said = sorted(process.stdout.read().split() for process in processes)
    assert all(process.wait() == 0 for process in processes)
    assert said == [["0", "1"], ["1", "0"]]  # compiled, read


CALLER = """
from routelaws.accelerated.kernels.compile import jit
from callee import once

@jit
def twice(x):
    return 2 * once(x)
"""


def test_a_loop_whose_callee_has_changed_is_compiled_again(tmp_path):
    """numba checks only the file of the loop."""
    (tmp_path / "caller.py").write_text(CALLER)
    callee = tmp_path / "callee.py"
    environment = dict(os.environ, PYTHONPATH=str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path / "cache"))

    def said(adds: int, moment: int) -> list[str]:
        source = f"from routelaws.accelerated.kernels.compile import jit\n\n@jit\ndef once(x):\n    return x + {adds}\n"
        if not callee.exists() or callee.read_text() != source:
            callee.write_text(source)
            os.utime(callee, (moment, moment))
        program = "from caller import twice; print(twice(1), len(twice.stats.cache_hits))"
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    now = int(time.time())
    os.utime(tmp_path / "caller.py", (now - 50, now - 50))
    assert said(1, now - 50) == ["4", "0"]
    assert said(1, now - 50) == ["4", "1"]  # kept
    for kept in (tmp_path / "cache").rglob("*.nb*"):
        os.utime(kept, (now - 40, now - 40))
    assert said(5, now - 30) == ["12", "0"]


def test_machine_code_older_than_a_source_is_deleted(tmp_path):
    """A source from the future, as on a shared disk, does not count."""
    now = time.time()
    for name, age in (
        ("a.py", 50),
        ("b.py", -1000),
        ("old.nbi", 60),
        ("old.nbc", 60),
        ("new.nbi", 40),
        ("old.txt", 60),
    ):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (now - age, now - age))
    compile._forget_stale.__wrapped__(tmp_path, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.py", "b.py", "new.nbi", "old.txt"}


def test_a_debugger_gets_the_function_itself(monkeypatch):
    monkeypatch.setattr(compile.config, "DISABLE_JIT", True)
    assert compile.jit(os.path.join) is os.path.join


def test_a_loop_is_compiled_once_for_constants_and_short_integers():
    row, loop = types.float64[::1], assignment._mark
    for lower in (types.int64, types.literal(0), types.int32):
        loop.compile((lower, lower, lower, types.boolean, types.boolean[::1], row, types.int32[::1], row, lower))
    assert len([signature for signature in loop.signatures if signature[5] == row]) == 1  # other tests have other rows
