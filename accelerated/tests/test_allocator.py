"""Huge pages are asked for where glibc can give them, once, and never against what the user has set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from routelaws.accelerated.benchmarks import worker
from routelaws.accelerated.commands import train
from routelaws.accelerated.training import allocator
from routelaws.accelerated.training.workers import thread_environment

HUGE = "glibc.malloc.hugetlb=1"
needs_glibc = pytest.mark.skipif(not allocator.has_glibc(), reason="another C library")

COMMAND = """
import os, sys
from routelaws.accelerated import cli
cli._obey = lambda command, rest: print(command, rest, os.environ.get("GLIBC_TUNABLES"))
print("begun", flush=True)
sys.exit(cli.main())
"""


def said(code: str, *arguments: str, tunables: str | None = None) -> list[str]:
    """Return the lines that a process prints, which starts with these tunables alone."""
    environment = {name: value for name, value in os.environ.items() if name != allocator.TUNABLES}
    environment |= {} if tunables is None else {allocator.TUNABLES: tunables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_glibc
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GLIBC_TUNABLES": HUGE}),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, {"GLIBC_TUNABLES": f"glibc.malloc.check=1:{HUGE}"}),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {}),
    ],
)
def test_what_the_user_has_set_stays(before, after):
    assert allocator.huge_pages(before) == after


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert allocator.huge_pages({}) == {}


@needs_glibc
def test_training_begins_once_more_with_the_same_words():
    assert said(COMMAND, "train", "--out", "a b") == ["begun", "begun", f"train ['--out', 'a b'] {HUGE}"]


@needs_glibc
def test_training_does_not_begin_again_where_the_user_has_chosen():
    chosen = "glibc.malloc.hugetlb=0"
    assert said(COMMAND, "train", tunables=chosen) == ["begun", f"train [] {chosen}"]


@needs_glibc
def test_training_begins_where_the_tunables_are_taken_away():
    taken = COMMAND.replace("import os, sys", "import os, sys\nos.environ.pop('GLIBC_TUNABLES', None)")
    assert said(taken, "train") == ["begun", "begun", "train [] None"]


@pytest.mark.parametrize("code", [f"import jax{COMMAND}", COMMAND.replace("main()", "main(['train'])")])
def test_a_program_that_calls_the_command_is_not_begun_again(code):
    assert said(code, "train") == ["begun", "train [] None"]


def test_another_command_is_not_begun_again():
    assert said(COMMAND, "fit", "table.csv") == ["begun", "fit ['table.csv'] None"]


@needs_glibc
def test_those_who_train_beside_each_other_and_those_who_measure_get_them(monkeypatch):
    monkeypatch.delenv(allocator.TUNABLES, raising=False)
    assert thread_environment(1)[allocator.TUNABLES] == worker.environment(2)[allocator.TUNABLES] == HUGE


HUGE_KILOBYTES = """
import pathlib
from routelaws.accelerated.training.allocator import keep_freed_memory
keep_freed_memory()
kept = b"1" * (128 << 20)
print(sum(int(line.split()[1]) for line in pathlib.Path("/proc/self/smaps").open() if line.startswith("AnonHuge")))
"""


@needs_glibc
def test_memory_comes_in_huge_pages():
    chosen = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not chosen.exists() or "[madvise]" not in chosen.read_text():
        pytest.skip("the system gives huge pages to all or to none")
    if os.confstr("CS_GNU_LIBC_VERSION") < "glibc 2.35":
        pytest.skip("this glibc knows nothing of them")
    small, huge = (int(said(HUGE_KILOBYTES, tunables=t)[0]) for t in (None, HUGE))
    assert small < 64 << 10 < huge


CALLS = """
import sys
import jax
from routelaws.accelerated.training import allocator
if sys.argv[1] == "here":
    allocator.compute_where_called()
products = jax.jit(lambda a: jax.lax.fori_loop(0, 100, lambda i, b: a @ b, a)).lower(jax.numpy.ones((500, 500)))
print(allocator.computes_where_called(), products.compile()(jax.numpy.ones((500, 500))).is_ready())
"""


@pytest.mark.parametrize("here", [True, False])
def test_a_call_that_is_computed_where_it_is_made_returns_at_its_end(here):
    assert said(CALLS, "here" if here else "elsewhere") == [f"{here} {here}"]


@pytest.mark.parametrize("mesh", [None, "data=1"])
def test_training_computes_in_its_main_thread_but_on_a_mesh(monkeypatch, tmp_path, mesh):
    done = []
    for name in ("keep_freed_memory", "compute_where_called", "run_of"):
        monkeypatch.setattr(train, name, lambda *_, name=name: done.append(name))
    train.main(["--out", str(tmp_path), *(["--mesh", mesh] if mesh else [])])
    assert done == ["keep_freed_memory", *([] if mesh else ["compute_where_called"]), "run_of"]
