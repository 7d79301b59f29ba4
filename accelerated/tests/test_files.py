"""Files that are written whole, and the lock of a folder: one holder, refused or waited for, free when it dies."""

import signal
import subprocess
import sys
import threading

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.files import locked, write_atomically

HOLDER = """
import sys, time
from routelaws.accelerated.files import locked
with locked(sys.argv[1], wait=False, holder="another sweep"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def hold(folder, wait=False):
    with locked(folder, wait=wait, holder="another sweep"):
        return True


def test_refused_while_another_process_holds_it_and_free_when_that_is_killed(tmp_path, holder):
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(InputError) as caught:
            hold(tmp_path)
        assert str(caught.value) == f"{tmp_path}: another sweep is running there; wait for it or choose another --out"
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
    path = tmp_path / "file"
    write_atomically(path, "old\n")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new\n")
    assert path.read_bytes() == b"old\n"
