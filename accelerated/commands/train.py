"""What `routelaws train` does: train one model, or go on with a run that was stopped."""

from pathlib import Path

import tyro

from ..training.config import TrainConfig, from_mapping, read_toml
from ..training.corpus import read_corpus
from ..training.loop import Run
from ..training.tokens import prepare_tokens
from ..training.workers import keep_freed_memory
from . import flags
from .progress import Progress


def main(arguments: list[str]) -> None:
    """Run `routelaws train`. The values of a --config file are the defaults of the other flags."""
    keep_freed_memory()
    file = flags.value_of("--config", arguments)
    default = TrainConfig() if file is None else from_mapping(read_toml(Path(file)), file)

    def train(out: Path, config: Path | None = None, fields: tyro.conf.OmitArgPrefixes[TrainConfig] = default) -> None:
        """Train one model.

        Args:
            out: Folder of the run; a run that was killed goes on there.
            config: TOML file with fields of the run; flags go before it.
            fields: The run.
        """
        fields.check()
        corpus = read_corpus(fields.corpus or None)
        with Progress([fields]) as watch:
            watch("say", line=corpus.summary())
            tokens = prepare_tokens(corpus, fields.vocab_size, tell=lambda line: watch("say", line=line))
            run = Run(fields, out, tokens, watch=lambda kind, **rest: watch(kind, run=0, **rest))
            watch("start", run=0)
            rows = run.train()
            watch("finished", run=0)
        last = rows[-1]
        loss = float(last["loss_validation"])
        print(f"{out}: {fields.name()}, step {last['step']}: validation loss {loss:.4f} nats per token")

    flags.run(train, "train", arguments)
