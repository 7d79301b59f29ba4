"""Commands and tables that are wrong or in doubt: each has its approved message and exit code."""

import shlex
from pathlib import Path

import pandas
import pytest

from routelaws.accelerated.cli import main
from routelaws.accelerated.commands.laws import downstream, plan, predict, reproduce

from .small_tables import LAW

COMMANDS = """
fit runs.csv runs.csv
fit nowhere.csv
fit runs.csv other.csv --law direct
fit leverages.csv --law leverage --rows seed==1
fit leverages.csv --law leverage --loss loss_c4
fit runs.csv --law leverage
fit runs.csv --law compute
fit tasks.csv --law two-stage-linear
fit tasks.csv --law repeated
fit tasks.csv --law direct --task none
fit small.csv --law direct
fit tasks.csv --law direct --rows run==1
fit tasks.csv --law direct --loss web
fit runs.csv --law hoffmann --rows seed==1
fit runs.csv --rows seed==9
fit runs.csv --rows "router_type=='hash'"
fit runs.csv --law dense --rows num_experts>1
fit runs.csv --law separable --rows num_experts==1
fit runs.csv --loss loss_none
predict runs.csv --n 1e9 --experts 4 --level 1
predict runs.csv --n 1e9 --experts 4 --level 0
fit runs.csv --huber 0
fit runs.csv --law none
predict runs.csv --law hoffmann --published besiroglu --n 1e9 --at tokens=1e9
predict --law hoffmann --published none --n 1e9 --at tokens=1e9
predict --law dense --published none --n 1e9
predict runs.csv --n 1e9
predict runs.csv --n 1e9 --experts 2.5
predict runs.csv --n 1e9 --experts 0
predict runs.csv --n 0 --experts 4
predict runs.csv --n 1e9 --experts 4 --at tokens=1e9
predict runs.csv --n 1e9 --experts 4 --at num_experts=4
predict runs.csv --n 1e9 --experts 4 --at tokens
predict runs.csv --n 1e9 --experts 4 --at tokens=
predict runs.csv --n 1e9 --experts 4 --at tokens=many
predict runs.csv --law dense
plan runs.csv --next slope --flops 1e18 --experts 0
plan runs.csv --next slope --memory 80GB
plan runs.csv --next slope --no-published
plan runs.csv --next none --law separable
plan runs.csv
plan runs.csv --flops 0
plan runs.csv --flops many
plan runs.csv --flops 1e18 --tokens 0
plan runs.csv --flops 1e18 --law compute --floor 1.6
plan runs.csv --flops 1e18 --law separable --floor 1.6
plan runs.csv --flops 1e18 --memory 80
plan runs.csv --flops 1e18 --memory 80GB --dtype none
plan-mesh --devices 0 --memory 80GB --size 1.3B
plan-mesh --devices 8 --memory 80GB --size 2B
plan-mesh --devices 8 --memory 80GB --size 1.3B --top 0
plan-mesh --devices 8 --memory 80GB --size 1.3B --mesh data=4
plan-mesh --devices 7 --memory 80GB --size 1.3B
plan-mesh --devices 7 --memory 80GB --size 1.3B --router mixture_of_tokens --experts 8
plan-mesh --devices 3 --memory 80GB --size 1.3B --mesh model=3
compile --slice v9:2x2
compile --slice v5e
compile --slice v5e:0x2
compile --slice tpu7x:2x2x1 --mesh data=4
compile --slice v5e:4x4 --size 2B
sweep smoke --jobs 0 --out out
sweep none --out out
inspect folder --split train
inspect folder --steps 1:8
inspect folder --transformers --split train --steps 1:8
inspect folder --tokens 0
report
report folder other --full
report folder --out paper
report nowhere
reproduce runs.csv --rows seed==9 --out paper
reproduce runs.csv --huber 0 --out paper
reproduce runs.csv --loss loss_pile --out paper
reproduce runs.csv --rows "no_such_column > 1" --out paper
reproduce runs.csv --out empty.csv
reproduce blank.csv --out paper
convert runs.csv --columns seed --out out.csv
convert runs.csv --columns seed=none --out out.csv
convert runs.csv --set seed=1 --set seed=2 --out out.csv
convert runs.csv --keep source --out out.csv
convert log.csv --out t.csv
convert log.csv --columns experts=E --out t.csv
convert log.csv --columns loss_validation=val_loss --set router=Hash --out t.csv
convert log.csv --columns loss_validation=val_loss --loss-unit bytes --out t.csv
convert log.csv --columns loss_validation=val_loss --out t.parquet
convert log.csv --columns loss_validation=val_loss --out no/t.csv
convert log.csv --columns loss_validation=val_loss --out log.csv
convert log.csv --columns loss_validation=val_loss --out t.csv
downstream tasks.csv --cut 1e9
downstream losses.csv --cut 1e10
downstream losses.csv --cut 1e18 --loss c4
downstream losses.csv --cut 1e18 --ratio 100
downstream losses.csv --cut 1e18 --ratio 0
predict whole.csv --n inf --experts 2
predict runs.csv --n 1e9 --at num_experts=2.5
predict runs.csv --law routed-utilisation --teraflops inf --utilisation 1
predict whole.csv --law dense --n 1e8 --experts 4
predict whole.csv --law separable --n 1e8 --experts 4 --router Top-K
predict whole.csv --law per-size --n 2e8 --experts 4
predict runs.csv --law routed-utilisation --teraflops 1 --utilisation 1
evaluate folder --corpus text --routing file.npz
generate nowhere
generate nowhere --tokens 0
generate nowhere --tokens 1000001
generate nowhere --seed -1
generate nowhere --temperature -0.5
generate nowhere --temperature inf
train --out out --config nowhere.toml
train --out out --decay-from nowhere
export --out out --platforms cpu --attention tokamax
predict --n 1e8
predict --n 1e8 --experts 4 --level 3
predict --n 1e8 --experts 4 --level 0.9_5
predict --n 1e8 --experts 4 --floor 1
predict --n 1e8 --experts 4 --at dense_parameters=2e8
predict --n 1e8 --experts 4 --huber -1
predict --n 1e8 --experts 4 --law separable --huber 0.1
predict --law direct
predict --law direct --at flops=1e20 --router Hash
predict --law direct --at flops=1e20 flops=1e21
predict --law direct --at flops=1e20 --huber 0.1
predict --law leverage --at activation=3 tian_granularity=8 flops=1e22
downstream --cut 0
downstream --ratio nan
downstream --least-gain 1
reproduce --out paper --huber -1
plan --next prediction --n -1 --experts 4
plan --next prediction --n 1e8 --experts 1_0
plan --next slope --law direct
plan --flops 1e21 --law direct
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --level 0.8
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --rows "k == 1"
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --loss loss_c4
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --router Hash
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --huber 1e-3
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --floor 1.5
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --count-embeddings 1
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --intervals size
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --task two
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --guess-rate 0.2
predict --law hoffmann --published besiroglu --n 1e9 --at tokens=2e10 --tasks rates.csv
fit tasks.csv --law direct --count-embeddings 1
fit tasks.csv --law direct
fit tasks.csv --law direct --guess-rate 1
fit tasks.csv --law direct --floor 1
fit losses.csv --law two-stage-linear --guess-rate 0.5
fit losses.csv --law direct --intervals hc3
fit runs.csv --intervals hc3 --huber 1e-3
fit losses.csv --law two-stage-linear --loss c4
fit losses.csv --law direct
fit tasks.csv --law hoffmann
fit tasks.csv --law leverage --tasks rates.csv
fit runs.csv --law separable --task two
fit runs.csv --law separable --guess-rate 0.2
fit runs.csv --law separable --tasks rates.csv
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --resamples 7
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --within 0.1
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --law separable --huber 1e-3
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --dtype fp8
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --out x
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --law separable --tokens 300B
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --inference-tokens 1T
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --cached-tokens 1M
plan whole.csv --next prediction --n 1e9 --experts 64 --router s-base --recipe ours
plan whole.csv --next prediction --n 1e9 --law separable --router Hash
plan whole.csv --next b --law separable
plan whole.csv --next b --law separable --router Top-K
plan whole.csv --next b --law separable --router Hash --n 1e9
plan whole.csv --next b --law separable --router Hash --flops 10
plan whole.csv --next slope --law separable --router Hash
plan whole.csv --law separable --flops 1e16 --experts 4
plan whole.csv --law separable --flops 1e16 --router Hash
plan whole.csv --law separable --flops 1e16 --n 1e9
plan whole.csv --law separable --flops "1e21 FLOP/s"
plan whole.csv --law separable --flops 1e21 --inference-tokens -5
plan whole.csv --law separable --flops 1e21 --top 0
plan whole.csv --law separable --flops 1e21 --resamples -1
plan whole.csv --law separable --flops 1e10
plan whole.csv --law separable --flops 1e21 --memory 1kB
plan whole.csv --law separable --flops 1e12 --inference-tokens 1e15
recipe --fit x.csv --width 64
recipe --n 1e9 --tokens 1e9 --level 0.8
inspect run --split train --steps 1:2 --text text.txt
inspect run --split train --steps 1:2 --against other
evaluate run --routing file.npz --task x
evaluate run --routing file.npz --table x
evaluate run --routing file.npz --group-size 1
evaluate run --routing file.npz --one-hot
evaluate run --task x --corpus x
--limit num_experts=4e6 fit many.csv --law hoffmann
--limit=num_experts=4e6 --limit tokens=2E fit many.csv
--limit routing_frequency=2 fit many.csv
--limit fit many.csv
--limit=loss_own=x fit many.csv
--limit tokens fit many.csv
sweep grid.toml --out out --index 3
sweep grid.toml --out out --index -1
sweep grid.toml --out out --index 2 --of 2
sweep grid.toml --out out --index 0 --of 4
sweep grid.toml --out out --of 2
sweep grid.toml --out out --index 0 --hold-out largest
train --out out --coordinator 10.0.0.1:1234
train --out out --processes 2 --process-id 0
train --out out --distributed auto --processes 2
train --out out --coordinator 10.0.0.1 --processes 2 --process-id 0
train --out out --coordinator a:65536 --processes 2 --process-id 0
train --out out --coordinator a:1 --processes 2 --process-id 2
train --out out --coordinator a:1 --processes 0 --process-id 0
train --out out --config llama
train --out out --experts 0 --router hash
train --out out --experts 4
train --out out --experts 1.5
train --out out --experts 99999999999999999999999999999999999999999999
train --out out --router sinkhorn
train --out out --router sinkhorn --experts 2 --k 3
train --out out --router sinkhorn --experts 2 --capacity-factor nan
train --out out --router best
train --out out --heads 3
train --out out --gate sigmoid
train --out out --routing-frequency 0.25
train --out out --router hash --experts 2 --blocks 3
train --out out --d-model wide
train --out out --kqv-size 2147483648
train --out out --batch-size 1073741824
train --out out --learning-rate 3e-4x
train --out out --seed ３
train --out out --skip-bad-batches 9223372036854775808
train --out out --colour red
train
train --out
train --out out --distributed never
train --out out --rematerialise=perhaps
train --out out --steps 3 4
probe --out t.csv --widths 32
probe --out t.csv --widths 32 x
fit
export --out out --platforms abacus
export --out out --experts 3
export --out out --mesh data=2
""".strip().splitlines()

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
    "many.csv": HEAD + "\n0,0,Mine,2097152,1e7,3\n",
}
NAMED_TABLES = {
    "most.csv": NAMED + "\n" + "".join(f"r{i % 4},{i},Hash,4,1e7,3\n" for i in range(5)),
    "ends.csv": NAMED + ",state\nr,1,Hash,4,1e7,3,finished\nr,2,Hash,4,1e7,3,finished\n",
    "back.csv": NAMED + "\nr,1,Hash,4,1e7,3\nr,3,Hash,4,1e7,3\nr,2,Hash,4,1e7,3\n",
    "source.csv": HEAD + ",source\n1,2,Hash,4,1e7,3,mine\n",
    "panel.csv": "Step,a - val_loss,a - val_loss__MIN,a - val_loss__MAX\n1,3,3,3\nx,2,2,2\n",
    "ids.csv": NAMED + ",id\nr,1,Hash,4,1e7,3,a\nr,2,Hash,4,1e7,3,b\n",
}
"""Tables with names of runs. `convert` doubts that the rows of a name are the evaluations of one run."""


@pytest.fixture
def tables(tmp_path, monkeypatch):
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
    (tmp_path / "grid.toml").write_text("[base]\nheads = 1\n[[runs]]\nseed = [1, 2, 3]\n")
    for command in (downstream, plan, predict, reproduce):  # errors in flags need no table
        name = "released_table" if command is downstream else "released_runs"
        monkeypatch.setattr(command, name, lambda *_: pytest.fail("a table was fetched"))
    monkeypatch.chdir(tmp_path)


def test_each_wrong_command_has_its_approved_message(tables, approved, capsys):
    lines = []
    commands = [*COMMANDS, "fit .", *(f"fit {name}" for name in TABLES)]
    commands += [f"convert {names} --keep source --out kept.csv" for names in ("runs.csv source.csv", "source.csv")]
    for command in [*commands, *(f"convert {name} --out new-{name}" for name in NAMED_TABLES)]:
        code = main(shlex.split(command))
        lines += [f"$ {command} ({code})", *capsys.readouterr().err.splitlines()]
    assert not any(Path(name).exists() for name in ("out", "paper", "t.csv", "x"))
    approved("wrong-commands.txt", "\n".join(lines) + "\n")
