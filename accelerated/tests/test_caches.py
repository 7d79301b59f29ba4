"""Cache folders: private to a user, and rejected if other users can write to them."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from routelaws.accelerated import caches, cli
from routelaws.accelerated.caches import private_folder, user_cache
from routelaws.accelerated.errors import InputError, SlowerWarning

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
OTHER = 65534


@pytest.fixture
def root(tmp_path):
    before = os.umask(0o022)
    (tmp_path / "cache/programs").mkdir(parents=True)
    (tmp_path / "cache/programs/one").write_text("a program")
    yield tmp_path / "cache"
    os.umask(before)


def test_made_for_this_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "home/.cache/routelaws", "programs", "kind")
    finally:
        os.umask(before)
    assert made == tmp_path / "home/.cache/routelaws/programs/kind"
    assert {path.stat().st_mode & 0o777 for path in [made, *made.parents[:4]]} == {0o700}


def test_a_folder_that_others_can_read_alone_is_used(root):
    (root / "programs/link").symlink_to("one")  # any user may write to it, by its mode
    assert private_folder(root, "programs") == root / "programs"
    assert [path.stat().st_mode & 0o777 for path in (root, root / "programs")] == [0o755, 0o700]


def test_a_link_is_followed_once_and_its_target_is_judged(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert private_folder(tmp_path / "link", "programs") == root / "programs"
    (root / "programs").chmod(0o770)
    with pytest.raises(InputError, match="other users may write"):
        private_folder(tmp_path / "link", "programs")


def test_an_empty_folder_of_ones_own_is_made_private(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert private_folder(tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_modes_below_a_closed_folder_say_nothing(root):
    root.chmod(0o700)
    (root / "programs").chmod(0o777)
    assert private_folder(root, "programs") == root / "programs"


@pytest.mark.parametrize(("open_folder", "told"), [("", "mode 0777"), ("..", "any user may write to")])
def test_a_link_out_of_a_closed_folder_is_judged_by_its_target(root, tmp_path, open_folder, told):
    root.chmod(0o700)
    (tmp_path / "elsewhere/programs").mkdir(parents=True)
    (tmp_path / "elsewhere/programs/one").write_text("a program")
    shutil.rmtree(root / "programs")
    (root / "programs").symlink_to(tmp_path / "elsewhere/programs")
    assert private_folder(root, "programs") == tmp_path / "elsewhere/programs"
    (tmp_path / "elsewhere/programs" / open_folder).chmod(0o777)
    with pytest.raises(InputError, match=told):
        private_folder(root, "programs")


@pytest.mark.parametrize(
    ("place", "mode", "told"),
    [
        ("cache", 0o777, r"/cache: .* \(mode 0777\); name another folder with CACHES, or, .*: chmod -R go-w /.*cache$"),
        ("cache", 0o775, "mode 0775"),
        ("cache/programs", 0o757, r"/programs: .* \(mode 0757"),
        ("cache/programs/one", 0o666, "other users may write to files in it"),
        ("cache/programs/one", 0o664, "other users may write to files in it"),
        ("cache/programs/one", 0o646, "other users may write to files in it"),
        (".", 0o777, r"any user may write to /\S+ and replace it; .* chmod \+t /"),
    ],
)
def test_what_others_may_write_to_is_refused(root, place, mode, told):
    (root.parent / place).chmod(mode)
    for _ in range(2):  # the first error changes no file
        with pytest.raises(InputError, match=told):
            private_folder(root, "programs", variable="CACHES")
    (root.parent / ".").chmod(0o1777)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("mode", [0o710, 0o701])
def test_a_folder_that_others_come_past_does_not_protect_what_is_in_it(root, mode):
    (root / "programs").chmod(0o777)
    root.chmod(mode)
    with pytest.raises(InputError, match=r"/programs: .* \(mode 0777"):
        private_folder(root, "programs")


@pytest.mark.parametrize("place", ["cache", "cache/programs", "cache/programs/one"])
def test_what_another_user_owns_is_refused(root, place):
    os.chown(root.parent / place, OTHER, OTHER)
    told = "write to files in it" if place.endswith("one") else f"user {OTHER} and you are user 0; .*: chown -R 0 /"
    with pytest.raises(InputError, match=told):
        private_folder(root, "programs")


@pytest.fixture
def without_rights(tmp_path):
    """Act as a user without rights, because root has all rights."""
    if os.geteuid() == 0:
        os.seteuid(OTHER)
        yield
        os.seteuid(0)
    else:
        yield


def test_a_place_that_cannot_be_made_is_an_error_of_the_system(root, without_rights):
    with pytest.raises(OSError):
        private_folder(Path("/proc/cache"))


def test_a_user_without_a_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileNotFoundError, match="no home folder"):
        user_cache()


LIMITS = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1073741824", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
OWN = {"JAX_COMPILATION_CACHE_MAX_SIZE": "7"}


def test_programs_are_not_kept_without_jaxlib(root, monkeypatch):
    """`pip install --no-deps` leaves it out; the command then names a missing package."""

    def absent(package):
        raise PackageNotFoundError(package)

    environment = {caches.CACHE: str(root)}
    monkeypatch.setattr(caches, "version", absent)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches.os, "environ", environment)
        caches.keep_programs()
    assert environment == {caches.CACHE: str(root)}


@pytest.mark.parametrize(
    ("given", "jaxlib", "added"),
    [
        ({}, "0.10.2", {caches.PROGRAMS: "ROOT/programs"} | LIMITS),
        (OWN, "1.0.0", {caches.PROGRAMS: "ROOT/programs"} | LIMITS | OWN),
        ({}, "0.9.9", {}),
        ({caches.PROGRAMS: ""}, "0.10.2", {}),
        ({caches.PROGRAMS: "ROOT/mine"}, "0.10.2", {}),
        ({caches.PROGRAMS: "gs://bucket/mine"}, "0.10.2", {}),
        ({caches.CACHE: "ROOT/programs/one"}, "0.10.2", {}),  # a file
    ],
)
def test_programs_are_kept_where_the_user_says(root, monkeypatch, given, jaxlib, added):
    """JAX reads the variables when it is imported, so they are not set later."""
    monkeypatch.chdir(root)
    monkeypatch.setattr(caches, "version", lambda package: jaxlib)
    given, added = ({name: value.replace("ROOT", str(root)) for name, value in of.items()} for of in (given, added))
    environment = {caches.CACHE: str(root)} | given
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches.os, "environ", environment)
        caches.keep_programs()
        assert environment == {caches.CACHE: str(root)} | given
        patch.delitem(sys.modules, "jax", raising=False)
        caches.keep_programs()
    assert environment == {caches.CACHE: str(root)} | given | added
    assert (root / "mine").is_dir() == (given.get(caches.PROGRAMS) == f"{root}/mine") and not (root / "gs:").exists()


def test_an_open_folder_of_programs_is_refused_with_its_variable(root, monkeypatch):
    root.chmod(0o777)
    monkeypatch.setenv(caches.PROGRAMS, str(root))
    with pytest.raises(InputError, match=f"name another folder with {caches.PROGRAMS}"):
        caches.keep_programs()


LOOP = """
import warnings
from importlib.metadata import PackageNotFoundError
warnings.simplefilter("always")
from loop import twice
print(twice(2), sum(twice.stats.cache_hits.values()))
"""


def test_a_command_prints_a_line_if_it_is_slower(capsys, monkeypatch):
    """A command hides NumPy's warnings."""
    monkeypatch.setattr(sys, "warnoptions", [])
    with cli._warnings():
        warnings.warn("a cache is not used", SlowerWarning, stacklevel=1)
        warnings.warn("divide by zero", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "routelaws: a cache is not used\n"


@pytest.mark.slow
def test_loops_are_not_read_from_a_folder_that_others_may_write_to(tmp_path):
    source = "from routelaws.accelerated.kernels.compile import jit\n\n@jit\ndef twice(x):\n    return 2 * x\n"
    (tmp_path / "loop.py").write_text(source)
    cache = tmp_path / "cache"

    def said(**more) -> tuple[list[str], str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path)} | more
        done = subprocess.run([sys.executable, "-c", LOOP], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split(), done.stderr

    assert said(NUMBA_CACHE_DIR=str(cache)) == (["4", "0"], "")
    cache.chmod(0o777)
    numbers, line = said(NUMBA_CACHE_DIR=str(cache))
    assert numbers == ["4", "0"] and len(re.findall("may write to it", line)) == 1 and "NUMBA_CACHE_DIR" in line
    assert "SlowerWarning: loops are compiled again" in line
    shutil.rmtree(cache)
    beside = {name: value for name, value in os.environ.items() if name == "NUMBA_CACHE_DIR"}
    assert not beside and [said()[0] for _ in range(2)] == [["4", "0"], ["4", "1"]]
