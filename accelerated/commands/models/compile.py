"""The command `routelaws compile`: let the compiler of TPUs judge a run, on a machine without a TPU."""

from json import dumps as dump_json
from pathlib import Path
from typing import Annotated

from ...training.devices.slices import KINDS, compile_run
from .. import flags
from ..flags import fields
from ..run_flags import fields_of_size, run_flags


def main(arguments: list[str]) -> None:
    """Run `routelaws compile`. --size sets defaults of other flags, and a --config file overrides these defaults."""
    Flags = run_flags(arguments, fields_of_size(flags.value_of("--size", arguments)))

    def compile(
        *,
        slice: str,
        size: str | None = None,
        config: Path | None = None,
        json: bool = False,
        run: Annotated[Flags, fields(Flags)] = Flags(),  # noqa: B008
    ) -> None:
        """Compile a run for a slice of a TPU pod, without a TPU: memory, FLOPs and communication.

        Args:
            slice: Kind and shape of the slice, in chips, such as v5e:4x4 or v5p:4x4x4. With --mesh, the run uses all
                devices of the slice, otherwise one. A compilation takes minutes; results are cached.
            size: A model of the paper, such as 1.3B, with its vocabulary, sequences and batch. Other flags override it.
            config: TOML file with fields of the run, or a design, see `routelaws train`. Other flags override it.
            json: Print one JSON object instead of text.
            run: The run.
        """
        chosen = run.run()
        report = {"run": chosen.name(), **compile_run(chosen, slice)}
        print(dump_json(report) if json else "\n".join(words(report)))

    flags.run(compile, "compile", arguments)


def words(report: dict) -> list[str]:
    """Return a report as lines: the memory of both programs, then their FLOPs, collectives and largest tensors."""
    parts = {part: report[part] for part in ("training", "evaluation")}
    fitting = {part: numbers for part, numbers in parts.items() if numbers["fits"]}
    mesh = f"mesh {report['mesh']}" if report["mesh"] else "no mesh"
    lines = [f"{report['run']} on {report['slice']}, {mesh}. All numbers are for one of {report['devices']:,} devices."]
    rows = [[f"GB of {report['available'] / 1e9:.4g}", *KINDS, "sum"]]
    rows += [[part, *(f"{size / 1e9:.3g}" for size in each["memory"].values())] for part, each in fitting.items()]
    lines += ["", *("".join(cell.rjust(14) for cell in row) for row in rows if fitting)]
    for part, numbers in parts.items():
        lines += ["", *(_work(part, numbers) if numbers["fits"] else [f"{part} is too large:", *numbers["message"]])]
    return lines


def _work(part: str, numbers: dict) -> list[str]:
    """Return the lines on the work of one step of training, or of one batch of evaluation."""
    one, xla = "step" if part == "training" else "batch", numbers["compiler"]
    lines = [
        f"{part}: {numbers['product_flops']:.4g} FLOPs of matrix products in a {one}. XLA counts "
        f"{xla['flops']:.4g} FLOPs and {xla['bytes']:.4g} bytes, with each loop once."
    ]
    for kind, sent in numbers["collectives"].items():
        most = "at most " if kind.startswith("ragged") else ""
        lines.append(f"{kind:>22}  {sent['count']:6.4g} in a {one}  {most}{sent['bytes'] / 1e6:.4g} MB sent")
    if numbers["uncounted_loops"]:
        lines.append(f"{numbers['uncounted_loops']} loops have an unknown number of rounds and count once.")
    lines += ["largest tensors in MB:"] * bool(numbers["largest"])
    lines += [f"{each['size'] / 1e6:12.4g}  {each['shape']}  {each['source']}" for each in numbers["largest"]]
    return lines
