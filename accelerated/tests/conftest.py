"""What the tests of the training side share: a small text, a small run, a token cache of their own."""

import random

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep the token cache of the user out of the tests."""
    monkeypatch.setenv("ROUTELAWS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A file of some 120 kB of sentences, the same in every session."""
    draw = random.Random(0)
    syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "so", "ti", "vu", "ze"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    lines = (" ".join(draw.choices(words, k=draw.randint(3, 12))) + ".\n" for _ in range(2200))
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def small_fields(text_file):
    """Fields of a run that takes a few seconds, most of them to compile."""
    return {
        "corpus": [str(text_file)], "vocab_size": 300, "d_model": 8, "heads": 1, "blocks": 2, "sequence_length": 16,
        "batch_size": 4, "steps": 24, "steps_per_call": 4, "evaluations": 3, "evaluation_tokens": 256, "seed": 1,
    }  # fmt: skip
