"""The command `routelaws plan-mesh`: find meshes of devices that a model fits on, and their cost."""

import dataclasses
import functools
from collections.abc import Callable
from json import dumps as dump_json
from pathlib import Path

import tyro

from routelaws.reference.accounting import SIZES, TABLE_SEQUENCE_LENGTH, TABLE_TOKENS_PER_STEP, TABLE_VOCAB_SIZE

from ..errors import InputError
from ..mesh_plan import (
    AXES,
    Choice,
    DevicePlan,
    MeshShape,
    best_plan,
    feasible_meshes,
    parse_mesh,
    plan_device,
    sequences_together,
    smallest_that_fits,
)
from ..tables.units import bytes_of
from ..training.configuration import TrainConfig
from . import flags
from .train import RunFlags, default_flags


def main(arguments: list[str]) -> None:
    """Run `routelaws plan-mesh`. --size sets defaults of other flags, and a --config file overrides these defaults."""
    default = default_flags(arguments, fields_of_size(flags.value_of("--size", arguments)))

    def plan_mesh(
        devices: int | None = None,
        memory: str | None = None,
        slice: str | None = None,
        compile: bool = False,
        size: str | None = None,
        config: Path | None = None,
        top: int = 10,
        json: bool = False,
        run: tyro.conf.OmitArgPrefixes[RunFlags] = default,
    ) -> None:
        """Find meshes of devices that a model fits on, and their cost, without building the model.

        Args:
            devices: Number of devices.
            memory: Memory of each device, with a unit: 16GB, 80GiB.
            slice: Kind and shape of a slice of a TPU pod, such as v5e:4x4, instead of --devices and --memory.
            compile: Let the compiler of TPUs check the best mesh of the --slice, and the next ones until one fits.
            size: A model of the paper, such as 1.3B, with its vocabulary, sequences and batch. Other flags override it.
            config: TOML file with fields of the run, or a design, see `routelaws train`. Other flags override it.
            top: Number of meshes to show. With --mesh, only that mesh is planned.
            json: Print one JSON object instead of text.
            run: The run.
        """
        if top < 1:
            raise InputError(f"--top {top} is out of range; use 1 or more")
        if (slice is None) == (devices is None or memory is None) or (slice is None and compile):
            raise InputError(
                "give --devices and --memory, or --slice alone, which --compile needs; use --slice v5e:4x4"
            )
        if slice is None:
            limit = bytes_of(memory)
        else:
            from ..training import slices

            devices, limit = slices.size_of_slice(slice), slices.memory_of_slice(slice)
        report = mesh_report(run.run(), devices, limit)
        if compile:
            check_best(report, run.run(), functools.partial(slices.compile_training, name=slice))
        print(dump_json(report) if json else "\n".join(words(report, top)))

    flags.run(plan_mesh, "plan-mesh", arguments)


def fields_of_size(size: str | None) -> dict:
    """Return the fields of a run of the paper, except for its routing.

    Raises:
        InputError: the paper has no such size.
    """
    if size is None:
        return {}
    if size not in SIZES:
        raise InputError(f"--size {size}: the paper has no such size; allowed: {', '.join(SIZES)}")
    d_model, blocks, heads, kqv_size, _ = SIZES[size]
    shape = {"d_model": d_model, "blocks": blocks, "heads": heads, "kqv_size": kqv_size}
    batch = {"sequence_length": TABLE_SEQUENCE_LENGTH, "batch_size": TABLE_TOKENS_PER_STEP // TABLE_SEQUENCE_LENGTH}
    return shape | batch | {"vocab_size": TABLE_VOCAB_SIZE}


def mesh_report(config: TrainConfig, devices: int, memory: float) -> dict:
    """Return the numbers of the report.

    Raises:
        InputError: the run's mesh has another number of devices, or the model cannot be divided over this mesh. If the
            run has no mesh: the model cannot be divided over any mesh.
    """
    if devices < 1:
        raise InputError(f"--devices {devices} is out of range; use 1 or more")
    model, shape = config.model, (config.batch_size, config.sequence_length, config.dtype)
    plans = [plan_device(model, mesh, *shape) for mesh in _meshes(config, devices)]
    best, larger = best_plan(plans, memory), None
    if best is None and config.mesh is None:
        larger = smallest_that_fits(model, memory, devices, *shape)
    least = min(plans, key=lambda plan: plan.memory(recomputed=True))
    tokens = config.batch_size * config.sequence_length
    return _size_entry(config) | {
        "devices": devices,
        "memory_bytes": memory,
        "batch_size": config.batch_size,
        "sequence_length": config.sequence_length,
        "dtype": config.dtype,
        "tokens_per_step": tokens,
        "meshes": [_entry(plan, memory, tokens) for plan in sorted(plans, key=_order(memory))],
        "best": _choice(best),
        "least_memory": _choice(Choice(least, True)),
        "smallest_that_fits": _choice(larger),
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


def _meshes(config: TrainConfig, devices: int) -> list[MeshShape]:
    model, mesh, batch_size = config.model, config.mesh, config.batch_size
    if mesh is not None:
        shape = parse_mesh(mesh)
        if shape.devices() != devices:
            raise InputError(
                f"--mesh {mesh} has {shape.devices()} devices, but --devices is {devices}; make both equal"
            )
        return [shape]
    meshes = feasible_meshes(model, devices, batch_size)
    if not meshes:
        together = sequences_together(model)
        groups = f" into whole groups of {together}" if together > 1 else ""
        experts = f"divide the {model.expert_count} experts" if model.num_routed else "be 1 in a dense model"
        raise InputError(
            f"--devices {devices}: no mesh has this size; data x expert must divide the batch of {batch_size} "
            f"sequences{groups}, expert must {experts}, and model must divide the {model.heads} heads"
        )
    return meshes


def _size_entry(config: TrainConfig) -> dict:
    counted, model = config.accounting(), config.model
    return {
        "run": config.name(),
        "dense_parameters": counted.dense_parameters,
        "total_parameters": counted.total_parameters,
        "embedding_and_norm": (model.vocab_size + 2) * model.d_model,
    }


def _order(memory: float):
    """Return the sort key of meshes: best first, by the rule of `best_plan`. Meshes that do not fit come last."""

    def key(plan: DevicePlan):
        kind = next((i for i, again in enumerate((False, True)) if plan.memory(again) <= memory), 2)
        return (kind, plan.memory(True)) if kind == 2 else (kind, plan.traffic(kind == 1), plan.mesh.model)

    return key


def _entry(plan: DevicePlan, memory: float, tokens: int) -> dict:
    entry = {name: value for name, value in plan._asdict().items() if name != "mesh"}
    return {
        "mesh": dict(zip(AXES, plan.mesh, strict=True)),
        **entry,
        "memory": plan.memory(),
        "memory_recomputed": plan.memory(recomputed=True),
        "traffic": plan.traffic(),
        "traffic_recomputed": plan.traffic(recomputed=True),
        "all_to_all_per_token": plan.all_to_all * plan.mesh.devices() / tokens,
        "fits": plan.memory() <= memory,
        "fits_recomputed": plan.memory(recomputed=True) <= memory,
    }


def _choice(choice: Choice | None) -> dict | None:
    if choice is None:
        return None
    plan, again = choice
    return {
        "mesh": dict(zip(AXES, plan.mesh, strict=True)),
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
    shown = report["meshes"][:top]
    unit, scale = ("GB", 1e9) if any(entry["memory"] >= 1e9 for entry in shown) else ("MB", 1e6)
    lines = [
        f"{report['run']}: {size}, plus {_short(report['embedding_and_norm'])} in the embedding and the last norm",
        f"{report['devices']:,} devices of {_size(report['memory_bytes'])}; a step has {report['batch_size']:,} "
        f"sequences of {report['sequence_length']:,} tokens, in {report['dtype']}",
        "",
        f"{unit} in the memory of each device: parameters, gradients, optimizer state, activations, and their sum.",
        "The number after a bar is for rematerialised blocks.",
        f"{unit} that each device sends in a step: tokens to experts and back, sums over the mesh axis model, sums of "
        "gradients, new parameters.",
        "",
    ]
    heads = ("data", "expert", "model", "params", "grads", "state", "activations", "sum", "to experts", "over model")
    rows = [[*heads, "sums", "new", ""], *(_cells(entry, scale) for entry in shown)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
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
    return [*map(str, entry["mesh"].values()), *held, *pairs, *moved, fits]


def _verdict(report: dict) -> list[str]:
    best, least, larger = report["best"], report["least_memory"], report["smallest_that_fits"]
    checked = [
        f"Compiled {_mesh(each)}{' --rematerialise' * each['recomputed']}: planned {_size(each['memory'])}, "
        + (f"{_size(compiler['memory']['sum'])}, fits" if (compiler := each["compiler"])["fits"] else "too large")
        for each in report.get("compiled", ())
    ]
    return checked + _choice_words(report, best, least, larger)


def _choice_words(report, best, least, larger) -> list[str]:
    if best is not None:
        how = "with --rematerialise (a third more arithmetic)" if best["recomputed"] else "without rematerialisation"
        return [
            f"Best: --mesh {_mesh(best)}, {how}. Each device needs {_size(best['memory'])} and sends "
            f"{_size(best['traffic'])} in a step.",
            "Ranking: meshes that fit without rematerialisation first, then the fewest bytes sent per step.",
        ]
    lines = [f"No mesh of {report['devices']:,} devices of {_size(report['memory_bytes'])} is large enough."]
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
