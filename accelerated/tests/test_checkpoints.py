"""Checkpoints of one CPU have packed arrays. A checkpoint with single arrays can be read, too."""

import os
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from routelaws.accelerated.errors import InputError, StorageError
from routelaws.accelerated.training.runs import checkpoints
from routelaws.accelerated.training.text import packing

TREE = {"a": [np.float32([[1, 2]])], "b": np.int32([7]), "c": np.float32(3), "d": np.zeros((0, 4), np.int16)}
PLACES = [checkpoints.PACKED, "state"]


def state_of(seed: int) -> dict:
    numbers = np.random.default_rng(seed).standard_normal((3, 5))
    return {
        "params": {"w": jnp.float32(numbers), "half": jnp.bfloat16(numbers[0])},
        "opt_state": (jnp.int32(seed), jnp.float32(numbers.T)),
    }


def assert_same(found: dict, wanted: dict) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def saved(folder, tell=None, place: str = checkpoints.PACKED) -> checkpoints.Checkpoints:
    opened = checkpoints.Checkpoints(folder, tell)
    with pytest.MonkeyPatch.context() as patch:
        if place == "state":
            patch.setattr(checkpoints, "_on_one_cpu", lambda sharding: False)
        for step in (1, 2):
            opened.save(step, state_of(step), {"position": step})
        opened.wait()
    assert [(folder / str(step) / place).is_dir() for step in (1, 2)] == [True, True]
    return opened


def test_arrays_are_laid_end_to_end_by_dtype():
    pieces = packing.packed(TREE)
    assert {name: [part.tolist() for part in parts] for name, parts in pieces.items()} == {
        "float32": [[1.0, 2.0, 3.0]],
        "int16": [[]],
        "int32": [[7]],
    }
    assert_same(packing.unpacked(pieces, TREE), TREE)
    TREE["b"][0] = 8
    assert pieces["int32"][0] == 7, "they are in memory of their own"


def test_long_arrays_are_cut(monkeypatch):
    monkeypatch.setattr(packing, "PIECE", 8)
    pieces = packing.packed(TREE)
    assert [part.tolist() for part in pieces["float32"]] == [[1, 2], [3]]
    assert_same(packing.unpacked(pieces, TREE), TREE)


def test_pieces_of_another_tree_are_refused():
    with pytest.raises(ValueError, match="it holds 3 of float32 and 0 of int16 and 1 of int32, needed: 2 of float32"):
        packing.unpacked(packing.packed(TREE), {"a": TREE["a"]})


@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path, place):
    saved(tmp_path, place=place).close()
    reader = checkpoints.Checkpoints(tmp_path, None)
    found = reader.restore(jax.eval_shape(lambda: state_of(0)))
    assert (found.step, found.extra) == (2, {"position": 2})
    assert_same(found.state, state_of(2))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found.state))


@pytest.mark.parametrize("place", PLACES)
def test_what_is_damaged_is_passed_over(tmp_path, place):
    said = []
    saved(tmp_path, place=place).close()
    for data in (tmp_path / "2" / place).glob("**/d/*"):  # Orbax's files of the arrays
        data.write_bytes(data.read_bytes()[:-10])
    found = checkpoints.Checkpoints(tmp_path, said.append).restore(state_of(0))
    assert found.step == 1 and "checkpoint at step 2 is damaged and skipped" in said[0]
    assert_same(found.state, state_of(1))


def test_other_numbers_that_read_well_are_damage(tmp_path, monkeypatch):
    """Only the digest detects this damage."""
    said, opened = [], saved(tmp_path)
    digest = checkpoints._digest(state_of(2), 2, {"position": 2})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_digest", lambda *_: digest)
        opened.save(2, state_of(5), {"position": 2})
        opened.close()
    assert checkpoints.Checkpoints(tmp_path, said.append).restore(state_of(0)).step == 1
    assert "does not match its digest" in said[0]


def test_a_checkpoint_replaces_that_of_its_step_and_damage_that_of_earlier_damage(tmp_path):
    saved(tmp_path).close()
    for damaged, seed in ((False, 5), (True, 6), (True, 7)):
        opened = checkpoints.Checkpoints(tmp_path, [].append)
        for data in (tmp_path / "2" / checkpoints.PACKED).glob("**/d/*") if damaged else ():
            data.write_bytes(data.read_bytes()[:-10])
        assert opened.restore(state_of(0)).step == 2 - damaged
        opened.save(2, state_of(seed), {"position": seed})
        opened.close()
        found = checkpoints.Checkpoints(tmp_path, None).restore(state_of(0))
        assert (found.step, found.extra) == (2, {"position": seed})
        assert_same(found.state, state_of(seed))
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"1", "2", "damaged-2"}


def test_the_newest_checkpoints_are_kept_and_those_of_every_so_many_steps(tmp_path):
    opened = checkpoints.Checkpoints(tmp_path, None, keep_last=2, keep_every=3)
    for step in range(1, 9):
        opened.save(step, state_of(step), {})
    opened.close()
    assert checkpoints.Checkpoints(tmp_path, None).steps() == [8, 7, 6, 3]


def test_a_packed_checkpoint_of_another_model_is_not_taken_for_this_one(tmp_path):
    said = []
    saved(tmp_path).close()
    other = state_of(0) | {"opt_state": (jnp.int32(0), jnp.zeros((5, 4)))}
    with pytest.raises(InputError, match="no checkpoint matches the model in config.json; restore config.json"):
        checkpoints.Checkpoints(tmp_path, said.append).restore(other)
    assert "it holds 5 of bfloat16 and 30 of float32 and 1 of int32, needed: 5 of bfloat16 and 35 of" in said[0]


def test_the_next_step_may_take_the_memory_of_a_state_that_is_being_saved(tmp_path):
    """The arrays are donated at once, as in a training step."""
    opened, state = checkpoints.Checkpoints(tmp_path, None), state_of(3)
    opened.save(3, state, {})
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(state)
    opened.close()
    assert_same(checkpoints.Checkpoints(tmp_path, None).restore(state_of(0)).state, state_of(3))


def test_a_large_state_is_complete_on_disk_when_the_call_returns_and_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "LARGE", 0)
    opened, state = checkpoints.Checkpoints(tmp_path, None), state_of(3)
    assert checkpoints._copy(state)["state"] is state
    opened.save(3, state, {})
    assert opened.steps() == [3]
    assert_same(checkpoints.Checkpoints(tmp_path, None).restore(state_of(0)).state, state_of(3))
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state)), "a reference is left"
    opened.close()


def test_numbers_are_written_without_compression(tmp_path):
    zeros = {"w": jnp.zeros(2**16)}
    opened = checkpoints.Checkpoints(tmp_path, None)
    opened.save(1, zeros, {})
    opened.close()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) > zeros["w"].nbytes
    assert checkpoints.ocp.Context().array.saving.use_compression, "the options of other checkpoints are changed"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_the_step_goes_before_a_checkpoint_that_is_being_written(tmp_path, monkeypatch):
    digest, priorities = checkpoints._digest, []

    def seen(*given):
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return digest(*given)

    monkeypatch.setattr(checkpoints, "_digest", seen)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    saved(tmp_path / "run").close()
    assert priorities == [checkpoints.LEAST] * 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_what_cannot_be_written_is_said_when_it_is_waited_for(tmp_path):
    (tmp_path / "file").write_text("")
    opened = checkpoints.Checkpoints(tmp_path / "file" / "checkpoints", None)
    opened.save(1, state_of(1), {})
    with pytest.raises(StorageError, match="file/checkpoints"):
        opened.wait()
    opened.close()


def test_options_of_processes_are_set_as_this_version_of_orbax_wants_them(caplog):
    given = {"primary_host": 1, "active_processes": {1}, "barrier_sync_key_prefix": "process_1"}
    with checkpoints._context(**given) as context:
        found = context.multiprocessing_options
    assert {name: getattr(found, name) for name in given} == given
    assert "deprecated" not in caplog.text
