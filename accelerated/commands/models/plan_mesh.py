"""The command `routelaws plan-mesh`: find meshes of devices that a model fits on, and their cost."""

import dataclasses
import functools
import re
from collections.abc import Callable
from json import dumps as dump_json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ...conversion.families import ForeignModel, model_in
from ...conversion.foreign_mesh import ForeignMesh, zipf_loads
from ...conversion.foreign_mesh import feasible_meshes as foreign_meshes
from ...conversion.foreign_mesh import plan_device as plan_foreign
from ...errors import InputError
from ...inspection.foreign_traces import Design, as_trace, problems, read_recorded
from ...results.blocks import percent
from ...tables.units import bytes_of
from ...training.configuration import TrainConfig
from ...training.devices.mesh_plan import (
    DevicePlan,
    MeshChoice,
    MeshShape,
    best_plan,
    feasible_meshes,
    parse_mesh,
    plan_device,
    sequences_together,
    smallest_that_fits,
)
from .. import flags
from ..flags import fields
from ..run_flags import fields_of_size, run_flags
from ..terminal import remark


def main(arguments: list[str]) -> None:
    """Run `routelaws plan-mesh`. --size sets defaults of other flags, and a --config file overrides these defaults."""
    if flags.value_of("--model", arguments) is not None:
        return flags.run(plan_model, "plan-mesh", arguments)
    Flags = run_flags(arguments, fields_of_size(flags.value_of("--size", arguments)))

    def plan_mesh(
        *,
        devices: int | None = None,
        memory: str | None = None,
        slice: str | None = None,
        compile: bool = False,
        model: Path | None = None,
        size: str | None = None,
        config: Path | None = None,
        top: int = 10,
        json: bool = False,
        run: Annotated[Flags, fields(Flags)] = Flags(),  # noqa: B008
    ) -> None:
        """Find meshes of devices that a model fits on, and their cost, without building the model.

        Args:
            devices: Number of devices.
            memory: Memory of each device, with a unit: 16GB, 80GiB.
            slice: Kind and shape of a slice of a TPU pod, such as v5e:4x4, instead of --devices and --memory.
            compile: Let the compiler of TPUs check the best mesh of the --slice, and the next ones until one fits.
            model: config.json of a Mixture-of-Experts of transformers, or its folder, instead of the flags of a run. It
                has other flags: add --help.
            size: A model of the paper, such as 1.3B, with its vocabulary, sequences and batch. Other flags override it.
            config: TOML file with fields of the run, or a design, see `routelaws train`. Other flags override it.
            top: Number of meshes to show. With --mesh, only that mesh is planned.
            json: Print one JSON object instead of text.
            run: The run.
        """
        flags.check_counts({"top": top})
        if (slice is None) == (devices is None or memory is None) or (slice is None and compile):
            raise InputError(
                "give --devices and --memory, or --slice alone, which --compile needs; use --slice v5e:4x4"
            )
        if slice is None:
            limit = bytes_of(memory)
        else:
            from ...training.devices import slices

            devices, limit = slices.size_of_slice(slice), slices.memory_of_slice(slice)
        report = mesh_report(run.run(), devices, limit)
        if compile:
            check_best(report, run.run(), functools.partial(slices.compile_training, name=slice))
        print(dump_json(report) if json else "\n".join(words(report, top)))

    return flags.run(plan_mesh, "plan-mesh", arguments)


def plan_model(
    model: Path,
    devices: int,
    memory: str,
    mesh: str | None = None,
    batch_size: int = 1024,
    sequence_length: int = 4096,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    loads: str | None = None,
    top: int = 10,
    json: bool = False,
) -> None:
    """Count the parameters of a model of transformers, and plan its training on a mesh, from its config.json alone.

    Args:
        model: config.json of a Mixture-of-Experts, or its folder.
        devices: Number of devices: data x tensor x pipeline.
        memory: Memory of each device, with a unit: 16GB, 80GiB.
        mesh: Only this mesh, such as data=8,tensor=2,pipeline=2,expert=8,expert_tensor=2. Axes left out have size 1.
            The data x tensor devices of a stage also form groups of expert x expert_tensor devices for the experts.
        batch_size: Sequences in a batch, for all devices together. A micro-batch is one sequence.
        sequence_length: Tokens in a sequence.
        dtype: Type of parameters and activations. Gradients and the optimizer's state are in float32.
        loads: The exponent of a Zipf law for the loads of the experts, such as 0.5, or a routing that
            `routelaws inspect --trace` reads. If not given: even loads.
        top: Number of meshes to show.
        json: Print one JSON object instead of text.
    """
    flags.check_counts({"devices": devices, "batch-size": batch_size, "sequence-length": sequence_length, "top": top})
    foreign = model_in(model)
    limit, shape = bytes_of(memory), (batch_size, sequence_length, dtype, loads_of(loads, foreign.design()))
    meshes = _meshes(mesh, devices, ForeignMesh) or _foreign_meshes(foreign, devices, batch_size)
    report = {
        "model": str(model),
        "model_type": foreign.kind,
        "parameters": {part: {"total": total, "active": active} for part, (total, active) in foreign.parts().items()},
        **_planned([plan_foreign(foreign, each, *shape) for each in meshes], devices, limit, *shape[:3]),
    }
    print(dump_json(report) if json else "\n".join(_words_of_model(report, top)))


def _foreign_meshes(model: ForeignModel, devices: int, batch_size: int) -> list[ForeignMesh]:
    if meshes := foreign_meshes(model, devices, batch_size):
        return meshes
    raise InputError(
        f"--devices {devices}: no mesh has this size; data must divide the batch of {batch_size}, tensor the heads and "
        f"hidden units, and pipeline may be at most {len(model.routed)}; use another number of devices"
    )


def loads_of(text: str | None, design: Design) -> np.ndarray | None:
    """Return the shares of the experts from --loads: [E] of a Zipf law, or [routed blocks, E] of a trace."""
    if text is None:
        return None
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text, re.ASCII) and float(text) <= 10:
        return zipf_loads(design.experts, design.choices, float(text))
    if not Path(text).is_file():
        raise InputError(
            f"--loads {text}: is no file and no exponent from 0 to 10; use a number such as 0.5, or a trace"
        )
    recorded = read_recorded(Path(text), design)
    expert = as_trace(recorded, text, design).expert
    counts = np.stack([np.bincount(of[of >= 0], minlength=design.experts) for of in expert])
    wrong = "; ".join(problems(recorded, design).values())
    if len(expert) != len(design.blocks) or recorded.expert.max() >= design.experts:
        raise InputError(f"--loads {text}: {wrong}; use a trace of this model, with an expert in each routed block")
    if wrong:
        remark(f"--loads {text}: {wrong}")
    return counts / counts.sum(axis=1, keepdims=True)


def mesh_report(config: TrainConfig, devices: int, memory: float) -> dict:
    """Return the numbers of the report.

    Raises:
        InputError: the run's mesh has another number of devices, or the model cannot be divided over this mesh. If the
            run has no mesh: the model cannot be divided over any mesh.
    """
    flags.check_counts({"devices": devices})
    model, shape = config.model, (config.batch_size, config.sequence_length, config.dtype)
    meshes, counted = _meshes(config.mesh, devices, MeshShape) or _own_meshes(config, devices), config.accounting()
    report = {
        "run": config.name(),
        "dense_parameters": counted.dense_parameters,
        "total_parameters": counted.total_parameters,
        "embedding_and_norm": (model.vocab_size + 2) * model.d_model,
        **_planned([plan_device(model, mesh, *shape) for mesh in meshes], devices, memory, *shape),
    }
    if report["best"] is None and config.mesh is None:
        report["smallest_that_fits"] = _choice(smallest_that_fits(model, memory, devices, *shape))
    return report


def _planned(
    plans: list[DevicePlan], devices: int, memory: float, batch_size: int, sequence_length: int, dtype: str
) -> dict:
    """Return the part of a report that is the same for every kind of model."""

    def order(plan: DevicePlan):
        """Return the sort key: best first, by the rule of `best_plan`. Meshes that do not fit come last."""
        kind = next((i for i, again in enumerate((False, True)) if plan.memory(again) <= memory), 2)
        return (kind, plan.memory(True)) if kind == 2 else (kind, plan.traffic(kind == 1), plan.mesh.parts())

    least = min(plans, key=lambda plan: plan.memory(recomputed=True))
    return {
        "devices": devices,
        "memory_bytes": memory,
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "dtype": dtype,
        "tokens_per_step": batch_size * sequence_length,
        "meshes": [_entry(plan, memory, batch_size, sequence_length) for plan in sorted(plans, key=order)],
        "best": _choice(best_plan(plans, memory)),
        "least_memory": _choice(MeshChoice(least, True)),
        "smallest_that_fits": None,
    }


def check_best(report: dict, config: TrainConfig, compile: Callable[[TrainConfig], dict]) -> None:
    """Compile the best mesh of a report, and the next ones until one fits. Set `compiled` and `best` of the report.

    Args:
        compile: `slices.compile_training` for a slice.
    """
    fitting = [
        (entry, again)
        for again in (False, True)
        for entry in report["meshes"]
        if entry["fits_recomputed" if again else "fits"]
    ]
    report["compiled"], report["best"] = [], None
    for entry, again in fitting:
        mesh = _mesh(entry)
        numbers = compile(dataclasses.replace(config, mesh=mesh, rematerialise=again))
        plan = entry["memory_recomputed" if again else "memory"]
        choice = {"mesh": entry["mesh"], "devices": report["devices"], "recomputed": again, "memory": plan}
        choice |= {"traffic": entry["traffic_recomputed" if again else "traffic"]}
        report["compiled"].append(choice | {"compiler": numbers})
        if numbers["fits"]:
            report["best"] = choice | {"memory": numbers["memory"]["sum"]}
            return


def _meshes(mesh: str | None, devices: int, kind: type) -> list:
    """Return the mesh of --mesh, in a list; [] without this flag."""
    shapes = [] if mesh is None else [parse_mesh(mesh, kind)]
    if any(shape.devices() != devices for shape in shapes):
        raise InputError(
            f"--mesh {mesh} has {shapes[0].devices()} devices, but --devices is {devices}; make both equal"
        )
    return shapes


def _own_meshes(config: TrainConfig, devices: int) -> list[MeshShape]:
    model, batch_size = config.model, config.batch_size
    if meshes := feasible_meshes(model, devices, batch_size):
        return meshes
    together = sequences_together(model)
    groups = f" into whole groups of {together}" if together > 1 else ""
    experts = f"divide the {model.expert_count} experts" if model.num_routed else "be 1 in a dense model"
    raise InputError(
        f"--devices {devices}: no mesh has this size; data x expert must divide the batch of {batch_size} "
        f"sequences{groups}, expert must {experts}, and model must divide the {model.heads} heads"
    )


def _entry(plan: DevicePlan, memory: float, batch_size: int, sequence_length: int) -> dict:
    mesh, tokens = plan.mesh, batch_size * sequence_length
    return {
        **plan._asdict(),
        "mesh": mesh._asdict(),
        "memory": plan.memory(),
        "memory_recomputed": plan.memory(recomputed=True),
        "traffic": plan.traffic(),
        "traffic_recomputed": plan.traffic(recomputed=True),
        "all_to_all_per_token": plan.all_to_all * mesh.devices() / tokens,
        "fits": plan.memory() <= memory,
        "fits_recomputed": plan.memory(recomputed=True) <= memory,
        **({"idle": mesh.idle(batch_size)} if isinstance(mesh, ForeignMesh) else {}),
    }


def _choice(choice: MeshChoice | None) -> dict | None:
    if choice is None:
        return None
    plan, again = choice
    return {
        "mesh": plan.mesh._asdict(),
        "devices": plan.mesh.devices(),
        "recomputed": again,
        "memory": plan.memory(again),
        "traffic": plan.traffic(again),
    }


def words(report: dict, top: int) -> list[str]:
    """Return a report as lines: the model, a table of the meshes, and the best mesh."""
    routed = report["total_parameters"] != report["dense_parameters"]
    size = f"{_short(report['dense_parameters'])} dense parameters"
    size += f", {_short(report['total_parameters'])} in all" if routed else ""
    opening = [
        f"{report['run']}: {size}, plus {_short(report['embedding_and_norm'])} in the embedding and the last norm",
    ]
    return opening + _table(report, top)


def _words_of_model(report: dict, top: int) -> list[str]:
    """Return the report of a model of transformers as lines: its parameters by part, and the meshes."""
    parts = report["parameters"]
    sums = {kind: sum(part[kind] for part in parts.values()) for kind in ("total", "active")}
    rows = [["parameters", "total", "active"], ["all", *(f"{count:,}" for count in sums.values())]]
    rows += [[part, f"{count['total']:,}", f"{count['active']:,}"] for part, count in parts.items()]
    lines = [
        f"{report['model']} ({report['model_type']}): {_short(sums['total'])} parameters, {_short(sums['active'])} "
        "active for a token",
        "",
    ]
    return [*lines, *_aligned(rows), "", *_table(report, top)]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _table(report: dict, top: int) -> list[str]:
    shown, axes = report["meshes"][:top], list(report["meshes"][0]["mesh"])
    unit, scale = ("GB", 1e9) if any(entry["memory"] >= 1e9 for entry in shown) else ("MB", 1e6)
    within = "model" if "model" in axes else "tensor"
    over = f"the mesh axis {within}" if within == "model" else "tensor and expert_tensor, and rows between stages"
    lines = [
        f"{report['devices']:,} devices of {_size(report['memory_bytes'])}; a step has {report['batch_size']:,} "
        f"sequences of {report['sequence_length']:,} tokens, in {report['dtype']}",
        "",
        f"{unit} in the memory of each device: parameters, gradients, optimizer state, activations, and their sum.",
        "The number after a bar is for rematerialised blocks.",
        f"{unit} that each device sends in a step: tokens to experts and back, sums over {over}, sums of "
        "gradients, new parameters.",
        *["idle: the share of a step in which a device waits for other stages."] * ("idle" in shown[0]),
        "",
    ]
    heads = (*axes, "params", "grads", "state", "activations", "sum", "to experts", f"over {within}", "sums", "new")
    heads += ("idle", "") if "idle" in shown[0] else ("",)
    lines += _aligned([list(heads), *(_cells(entry, scale) for entry in shown)])
    if len(report["meshes"]) > top:
        lines.append(f"and {len(report['meshes']) - top} more meshes; show them with --top or --json")
    return [*lines, "", *_verdict(report)]


def _cells(entry: dict, scale: float) -> list[str]:
    """Return the cells of a mesh. The traffic includes rematerialisation only if the model fits no other way."""

    def amount(name):
        return f"{entry[name] / scale:.3g}"

    end = "_recomputed" if not entry["fits"] and entry["fits_recomputed"] else ""
    fits = "fits, rematerialised" if end else "fits" if entry["fits"] else "too large"
    pairs = [f"{amount(name)} | {amount(name + '_recomputed')}" for name in ("activations", "memory")]
    moved = [amount(name + end) for name in ("all_to_all", "model_reduction")]
    moved += [amount(name) for name in ("gradient_reduction", "parameter_gather")]
    held = [amount(name) for name in ("parameters", "gradients", "optimizer")]
    idle = [percent(entry["idle"], ".0f")] if "idle" in entry else []
    return [*map(str, entry["mesh"].values()), *held, *pairs, *moved, *idle, fits]


def _verdict(report: dict) -> list[str]:
    best, least, larger = report["best"], report["least_memory"], report["smallest_that_fits"]
    checked = [
        f"Compiled {_mesh(each)}{' --rematerialise' * each['recomputed']}: planned {_size(each['memory'])}, "
        + (f"{_size(compiler['memory']['sum'])}, fits" if (compiler := each["compiler"])["fits"] else "too large")
        for each in report.get("compiled", ())
    ]
    if best is not None:
        how = "with --rematerialise (a third more arithmetic)" if best["recomputed"] else "without rematerialisation"
        return [
            *checked,
            f"Best: --mesh {_mesh(best)}, {how}. Each device needs {_size(best['memory'])} and sends "
            f"{_size(best['traffic'])} in a step.",
            "Ranking: meshes that fit without rematerialisation first, then the fewest bytes sent per step.",
        ]
    lines = [*checked, f"No mesh of {report['devices']:,} devices of {_size(report['memory_bytes'])} is large enough."]
    lines.append(f"Devices of {_size(least['memory'])} suffice, with --mesh {_mesh(least)} and --rematerialise.")
    if larger is not None:
        again = " and --rematerialise" if larger["recomputed"] else ""
        lines.append(f"{larger['devices']:,} devices of this kind also suffice, with --mesh {_mesh(larger)}{again}.")
    return lines


def _mesh(choice: dict) -> str:
    return ",".join(f"{name}={size}" for name, size in choice["mesh"].items())


def _size(value: float) -> str:
    unit, scale = next(((u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)) if value >= s), ("kB", 1e3))
    return f"{value / scale:.3g} {unit}"


def _short(number: int) -> str:
    unit, scale = next(((u, s) for u, s in (("B", 1e9), ("M", 1e6), ("K", 1e3)) if number >= s), ("", 1))
    return f"{number / scale:.4g}{unit}"
