"""Every field of a checkpoint, at a value other than its first, after a resume, in a branch, and in a run that borrows.

The fields are those that a run writes, so a new field without a value here fails. No step is compiled or taken:
`test_training_meaning` and `test_training` compare whole runs, resumed and branched, with uninterrupted ones.
"""

import jax
import numpy as np
import pytest

from routelaws.accelerated.training import loop, step
from routelaws.accelerated.training.runs.checkpoints import Checkpoints
from routelaws.accelerated.training.runs.trunk import Trunk

from .small_runs import make_run

CARRIED = {
    "wall_seconds": ("seconds", 7.5), "dropped": ("dropped", [0.5, 2]), "skipped": ("skipped", 3),
    "trunk": ("branched_off", "other@8"), "initial_tokens": ("initial_tokens", 640),
}  # fmt: skip
"""{field of a checkpoint: (attribute of the run, a value)}. The position and the record are set by `moved`."""

WHOLE = {"router": "top_k", "experts": 4, "bias_rate": 0.01, "router_bias": True, "shared_experts": 1,
         "output_norm": True, "skip_bad_batches": 4}  # fmt: skip
CONSTANT = {"schedule": "constant", "warmup_steps": 4}
DECAYING = {"schedule": "wsd", "warmup_steps": 4, "decay": 0.25}
AT = 12


def moved(fields, folder, **changes):
    """Return a run with a checkpoint at step 12, whose every number differs from a new run's, and these numbers."""
    run = make_run({**fields, **WHOLE, **changes}, folder)
    for attribute, value in CARRIED.values():
        setattr(run, attribute, tuple(value) if isinstance(value, list) else value)
    run.batches.stacked(AT)
    run.rows, run.windows = [{"hyper_id": "7", "step": "8", "loss_validation": "3.5"}], ["digest"]
    run.log.begin()
    run.log.write(kind="train", step=8, loss=3.0)
    draw = np.random.default_rng(0)
    state = jax.tree.map(
        lambda leaf: np.asarray(draw.integers(5, 99, leaf.shape) / (1 if leaf.dtype == np.int32 else 64), leaf.dtype),
        step.initial_state(run.config),
    )
    kept, extra = Checkpoints(run.checkpoints, None), run._extra()
    kept.save(AT, state._asdict(), extra)
    kept.close()
    run.log.close()
    return state, extra, run.batches.stacked(2)


def begun(run):
    """Return the first step, the state and the fields of a run that starts, and its next two batches."""
    kept = Checkpoints(run.checkpoints, None)
    first, state = run._start(kept)
    kept.close()
    return first, state, run._extra(), run.batches.stacked(2)


def same(found, wanted) -> dict:
    """Return {path: whether a leaf of two trees is equal}."""
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    return {jax.tree_util.keystr(path): np.array_equal(ours, theirs) for (path, ours), theirs in pairs}


@pytest.fixture(scope="module")
def trunk(small_fields, tmp_path_factory):
    folder = tmp_path_factory.mktemp("carried") / "trunk"
    return folder, *moved(small_fields, folder, **CONSTANT)


@pytest.fixture(scope="module")
def fresh(small_fields, tmp_path_factory):
    return begun(make_run({**small_fields, **WHOLE, **CONSTANT}, tmp_path_factory.mktemp("fresh") / "run"))


def test_every_field_has_another_value_here(trunk, fresh):
    _, state, extra, batches = trunk
    assert extra.keys() == {*CARRIED, "position", "record"}, "give a new field a value in CARRIED"
    assert {name: extra[name] for name in CARRIED} == {name: value for name, (_, value) in CARRIED.items()}
    assert not any(extra[name] == fresh[2][name] for name in extra) and not np.array_equal(batches, fresh[3])
    for name in ("rows", "windows", "log"):
        assert extra["record"][name] != fresh[2]["record"][name]
    assert not any(same(state, fresh[1]).values()), "each array differs from the initial one"


def test_a_resumed_run_has_every_field_and_no_initial_state_beside_them(small_fields, trunk, monkeypatch):
    folder, state, extra, batches = trunk
    monkeypatch.setattr(loop, "initial_state", None)  # it would double the memory
    first, found, fields, following = begun(make_run({**small_fields, **WHOLE, **CONSTANT}, folder))
    assert first == AT and fields == extra
    assert all(same(found, state).values()), same(found, state)
    assert np.array_equal(following, batches)


def test_a_branch_has_every_field_but_its_files_and_its_trunk(small_fields, trunk, tmp_path):
    """It also has them after its own resume, when the trunk is gone."""
    folder, state, extra, batches = trunk
    branch = make_run({**small_fields, **WHOLE, **DECAYING, "steps": 16}, tmp_path / "run", trunk=Trunk(folder, AT))
    first, found, fields, following = begun(branch)
    assert first == AT and all(same(found, state).values()) and np.array_equal(following, batches)
    assert fields["trunk"] == f"trunk@{AT}" and fields["record"]["rows"] == fields["record"]["windows"] == []
    assert {name: fields[name] for name in fields if name not in ("trunk", "record")} == {
        name: extra[name] for name in extra if name not in ("trunk", "record")
    }
    kept = Checkpoints(branch.checkpoints, None)
    branch.initial_tokens, fields["initial_tokens"] = 641, 641
    branch.batches.set_state(fields["position"])
    kept.save(AT + 1, found._asdict(), branch._extra())
    kept.close()
    again = begun(make_run({**small_fields, **WHOLE, **DECAYING, "steps": 16}, tmp_path / "run"))
    assert again[0] == AT + 1 and again[2] == fields and all(same(again[1], found).values())


@pytest.mark.parametrize("moments", [False, True])
def test_a_run_that_borrows_takes_the_weights_and_their_tokens_alone(small_fields, trunk, fresh, tmp_path, moments):
    """The lender's tokens are those of its own steps and those that it borrowed itself."""
    fields = {**small_fields, **WHOLE, **CONSTANT, "init_from": str(trunk[0]), "init_optimizer": moments}
    first, found, extra, batches = begun(make_run(fields, tmp_path / "run"))
    assert first == 0 and all(same(found.params, trunk[1].params).values())
    wanted = trunk[1] if moments else fresh[1]
    assert all(same(found.optimizer, wanted.optimizer).values()), same(found.optimizer, wanted.optimizer)
    assert extra["initial_tokens"] == 640 + AT * 4 * 16
    others = extra.keys() - {"initial_tokens", "record"}
    assert {name: extra[name] for name in others} == {name: fresh[2][name] for name in others}
    assert np.array_equal(batches, fresh[3])
