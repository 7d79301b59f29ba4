import hashlib
import io
import json
import tarfile

import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables import released
from routelaws.accelerated.tables.accuracies import loss_name, read_accuracies, read_guess_rates
from routelaws.accelerated.tables.released import downstream_tasks, overtraining_runs

LONG = """,tokens,benchmark,metric_type,score,tpr
0,2.0e9,arc_easy,acc,0.40,20.0
1,2.0e9,arc_easy,acc_stderr,0.01,20.0
2,2.0e9,arc_easy,loglikelihood,-21.8,20.0
3,2.0e9,c4,cross_entropy_loss,3.9,20.0
4,2.0e9,humaneval-py,pass@16,0,20.0
5,2.0e9,humaneval-py,pass@16_stderr,,20.0
6,8.0e9,arc_easy,acc,0.50,80.0
7,8.0e9,arc_easy,acc,0.60,80.0
8,8.0e9,c4,cross_entropy_loss,3.5,80.0
"""
"""Rows of the published table of the downstream paper that lacks parameters and FLOPs."""

WIDE = """run,params,tokens,flops,loss_own,acc_quiz
a,1e6,2e7,,3.5,0.3
b,2e6,4e7,5e14,3.25,
"""


def write(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_papers_own_layout(tmp_path):
    table = read_accuracies(write(tmp_path, LONG))
    assert table.parameters.tolist() == [1e8, 1e8] and table.tokens.tolist() == [2e9, 8e9]
    assert table.flops.tolist() == [6 * 1e8 * 2e9, 6 * 1e8 * 8e9]
    assert {name: values.tolist() for name, values in table.losses.items()} == {"c4": [3.9, 3.5]}
    assert set(table.accuracies) == {"arc_easy acc", "humaneval-py pass@16"}
    assert table.accuracies["arc_easy acc"].tolist() == [0.4, 0.5], "of a row that appears twice the first counts"
    assert table.accuracies["humaneval-py pass@16"][0] == 0 and np.isnan(table.accuracies["humaneval-py pass@16"][1])
    said = " ".join(table.remarks)
    assert "tpr is nominal" in said and "1 row skipped: an earlier row" in said and "3 rows of other metrics" in said


def test_parameters_and_flops_are_taken_as_they_stand_and_derived_where_blank(tmp_path):
    lines = LONG.splitlines()
    known = [lines[0] + ",params,flops", *(line + ",1.1e8,1.5e18" for line in lines[1:4])]
    table = read_accuracies(write(tmp_path, "\n".join(known)))
    assert (table.parameters.tolist(), table.flops.tolist()) == ([1.1e8], [1.5e18])
    assert not any("6 ·" in remark for remark in table.remarks)
    table = read_accuracies(write(tmp_path, "\n".join([*known, lines[7] + ",,"])))
    assert (table.parameters.tolist(), table.flops.tolist()) == ([1.1e8, 1e8], [1.5e18, 6 * 1e8 * 8e9])


def test_one_row_a_run(tmp_path):
    table = read_accuracies(write(tmp_path, WIDE))
    for names, chosen in ((("c4", "validation"), "validation"), (("own", "c4"), "own")):
        assert loss_name(table._replace(losses=dict.fromkeys(names))) == chosen
    assert table.run.tolist() == ["a", "b"] and table.flops.tolist() == [6 * 1e6 * 2e7, 5e14]
    assert table.losses["own"].tolist() == [3.5, 3.25]
    assert table.accuracies["quiz"][0] == 0.3 and np.isnan(table.accuracies["quiz"][1])


@pytest.mark.parametrize(("row", "said"), [
    ("100,2000,,", ["params: 100 is implausible; needed: 10000 to 1e+13"]),
    ("1e8,2e9,1.2,", ["row 1, column flops: '1.2'; needed: 1.2e+18 to 7.114e+18 by 6 N tokens (so in 1 of 1 rows)"]),
    ("1e8,2e9,4e17,", ["flops: differs in 1 of 1 rows (row 1: 4e+17, but 1.2e+18 to 7.114e+18 by 6 N tokens)"]),
    ("1e8,2e9,3e18,", []),
])  # fmt: skip
def test_numbers_in_other_units_have_a_remark(tmp_path, row, said):
    told = read_accuracies(write(tmp_path, f"params,tokens,flops,acc_quiz\n{row}0.5\n")).remarks
    assert [
        text.partition(";")[0] if said == [] else text[: len(said[0])] for text in told if "6 ·" not in text
    ] == said


def test_a_remark_on_derived_parameters_names_columns_of_the_table(tmp_path):
    rows = "tokens,benchmark,metric_type,score,tpr\n2000,c4,cross_entropy_loss,3.9,20\n"
    told = read_accuracies(write(tmp_path, rows)).remarks
    assert "tokens / tpr: 100 is implausible; needed: 10000 to 1e+13" in told


def test_guess_rates(tmp_path):
    rates = read_guess_rates(write(tmp_path, "task,task_type,random_accuracy\nquiz,choice,0.2\n"))
    assert rates == {"quiz": 0.2}


def archive(path, files: dict[str, str]):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"scaling-1234/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def number(text: str):
    return int(text) if text.isdigit() else float(text)


def repository(rows: list[dict]) -> dict[str, str]:
    files = {}
    for row in rows:
        losses = [
            {"loss": number(row[name]), "val_data": [f"eval_data/val/{name.removeprefix('loss_')}/shard.tar"]}
            for name in row
            if name.startswith("loss_")
        ]
        given = {name: number(row[name]) for name in ("params", "params_no_embed", "tokens", "chinchilla_multiplier")}
        run = {"name": row["run"], "dataset_name": row["training_set"], "hyperparameters": given, "results": losses}
        scores = {name.removeprefix("acc_"): number(row[name]) for name in row if name.startswith("acc_")}
        files[f"exp_data/models/{row['run']}.json"] = json.dumps(run)
        files[f"exp_data/evals/evaluation_{row['run']}_heavy.json"] = json.dumps({"eval_metrics": {"icl": scores}})
    return files


def test_small_files_become_one_table_that_is_checked(tmp_path, monkeypatch):
    row = {"run": "c4-1", "training_set": "c4", "params": "10", "params_no_embed": "5", "tokens": "200",
           "chinchilla_multiplier": "1.0", "loss_c4": "3.5", "acc_quiz": "0.25"}  # fmt: skip
    smaller = row | {"run": "c4-0", "params": "5", "tokens": "400"}
    files = repository([row | {"run": "c4-2", "tokens": "400"}, row, smaller])
    packed = archive(tmp_path / "here.tar.gz", files)
    wanted = b"run,training_set,params,params_no_embed,tokens,chinchilla_multiplier,loss_c4,acc_quiz\r\n"
    wanted += b"c4-0,c4,5,5,400,1.0,3.5,0.25\r\nc4-1,c4,10,5,200,1.0,3.5,0.25\r\nc4-2,c4,10,5,400,1.0,3.5,0.25\r\n"
    assert overtraining_runs(packed) == wanted

    import pooch

    monkeypatch.setenv("ROUTELAWS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: str(packed))
    entry = released.Released("an archive", hashlib.sha256(wanted).hexdigest(), "MIT", overtraining_runs)
    monkeypatch.setitem(released.TABLES, "runs.csv", entry)
    assert released.released_table("runs.csv").read_bytes() == wanted
    monkeypatch.setitem(released.TABLES, "other.csv", entry._replace(sha256="0" * 64))
    with pytest.raises(InputError, match="has files that give another other.csv, which was deleted"):
        released.released_table("other.csv")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["runs.csv"]

    name, evaluation = "exp_data/models/c4-1.json", "exp_data/evals/evaluation_c4-1_heavy.json"
    for changed, words in (
        ({name: '{"name": "c4-1"}'}, f"{name}: .* is missing"), ({name: "{"}, f"{name}: is not valid JSON"),
        ({name: files[name].replace('"loss": 3.5', '"loss": "x"')}, f"{name}: results.0..loss is 'x'; "),
        ({evaluation: '{"eval_metrics": {"icl": {"quiz": "x"}}}'}, f"{evaluation}: .*quiz is 'x'; a number is needed"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            overtraining_runs(archive(tmp_path / "broken.tar.gz", files | changed))
    del files[evaluation]
    with pytest.raises(InputError, match=f"holds no {evaluation}"):
        overtraining_runs(archive(tmp_path / "broken.tar.gz", files))
    with pytest.raises(InputError, match=r"holds no exp_data/models/\*.json"):
        overtraining_runs(archive(tmp_path / "empty.tar.gz", {"readme": "x"}))
    with pytest.raises(InputError, match="cannot be read as an archive"):
        overtraining_runs(write(tmp_path, "x", "text.tar.gz"))


def test_tasks_of_the_repository(tmp_path):
    text = 'Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline\nquiz,"a, b",multiple choice,0,40,25\n'
    made = downstream_tasks(archive(tmp_path / "a.tar.gz", {"exp_data/eval_metadata.csv": text}))
    assert made == b"task,task_type,num_examples,random_accuracy\r\nquiz,multiple choice,40,0.25\r\n"
