import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from routelaws.accelerated import transformer
from routelaws.accelerated.training import step
from routelaws.accelerated.training.configuration import TrainConfig
from routelaws.accelerated.training.runs import checkpoints
from routelaws.accelerated.training.sweeps.sweep import fields_of_programs
from routelaws.reference.configuration import ModelConfig

SAY = """
import os
from routelaws.accelerated import cli
cli._run = lambda command, rest: print(os.environ.get("JAX_COMPILATION_CACHE_DIR", "nowhere"))
exit(cli.main(["train"]))
"""


def said(tmp_path, code: int = 0, **more) -> str:
    """Return what a command prints for a user who has set only the cache of routelaws."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    own |= {"ROUTELAWS_CACHE": str(tmp_path / "cache")} | more
    done = subprocess.run([sys.executable, "-c", SAY], env=own, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return (done.stderr if code else done.stdout).strip()


def test_a_process_is_told_where(tmp_path):
    folder = Path(said(tmp_path))
    assert folder == tmp_path / "cache" / "programs"
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in (folder, folder.parent))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    """`test_caches.py` has the other folders."""
    (tmp_path / "open" / "planted").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    line = said(tmp_path, code=2, ROUTELAWS_CACHE=str(tmp_path / "open"))
    assert "other users may write to it" in line and "ROUTELAWS_CACHE" in line and len(line.splitlines()) == 1


CONFIG = TrainConfig(ModelConfig(vocab_size=32, d_model=4, blocks=1, heads=1), sequence_length=8, batch_size=2)
WINDOWS = np.arange(36, dtype=np.int32).reshape(2, 2, 9) % 32


COMPILED = []
"""The name of each compilation of this process."""

jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **more: COMPILED.append(more) if event.endswith("backend_compile_duration") else None
)


def test_a_second_call_of_the_steps_compiles_nothing():
    steps, state = step.make_train_steps(CONFIG), step.initial_state(CONFIG)
    state, _ = steps(state, WINDOWS, 0)
    before = len(COMPILED)
    steps(state, WINDOWS, 2)
    assert len(COMPILED) == before > 0


def test_the_first_call_runs_the_program_that_was_compiled_before_there_was_a_state():
    config = dataclasses.replace(CONFIG, batch_size=3)
    windows = np.zeros((2, 3, 9), np.int32)
    step.compile_first_call(config, None, 2)
    state = step.initial_state(config)
    before = len(COMPILED)
    step.make_train_steps(config)(state, windows, 0)
    assert len(COMPILED) == before > 0


def test_a_step_reuses_the_memory_of_a_new_or_restored_state():
    size, several = 4096, np.zeros(4096 + 16, np.float32)
    aligned = several[-several.ctypes.data // 4 % 16 :][:size]  # to 64 bytes
    wanted = checkpoints.wanted_of(jax.ShapeDtypeStruct(aligned.shape, aligned.dtype))
    state = step.initial_state(CONFIG), transformer.owned(aligned), checkpoints._placed(aligned, wanted)
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    assert before == [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(add(state))]


def test_the_weights_that_models_of_about_one_size_start_from_compile_one_program(monkeypatch):
    wider = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, vocab_size=40), seed=7)
    step.initial_state(CONFIG)
    before = len(COMPILED)
    state = step.initial_state(wider)
    assert len(COMPILED) == before
    monkeypatch.setattr(transformer, "_SHARED_DRAWS", 0)  # a separate program
    alone = step.initial_state(wider)
    assert len(COMPILED) == before + 1
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, alone, state)))
    shapes = jax.eval_shape(lambda: step.initial_state(wider))
    assert jax.tree.map(jax.typeof, shapes) == jax.tree.map(jax.typeof, state)


def test_runs_that_differ_in_seed_rate_or_text_share_their_programs():
    other = dataclasses.replace(CONFIG, seed=7, learning_rate=0.02, corpus=("elsewhere",))
    assert fields_of_programs(other) == fields_of_programs(CONFIG)
    lowered = [
        step.compiled_steps(config)
        .lower(step.initial_state(config), WINDOWS, 0, np.int32(0), step.run_inputs(config, None))
        .as_text()
        for config in (CONFIG, other)
    ]
    assert lowered[0] == lowered[1]  # fields outside `fields_of_programs` do not change a program


def test_fields_outside_the_step_do_not_change_its_program():
    values = dict.fromkeys(step.NOT_IN_STEPS, "elsewhere") | {"steps": 9, "schedule": "wsd", "decay_shape": "sqrt"}
    values |= {"learning_rate": 0.02, "warmup": 0.5, "warmup_steps": 3, "decay": 0.5, "seed": 7, "evaluations": 1}
    values |= {"evaluation_tokens": 64, "steps_per_call": 2, "checkpoint_every": 4, "keep_last": 1, "keep_every": 2}
    values |= {"skip_bad_batches": 5, "corpus": ("elsewhere",), "eval": ("elsewhere",), "init_noise": 0.1}
    other = dataclasses.replace(CONFIG, **values | {"init_redraw": 0.5, "init_optimizer": True})
    assert not [name for name in step.NOT_IN_STEPS if getattr(other, name) == getattr(CONFIG, name)]
    arguments = step.initial_state(CONFIG), WINDOWS, 0, np.int32(0), step.run_inputs(CONFIG, None)
    programs = [step.compiled_steps(config).lower(*arguments).as_text() for config in (CONFIG, other)]
    assert programs[0] == programs[1]
    assert (
        step._in_steps(other)
        == step._in_steps(CONFIG)
        != step._in_steps(dataclasses.replace(CONFIG, weight_decay=0.25))
    )
