"""The thread of the computation in training, and the memory pages of the workers of a sweep."""

import os
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

from routelaws.accelerated.commands.models import train
from routelaws.accelerated.training import step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.sweeps import workers
from routelaws.accelerated.training.sweeps.workers import thread_environment

CALLS = """
import jax
from routelaws.accelerated.training import step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.sweeps import workers
workers.compute_where_called()
products = jax.jit(lambda a: jax.lax.fori_loop(0, 100, lambda i, b: a @ b, a)).lower(jax.numpy.ones((500, 500)))
print(workers.computes_where_called(), products.compile()(jax.numpy.ones((500, 500))).is_ready())
"""


FREED = """
from routelaws.accelerated.training import step
from routelaws.accelerated.training.configuration import from_mapping
from routelaws.accelerated.training.sweeps import workers
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
import os
workers.keep_freed_memory()
blocks = [b"1" * 50_000 for _ in range(4000)]
full = resident()
del blocks[1::2]  # gaps between blocks in use
kept = resident()
with workers.separate_memory():
    inside = resident()
    blocks = None
print(kept > full - 50e6, inside < full - 80e6, resident() < full - 150e6)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
def test_a_phase_of_a_run_begins_and_ends_without_the_freed_memory():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True True True", done.stderr


def test_the_memory_of_a_long_compilation_is_returned_before_its_program_runs(monkeypatch):
    returned = []
    monkeypatch.setattr(workers, "_return_freed_memory", lambda: returned.append(1))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: compiled.append(event))
    jax.jit(lambda a: a * 3 + 41)(1.0)
    assert workers._COMPILED in compiled, "JAX has renamed the event"
    returned.clear()  # on a busy machine this was a long compilation
    for event, seconds in ((workers._COMPILED, 0.1), ("other", 9.0), (workers._COMPILED, 9.0)):
        workers._return_memory_of_compiler(event, seconds, fun_name="f")
    assert len(returned) == 1


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


@pytest.mark.slow
def test_a_step_needs_the_memory_of_its_state_and_one_gradient():
    model = {"vocab_size": 64, "d_model": 64, "blocks": 2, "heads": 1, "experts": 32, "router": "hash"}
    config = from_mapping({**model, "sequence_length": 16, "batch_size": 1, "steps": 1}, "test")
    state, table = jax.eval_shape(lambda: step.initial_state(config)), np.arange(64).reshape(64, 1) % 32
    inputs, batches = step.run_inputs(config, table), np.zeros((1, 1, 17), np.int32)
    lowered = step.compiled_steps(config).lower(state, batches, 0, np.int32(0), inputs)
    memory, weights = lowered.compile().memory_analysis(), 4 * config.accounting().total_parameters
    assert 3 * weights <= memory.alias_size_in_bytes <= 3.01 * weights, "the state is not donated"
    assert memory.temp_size_in_bytes <= 1.2 * weights
