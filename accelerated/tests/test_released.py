"""The released tables: downloaded once, always checked, never replaced; and the runs that the package contains."""

import hashlib
import http.server
import socket
import threading

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.results.runs import read
from routelaws.accelerated.tables import released
from routelaws.accelerated.tables.released import (
    TABLES,
    Released,
    data_folder,
    last_evaluations_csv,
    released_runs,
    released_table,
)
from routelaws.accelerated.tables.schema import TABLE_COLUMNS
from routelaws.accelerated.tables.table import read_table
from routelaws.conformance.suite.strategies import released_file

CONTENT = b"a table of somebody else's\n" * 100


@pytest.fixture
def server(monkeypatch):
    """Yield the address of a local server with CONTENT at /table.csv, and the requested paths."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if self.path == "/table.csv" else 404)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", asked
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Return a function that sets the source of the table. Downloads go to a new folder."""
    folder = tmp_path / "new" / "data"
    monkeypatch.setenv("ROUTELAWS_DATA", str(folder))

    def place(url, content=CONTENT):
        sha256 = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(TABLES, "curves.csv.gz", Released(url, sha256, "none"))
        return folder / "curves.csv.gz"

    return place


def test_downloaded_once_and_then_used_offline(server, table):
    address, asked = server
    path = table(f"{address}/table.csv")
    assert released_table() == path and path.read_bytes() == CONTENT
    table("http://127.0.0.1:1/nobody")
    assert released_table() == path and asked == ["/table.csv"]
    assert [file.name for file in path.parent.iterdir()] == ["curves.csv.gz"]


def test_what_has_another_hash_is_not_kept(server, table):
    path = table(f"{server[0]}/table.csv", b"what was meant")
    with pytest.raises(InputError, match="sent a file with another SHA-256, which was deleted") as caught:
        released_table()
    assert "\n" not in str(caught.value) and list(path.parent.iterdir()) == []


def test_a_file_of_other_content_is_named_and_stays(server, table):
    path = table(f"{server[0]}/table.csv")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"my own notes")
    with pytest.raises(InputError, match="is not the released table") as caught:
        released_table()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == b"my own notes" and server[1] == []


def test_a_table_that_is_not_on_the_server(server, table):
    path = table(f"{server[0]}/elsewhere")
    with pytest.raises(InputError, match=r"could not be downloaded from http://127.* \(HTTP 404\)") as caught:
        released_table()
    assert str(path) in str(caught.value) and list(path.parent.iterdir()) == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}/table.csv", "https://nowhere.invalid/table.csv"])
def test_no_network_is_one_line_that_says_what_to_do(monkeypatch, table, address):
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening, so no server answers
        path = table(address.format(port=free.getsockname()[1]))
        with pytest.raises(InputError, match=r"could not be downloaded .*\(ConnectionError\)") as caught:
            released_table()
    message = str(caught.value)
    assert str(path) in message and "ROUTELAWS_DATA" in message and "\n" not in message


def test_a_folder_that_cannot_be_made(server, table, monkeypatch, tmp_path):
    table(f"{server[0]}/table.csv")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROUTELAWS_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(InputError, match="ROUTELAWS_DATA can name another folder"):
        released_table()


def test_an_unknown_name():
    with pytest.raises(InputError, match="'curves.csv' is not known; allowed: curves.csv.gz"):
        released_table("curves.csv")


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    for name in ("ROUTELAWS_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "routelaws" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(data_folder()) == "/cache/routelaws/data"
    monkeypatch.setenv("ROUTELAWS_DATA", "/here")
    assert str(data_folder()) == "/here"


def test_the_address_has_a_fixed_commit_and_hash():
    for name, (url, sha256, licence, make) in TABLES.items():
        assert url.startswith("https://") and licence
        assert url.endswith(".gz" if make is None and name.endswith(".gz") else ".csv") or "/tar.gz/" in url
        assert any(len(part) == 40 and int(part, 16) for part in url.split("/") if len(part) == 40)
        assert len(sha256) == 64 and int(sha256, 16)


@pytest.mark.released
def test_the_released_table_is_the_one_that_is_pinned(monkeypatch):
    monkeypatch.setattr(released, "_download", None)  # a download would raise an error
    path = released_file("curves.csv.gz")
    assert released_table() == path
    frame = read_table(path)
    assert len(frame) == 5799 and frame["hyper_id"].nunique() == 223 and frame.attrs["remarks"] == []


def test_the_package_has_the_last_evaluation_of_each_run_with_its_attribution():
    frame = read_table(released_runs())
    assert frame["hyper_id"].tolist() == list(range(223)) and set(frame["step"]) == {248_000, 249_000, 250_000}
    assert tuple(frame.columns) == TABLE_COLUMNS[:22] and frame.attrs["remarks"] == []
    beside = released_runs().with_suffix(".txt").read_text(encoding="utf-8")
    commit = TABLES["curves.csv.gz"].url.split("/")[-3]
    for words in ("CC BY 4.0", "https://creativecommons.org/licenses/by/4.0/", "DeepMind", "Change: ", commit):
        assert words in beside, words


def test_a_condition_on_the_step_takes_the_whole_table(monkeypatch):
    monkeypatch.setattr(released, "released_table", lambda: "the whole table")
    assert released_runs("seed == 42 and step <= 100000") == "the whole table"
    assert {released_runs(rows) for rows in (None, "clark", "router_type == 'step'")} == {released_runs()}


@pytest.mark.released
def test_the_runs_of_the_package_are_those_of_the_whole_table():
    path = released_file("curves.csv.gz")
    assert released_runs().read_bytes() == last_evaluations_csv(path)
    for rows in ("clark", None):
        fits = [[fit.best for fit in read(each).where(rows).fit("dense")] for each in (path, released_runs())]
        assert repr(fits[0]) == repr(fits[1])
