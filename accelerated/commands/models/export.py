"""The command `routelaws export`: write the train step of a model to a file for other machines."""

from pathlib import Path
from typing import Annotated

from ...files import write_atomically
from ...training.configuration import TrainConfig
from ...training.runs.export import export_train_step
from .. import flags
from ..flags import fields
from ..run_flags import run_flags
from ..terminal import say


def main(arguments: list[str]) -> None:
    """Run `routelaws export`. The values of a --config file are the defaults of the other flags."""
    Flags = run_flags(arguments)

    def export(
        *,
        out: Path,
        platforms: tuple[str, ...] = ("tpu",),
        config: Path | None = None,
        run: Annotated[Flags, fields(Flags)] = Flags(),  # noqa: B008
    ) -> None:
        """Write the train step of a model to a file that runs on other platforms.

        Args:
            out: The file to write.
            platforms: Target platforms: some of cpu, cuda and tpu. This machine needs none of them.
            config: TOML file with fields of the run, or a design, see `routelaws train`. Other flags override it.
            run: The run.
        """
        export_to(run.run(), platforms, out)

    flags.run(export, "export", arguments)


def export_to(config: TrainConfig, platforms: tuple[str, ...], out: Path) -> None:
    """Write the train step of a run to the file `out`, and print a summary."""
    content = export_train_step(config, platforms)
    write_atomically(out, content)
    sizes = f"{config.steps_per_call} steps of {config.batch_size} x {config.sequence_length} tokens per call"
    say(f"{out}: {config.name()} for {', '.join(platforms)}: {len(content):,} bytes, {sizes}")
