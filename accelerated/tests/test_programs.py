"""Compiled programs are kept between runs of the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.accelerated.commands import programs

SAY = """
import os
from routelaws.accelerated.commands.programs import keep_programs
keep_programs()
print(os.environ.get("JAX_COMPILATION_CACHE_DIR", "nowhere"))
"""


def settings_of(tmp_path, **more) -> dict:
    """The environment of a user who has named nothing but the cache of routelaws."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return own | {"ROUTELAWS_CACHE": str(tmp_path / "cache")} | more


def said(tmp_path, **more) -> str:
    command = [sys.executable, "-c", SAY]
    done = subprocess.run(command, env=settings_of(tmp_path, **more), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_process_is_told_where(tmp_path):
    folder = Path(said(tmp_path))
    assert folder.is_dir() and folder.parent == tmp_path / "cache" / "programs"


def test_the_users_own_choice_stands(tmp_path):
    assert said(tmp_path, JAX_COMPILATION_CACHE_DIR="elsewhere") == "elsewhere"
    assert said(tmp_path, JAX_COMPILATION_CACHE_DIR="") == ""


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert said(tmp_path, ROUTELAWS_CACHE=str(tmp_path / "file")) == "nowhere"


def test_another_processor_and_another_compiler_have_folders_of_their_own(monkeypatch):
    folders = {programs.programs_folder()}
    monkeypatch.setattr(programs, "_abilities", lambda: ["flags: few"])
    folders.add(programs.programs_folder())
    monkeypatch.setattr(programs, "version", lambda package: "99.0.0")
    folders.add(programs.programs_folder())
    assert len(folders) == 3


@pytest.mark.slow
def test_runs_of_the_same_shapes_share_their_programs_and_lose_nothing(tmp_path, text_file):
    sizes = "--vocab-size 300 --d-model 8 --heads 1 --blocks 2 --sequence-length 16 --batch-size 4 --steps 8"
    command = [sys.executable, "-m", "routelaws.accelerated", "train", "--router", "reinforce", "--experts", "4"]
    command += [*sizes.split(), "--evaluation-tokens", "256", "--corpus", str(text_file)]
    found = []
    for seed, rate, out in (("1", "0.01", "one"), ("1", "0.01", "two"), ("2", "0.02", "three")):
        more = ["--seed", seed, "--learning-rate", rate, "--out", str(tmp_path / out)]
        subprocess.run([*command, *more], env=settings_of(tmp_path), check=True, capture_output=True)
        kept = {path.name for path in (tmp_path / "cache" / "programs").glob("*/jit_[te]*-cache")}  # steps, evaluation
        losses = [line.split(",")[6] for line in (tmp_path / out / "results.csv").read_text("utf-8").splitlines()]
        found.append((kept, losses))
    (kept, losses), (same, again), (other, third) = found
    assert any("train_steps" in name for name in kept) and same == kept == other
    assert losses[0] == "loss_validation" and losses == again != third
