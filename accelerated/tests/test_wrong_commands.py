"""Commands and tables that are wrong or in doubt: each has its approved message and exit code.

The commands are the lines `$ COMMAND (CODE)` of the approved file. To add one, write its line there and `make approve`.
"""

import re
import shlex
from pathlib import Path

import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.commands.laws import downstream, plan, predict, reproduce

from .small_tables import LAW

HEAD = "hyper_id,step,router_type,num_experts,dense_parameter_count,loss_validation"
NAMED = "run,step,router_type,num_experts,dense_parameter_count,loss_validation"
TABLES = {
    "empty.csv": "",
    "header.csv": HEAD + "\n",
    "zero.csv": HEAD + "\n1,\0\n",
    "objects.csv": '{"hyper_id": 1}\n',
    "semicolons.csv": HEAD.replace(",", ";") + "\n",
    "twice.csv": HEAD + ",step\n",
    "nothing.jsonl": "{}\n{}\n",
    "short.csv": HEAD + "\n1,2\n" + HEAD + "\n",
    "list.jsonl": '[1]\n{"a": 1, "a": 2}\n{"a"\n',
    "cut.csv.gz": "not gzip",
    "missing.csv": "hyper_id,step\n1,2\n",
    "wrong.csv": HEAD + "\n-1,1.5,,0,x,0\n1,2,Hash,4,1e7,nan\n",
    "infinite.csv": HEAD + ",capacity_factor\n1,2,Hash,4,inf,inf,inf\n2,2,Hash,4,1e7,1e40,inf\n",
    "blank.csv": HEAD + "\n1,2,Dense,1,1e7,nan\n2,2,Hash,4,1e7,\n",
    "dense.csv": HEAD + "\n1,2,Dense,4,1e7,3\n",
    "routed.csv": HEAD + "\n1,2,Hash,1,1e7,3\n",
    "moved.csv": HEAD + "\n1,2,Hash,4,1e7,3\n1,3,Hash,8,1e7,3\n",
    "shares.csv": HEAD + ",k,routing_frequency,dropped_fraction,flop_increase,seed\n1,2,Hash,4,1e7,3,9,2,-1,0,1.5\n",
    "same.csv": HEAD + "\n1,2,Hash,4,1e7,3\n1,2,Hash,4,1e7,2\n",
    "mixtral.json": '{"model_type": "mixtral", "hidden_size": 4096, "vocab_size": 32000, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, '
    '"num_experts_per_tok": 2}',
    "many.csv": HEAD + "\n0,0,Mine,2097152,1e7,3\n",
}
NAMED_TABLES = {
    "most.csv": NAMED + "\n" + "".join(f"r{i % 4},{i},Hash,4,1e7,3\n" for i in range(5)),
    "ends.csv": NAMED + ",state\nr,1,Hash,4,1e7,3,finished\nr,2,Hash,4,1e7,3,finished\n",
    "back.csv": NAMED + "\nr,1,Hash,4,1e7,3\nr,3,Hash,4,1e7,3\nr,2,Hash,4,1e7,3\n",
    "source.csv": HEAD + ",source\n1,2,Hash,4,1e7,3,mine\n",
    "panel.csv": "Step,a - val_loss,a - val_loss__MIN,a - val_loss__MAX\n1,3,3,3\nx,2,2,2\n",
    "units.csv": "tokens,num_experts,loss_validation\n-1,1,3\n",
    "ids.csv": NAMED + ",id\nr,1,Hash,4,1e7,3,a\nr,2,Hash,4,1e7,3,b\n",
}
"""Tables with names of runs. `convert` doubts that the rows of a name are the evaluations of one run."""


@pytest.fixture
def tables(text_file, tmp_path, monkeypatch):
    cells = [(n, e) for n in (1e7, 1e8, 1e9) for e in (1, 4, 16)]
    rows = [
        {"hyper_id": i, "step": 10, "router_type": "Dense" if e == 1 else "Hash", "num_experts": e, "seed": 1,
         "dense_parameter_count": n, "loss_validation": LAW.loss(n, e)}
        for i, (n, e) in enumerate(cells)
    ]  # fmt: skip
    for name in ("runs", "other"):
        pandas.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    routers = [row | {"router_type": "S-Base", "hyper_id": 9 + i} for i, row in enumerate(rows) if i % 3]
    whole = pandas.DataFrame(rows + routers).assign(k=1, batch_size=64, sequence_length=512)
    whole["total_parameter_count"] = whole["dense_parameter_count"] * (whole["num_experts"] + 1) / 2
    whole.to_csv(tmp_path / "whole.csv", index=False)
    (tmp_path / "leverages.csv").write_text("activation,tian_granularity,flops,leverage\n0.5,2,1e18,2\n0.25,2,1e19,3\n")
    (tmp_path / "tasks.csv").write_text("run,params,tokens,acc_a\nx,1e8,1e9,0.5\ny,1e9,1e10,0.6\n")
    (tmp_path / "losses.csv").write_text("params,tokens,loss_text,acc_a,guess_a\n1e8,1e9,3,0.5,0\n1e9,1e10,2,0.6,0\n")
    (tmp_path / "small.csv").write_text("run,params,tokens,acc_a\nx,0.1,1e9,0.5\ny,1e9,-1,0.6\n")
    for name, text in (TABLES | NAMED_TABLES).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "log.csv").write_text("run,iteration,E,N,val_loss\na,1,4,1e7,3\n")
    (tmp_path / "lines.txt").symlink_to(text_file)
    (tmp_path / "grid.toml").write_text("[base]\nheads = 1\n[[runs]]\nseed = [1, 2, 3]\n")
    for command in (downstream, plan, predict, reproduce):  # errors in flags need no table
        name = "released_table" if command is downstream else "released_runs"
        monkeypatch.setattr(command, name, lambda *_: pytest.fail("a table was fetched"))
    monkeypatch.setenv("ROUTELAWS_CACHE", str(tmp_path / "cache"))  # each tokenizer is trained here
    monkeypatch.chdir(tmp_path)


def test_each_wrong_command_has_its_approved_message(tables, approved, capsys):
    text, lines = (Path(__file__).parent / "approved" / "wrong-commands.txt").read_text(encoding="utf-8"), []
    commands = re.findall(r"^\$ (.*) \(\d+\)$", text, re.MULTILINE)
    assert {*TABLES, *NAMED_TABLES} <= {*" ".join(commands).split()}
    for command in commands:
        code = main(shlex.split(command))
        lines += [f"$ {command} ({code})", *capsys.readouterr().err.splitlines()]
    assert not any(Path(name).exists() for name in ("out", "paper", "t.csv", "x", "run/results.csv", "run/checkpoints"))
    approved("wrong-commands.txt", "\n".join(lines) + "\n")
