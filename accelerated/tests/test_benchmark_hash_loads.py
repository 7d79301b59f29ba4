"""The benchmark of the hashes' loads: its numbers are those of a table that is counted by hand."""

import pytest

from routelaws.accelerated.benchmarks import hash_loads


def test_a_small_run(capsys, tmp_path):
    """Five tokens with shares 60, 30, 20, 15 and 12 of 137, three experts: 0 has the first and the fourth of them."""
    path = tmp_path / "table.md"
    hash_loads.main(["--sizes", "5x3x1x1", "20x2x2x1", "--markdown", str(path)])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "sets"
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in path.read_text().splitlines()]
    assert len(table) == len(lines) + 2 and table[0] == list(hash_loads.HEAD)
    rows = {(row[0], row[1]): row[2:] for row in table[2:]}
    assert rows["5x3x1x1", "modulo"] == [f"{3 * 75 / 137:.2f}"] * 2 + [f"{3 * 60 / 137:.2f}", "3"]
    assert rows["5x3x1x1", "position"][0] == "1.00" and rows["20x2x2x1", "modulo"][3] == "6"
    assert ("5x3x1x1", "multi") not in rows and ("20x2x2x1", "bigram") not in rows
    assert len(rows) == 8 + 8 and all(float(row[0]) >= float(row[2]) for row in rows.values()), "below the least"


def test_pairs_are_counted(monkeypatch):
    """Of two tokens with shares 2/3 and 1/3, the first at expert 0 of both tables, the pairs are 5/9 and 4/9."""
    from routelaws.reference.configuration import ModelConfig

    monkeypatch.setattr(hash_loads, "build", lambda *_: hash_loads.np.array([[0, 1], [0, 1]]))
    config = ModelConfig(vocab_size=2, d_model=2, heads=1, router="hash", experts=2, hash="bigram")
    assert hash_loads.measure(config, 1, 0).largest == pytest.approx(10 / 9)


@pytest.mark.parametrize(
    "options", [["--sizes", "5x3"], ["--sizes", "5x3x1x4"], ["--hashes", "md5"], ["--positions", "0"], ["--seed", "-1"]]
)
def test_what_is_wrong_is_named(options, capsys):
    with pytest.raises(SystemExit) as caught:
        hash_loads.main(options)
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err
