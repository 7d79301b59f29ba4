"""Atomic writes, and the lock of a folder: a single holder, errors or waiting, and release at the end of a process."""

import ast
import errno
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from routelaws import accelerated, conformance
from routelaws.accelerated.errors import InputError, StorageError
from routelaws.accelerated.files import (
    REMEDIES,
    append_to,
    file_line,
    locked,
    read_bytes,
    read_npy,
    remove_left,
    storage_errors,
    storage_line,
    write_atomically,
    write_once,
)

HOLDER = """
import sys, time
from routelaws.accelerated.files import locked
with locked(sys.argv[1], wait=False, holder="another sweep"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def hold(folder, wait=False):
    with locked(folder, wait=wait, holder="another sweep"):
        return True


def test_refused_while_another_process_holds_it_and_free_when_that_is_killed(tmp_path, holder):
    for _ in range(2):  # an error changes nothing
        with pytest.raises(InputError) as caught:
            hold(tmp_path)
        assert (
            str(caught.value)
            == f"{tmp_path}: another sweep is running there; wait until it ends or choose another --out"
        )
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert hold(tmp_path) and hold(tmp_path)


def test_waits_until_the_process_that_holds_it_is_killed(tmp_path, holder):
    done = threading.Event()
    thread = threading.Thread(target=lambda: hold(tmp_path, wait=True) and done.set(), daemon=True)
    thread.start()
    assert not done.wait(0.3)
    holder.send_signal(signal.SIGKILL)
    assert done.wait(30)
    thread.join()


def test_within_a_process_too_and_free_after_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="of ours"), locked(tmp_path, wait=True, holder="this run"):
        with pytest.raises(InputError, match="another sweep is running there"):
            hold(tmp_path)
        raise RuntimeError("of ours")
    assert hold(tmp_path)


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / ("n" * 255)
    write_atomically(path, "old\n")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new\n")
    assert path.read_bytes() == b"old\n" and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_no_link_is_followed(tmp_path, monkeypatch, write):
    """The write follows no link, neither at the path of the file nor at the path of the temporary file."""
    other = tmp_path / "other"
    other.write_text("kept")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    (tmp_path / ".writing-0").symlink_to(other)
    with pytest.raises(FileExistsError):
        write(tmp_path / "file", "new")
    (tmp_path / ".writing-0").unlink(missing_ok=True)
    (tmp_path / "file").symlink_to(other)
    write(tmp_path / "file", "new")
    assert other.read_text() == "kept" and (tmp_path / "file").is_symlink() == (write is write_once)


def test_devices_and_pipes_are_no_files_to_write(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="not a file"):
            write_atomically(path, "new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no shell puts files there")
def test_what_a_shell_puts_in_place_of_a_command_is_read(tmp_path):
    """The test reads the pipe of <(command) in bash. A named pipe is an error."""
    end, other = os.pipe()
    with os.fdopen(other, "wb") as writer:
        writer.write(b"a,b\n")
    with os.fdopen(end):
        assert read_bytes(f"/dev/fd/{end}") == b"a,b\n"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a file"):
        read_bytes(tmp_path / "pipe")


def test_lines_are_added_through_no_link(tmp_path):
    with append_to(tmp_path / "log") as log:
        log.write("one\n")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(OSError):
        append_to(tmp_path / "link")
    assert (tmp_path / "log").read_text() == "one\n"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "; free some space"), (errno.EDQUOT, "; free some space of your quota"),
        (errno.EFBIG, "; allow larger files"), (errno.EROFS, "; choose another --out, or make it writable"),
        (errno.EACCES, "; name another path, or change the permissions of this path"),
        (errno.EPERM, "; name another path, or change the permissions of this path"),
        (errno.ENAMETOOLONG, "; choose a shorter name"), (errno.ELOOP, "; remove the loop of symbolic links"),
        (errno.EIO, ""),
    ],
)  # fmt: skip
def test_a_file_that_a_command_cannot_use_has_its_remedy(number, remedy):
    """A folder that cannot be written has other remedies than a file that cannot be read."""
    reason = os.strerror(number)
    assert file_line(OSError(number, reason, b"a/file")) == f"a/file: {reason}{remedy}"
    assert file_line(OSError(number, reason)) == f"{reason}{remedy}"
    of_out = REMEDIES.get(number, "make it readable and writable")
    assert (
        storage_line("out", reason, number)
        == f"out: {reason}; {of_out} and repeat the command (complete files are kept)"
    )
    assert number not in (errno.EACCES, errno.EPERM) or of_out == "choose another --out, or make it writable"


def test_an_error_of_storage_names_the_file_or_the_folder():
    for error, where in ((OSError(errno.EIO, "broken", "a"), "a"), (OSError(errno.EIO, "broken"), "out")):
        with (
            pytest.raises(StorageError, match=f"^{where}: broken; make it readable and writable"),
            storage_errors("out"),
        ):
            raise error
    with pytest.raises(BrokenPipeError), storage_errors("out"):
        raise BrokenPipeError("the reader closed the pipe")


KILLED = """
import os, sys
from pathlib import Path
from routelaws.accelerated import files
os.replace = lambda *paths: os._exit(9)
files.write_atomically(Path(sys.argv[1]), "new")
"""


def test_what_a_killed_process_left_is_removed(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")]).returncode == 9
    (tmp_path / ".kept").write_text("")
    assert len(os.listdir(tmp_path)) == 2
    remove_left(tmp_path)
    assert os.listdir(tmp_path) == [".kept"]


WRITERS = {
    "dump", "save", "savefig", "savetxt", "savez", "savez_compressed", "to_csv", "to_parquet", "tofile", "write_bytes",
    "write_text",
}  # fmt: skip
FOLDERS = [Path(accelerated.__file__).parent, Path(conformance.__file__).parent]
ALLOWED = {
    ("files.py", "open"),  # the writer, and appended lines of a log
    ("training/text/tokens.py", "open"),  # tokens, "xb", in a new folder
    ("training/runs/run_folder.py", "save"), ("findings/style.py", "savefig"),  # into memory
    ("engine/failing_calls.py", "savez"), ("inspection/trace.py", "savez_compressed"),  # into memory
    ("training/loop.py", "save"), ("conversion/folder.py", "save"),  # a checkpoint, by Orbax
    ("cli.py", "open"), ("__main__.py", "open"),  # os.devnull
}  # fmt: skip


def writes(call: ast.Call) -> bool:
    """Return whether a call may write to a named file."""
    if name_of(call) not in ("open", "fdopen"):
        return name_of(call) in WRITERS
    words = [ast.unparse(word) for word in [*call.args, *(each.value for each in call.keywords)]]
    return any(
        re.fullmatch("'[rbt]*[wax+][wabtx+]*'", word) or re.search(r"O_(WRONLY|RDWR)|flags", word) for word in words
    )


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def test_nothing_else_writes_files():
    """Every write of the package uses `write_atomically`, which follows no links and leaves no partial file."""
    found = set()
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            place = path.relative_to(folder).as_posix()
            if not place.startswith(("tests/", "suite/")):
                calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
                found |= {(place, name_of(call)) for call in calls if writes(call)}
    assert found == ALLOWED


@pytest.mark.parametrize("links", [True, False])
def test_of_several_that_write_a_file_once_the_first_counts(tmp_path, monkeypatch, links):
    path = tmp_path / "file"

    def refuse(*_):
        raise PermissionError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for content in ("first\n", "second\n"):
        write_once(path, content)
        assert path.read_bytes() == b"first\n"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize("content", [
    b"", b"PK\x03\x04" + bytes(40), b"\x80\x04N.", b"a text\n", npy("{'descr': '<f8',\n"), npy("((((((((("),
    npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", bytes(8)), b"\x93NUMPY\x09\x00\x0a\x00",
    *(npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({size},), }}") for size in ("10**99", 10**17, -1)),
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\x80\x04N."),
])  # fmt: skip
def test_a_file_without_an_array_is_named_in_one_line(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match="is not an array in a .npy file") as error:
        read_npy(tmp_path / "x.npy")
    assert len(str(error.value).splitlines()) == 1


def test_an_array_is_read_as_it_was_saved(tmp_path):
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2]
    np.save(tmp_path / "x.npy", array)
    assert np.array_equal(read_npy(tmp_path / "x.npy"), array)
    with pytest.raises(FileNotFoundError):
        read_npy(tmp_path / "y.npy")
