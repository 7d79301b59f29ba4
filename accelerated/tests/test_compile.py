"""Loops are compiled once, however many processes begin with them at the same time."""

import os
import subprocess
import sys

FIRST_CALL = """
import sys
import numpy as np
from routelaws.accelerated.kernels import vector
print("ready", flush=True)
sys.stdin.read()
values = np.ones(1)
vector.exp(values, np.empty(1))
print(sum(vector.exp.stats.cache_misses.values()), sum(vector.exp.stats.cache_hits.values()))
"""


def test_of_processes_that_start_together_one_compiles_and_the_others_read(tmp_path):
    environment = dict(os.environ, NUMBA_CACHE_DIR=str(tmp_path))
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = [subprocess.Popen([sys.executable, "-c", FIRST_CALL], env=environment, **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.close()
    said = sorted(process.stdout.read().split() for process in processes)
    assert all(process.wait() == 0 for process in processes)
    assert said == [["0", "1"], ["0", "1"], ["1", "0"]]  # compiled, read
