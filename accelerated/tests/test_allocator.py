"""The thread of the computation in training, and the memory pages of the workers of a sweep."""

import os
import subprocess
import sys

import pytest

from routelaws.accelerated.commands import train
from routelaws.accelerated.training.sweeps.workers import thread_environment

CALLS = """
import jax
from routelaws.accelerated.training.sweeps import workers
workers.compute_where_called()
products = jax.jit(lambda a: jax.lax.fori_loop(0, 100, lambda i, b: a @ b, a)).lower(jax.numpy.ones((500, 500)))
print(workers.computes_where_called(), products.compile()(jax.numpy.ones((500, 500))).is_ready())
"""


def test_a_call_that_is_computed_where_it_is_made_returns_at_its_end():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True True"


@pytest.mark.parametrize("mesh", [None, "data=1"])
def test_training_computes_in_its_main_thread_but_on_a_mesh(monkeypatch, tmp_path, mesh):
    done = []
    for name in ("keep_freed_memory", "compute_where_called", "run_of"):
        monkeypatch.setattr(train, name, lambda *_, name=name: done.append(name))
    train.main(["--out", str(tmp_path), *(["--mesh", mesh] if mesh else [])])
    assert done == ["keep_freed_memory", *([] if mesh else ["compute_where_called"]), "run_of"]


def test_workers_ask_for_huge_pages_where_the_user_has_set_nothing(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert thread_environment(1)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setitem(os.environ, "GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert thread_environment(1)["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
