"""What the tests of the training side share: a small text, a small run, a token cache of their own."""

import os
import random
import shutil
import tempfile

import pytest

CACHE = "JAX_COMPILATION_CACHE_DIR"


def quick() -> bool:
    """Return whether this is the short run of the tests (`make test`)."""
    return os.environ.get("ROUTELAWS_PROFILE", "quick") == "quick"


def pytest_configure(config):
    """Share compiled programs between tests, processes and the runs that tests start: half of the time goes there.

    Not under a longer profile (`make test-all`): there every run compiles for itself, as a user's does.
    """
    controls = not hasattr(config, "workerinput")  # of pytest-xdist: its processes inherit the folder
    if controls and CACHE not in os.environ and quick():
        os.environ[CACHE] = tempfile.mkdtemp(prefix="routelaws-tests-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(CACHE), ignore_errors=True))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Keep the token cache of the user out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTELAWS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled():
    """Compile without optimisation, in these tests and the runs that they start: most of their time is the compiler's.

    What they look at is files, rows and lines of a log. Under a longer profile they compile as a user's run does, and
    so does `conformance/`, which checks the numbers.
    """
    if not quick():
        yield
        return
    import jax  # not before `pytest_configure` has named the cache

    before = jax.config.read("jax_disable_most_optimizations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def plain(monkeypatch):
    """Put the plain Python function in place of each compiled one: nothing is compiled."""
    import numpy as np

    from routelaws.accelerated.kernels import assignment, auction, law_fit, law_huber, law_intervals

    for module in (assignment, auction, law_fit, law_huber, law_intervals):
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A file of some 120 kB of sentences, the same in every session."""
    draw = random.Random(0)
    syllables = ["ba", "ke", "lo", "mi", "nu", "ra", "so", "ti", "vu", "ze"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    lines = (" ".join(draw.choices(words, k=draw.randint(3, 12))) + ".\n" for _ in range(2200))
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small_fields(text_file):
    """Fields of a run that takes a few seconds, most of them to compile."""
    return {
        "corpus": [str(text_file)],
        "vocab_size": 300,
        "d_model": 8,
        "heads": 1,
        "blocks": 2,
        "sequence_length": 16,
        "batch_size": 4,
        "steps": 24,
        "steps_per_call": 4,
        "evaluations": 3,
        "evaluation_tokens": 256,
        "seed": 1,
    }
