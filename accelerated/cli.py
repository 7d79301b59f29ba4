"""The command line: `routelaws train | sweep | fit | predict | convert | report | reproduce | evaluate | generate`.

Exit codes: 0 done, 2 the input is wrong (one line on standard error), 1 a fault of ours. Standard output carries
results only; progress and remarks go to standard error.
"""

import contextlib
import functools
import importlib
import io
import os
import sys
from json import dumps as dump_json
from pathlib import Path

from .errors import InputError, WorkerDiedError

EXTRAS = {
    "train": ("filelock", "grain", "optax", "orbax", "rich", "sentencepiece", "tyro"),
    "laws": ("markdown_it", "matplotlib", "pandas", "pooch", "rich", "tyro"),
}
"""The packages that each extra brings to the base install, by the names that are imported."""

NEEDED = {"train": "train", "sweep": "train,laws", "report": "train,laws", "evaluate": "train", "generate": "train"}
"""The extras that a command needs, where it needs others than `laws`."""

COMMANDS = {
    "train": "Train one model.",
    "sweep": "Train a grid of models, fit the law to it and write the report.",
    "fit": "Fit a law to a results table.",
    "predict": "Predict a loss with a law fitted to a results table.",
    "convert": "Write your own runs as a results table.",
    "report": "Write the report of a sweep again.",
    "reproduce": "Hold a results table, the paper's if none is given, against the paper: report, figures, numbers.",
    "evaluate": "Evaluate a trained model again, also with other groups of sequences.",
    "generate": "Continue a text with a trained model.",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: the command and its flags; those of the process if None.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if hasattr(sys.stdout, "reconfigure"):  # an output without Greek letters, as Windows has them, gets their numbers
        sys.stdout.reconfigure(errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    command, *rest = arguments
    try:
        if command == "--version":
            print(importlib.import_module("routelaws").__version__)
        elif command in COMMANDS:
            globals()[f"_{command}"](rest)
        else:
            raise InputError(f"no command {command!r}; there are {', '.join(COMMANDS)}")
    except InputError as error:
        print(f"routelaws: {error}", file=sys.stderr)
        return 2
    except WorkerDiedError as error:
        print(f"routelaws: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extras = NEEDED.get(command, "laws")
        package = (error.name or "").partition(".")[0]
        if not any(package in EXTRAS[extra] for extra in extras.split(",")):
            raise
        print(f"routelaws: {package} is missing; install it with: pip install 'routelaws[{extras}]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("routelaws: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has left
    return 0


def _usage() -> str:
    lines = [f"  {name:10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: routelaws COMMAND [flags]", "", *lines, "", "routelaws COMMAND --help lists the flags."])


def _run(function, command: str, arguments: list[str]):
    """Call a function with the parameters that the flags give; wrong flags are an `InputError`."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            call = tyro.cli(
                _deferred(function), args=arguments, prog=f"routelaws {command}", description=COMMANDS[command]
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise InputError(_one_line(said.getvalue())) from None
    return call()


def _deferred(function):
    """Return a function with the same flags that returns a call to be made, so that parsing ends before work begins."""

    @functools.wraps(function)
    def later(*args, **kwargs):
        return functools.partial(function, *args, **kwargs)

    return later


def _one_line(box: str) -> str:
    """Return what the parser printed in a box as one line, without the advice that follows the rule."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()]
    until = next((i for i, line in enumerate(box.splitlines()) if i and set(line.strip("│ ")) == {"─"}), len(lines))
    return " ".join(line for line in lines[1:until] if line) or "the flags cannot be read"


def _train(arguments: list[str]) -> None:
    from .training.workers import keep_freed_memory

    keep_freed_memory()
    import tyro

    from .report.progress import Progress
    from .training.config import TrainConfig, from_mapping, read_toml
    from .training.corpus import read_corpus
    from .training.loop import Run
    from .training.tokens import prepare_tokens

    file = _value_of("--config", arguments)
    default = TrainConfig() if file is None else from_mapping(read_toml(Path(file)), file)

    def train(
        out: Path, config: Path | None = None, fields: tyro.conf.OmitArgPrefixes[TrainConfig] = default
    ) -> None:
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

    _run(train, "train", arguments)


def _sweep(arguments: list[str]) -> None:
    import matplotlib  # noqa: F401  # the report at the end needs both: what is missing is said before hours of training
    import pandas  # noqa: F401
    import tyro

    from .report.progress import Progress
    from .report.sweep_report import write_report
    from .training.grid import read_grid
    from .training.sweep import run_sweep

    def sweep(
        grid: tyro.conf.Positional[str], out: Path, corpus: tuple[str, ...] = (), jobs: int | None = None
    ) -> None:
        """Train a grid of models, fit the law to it and write the report.

        Args:
            grid: Name of a preset, or a TOML file.
            out: Folder of the sweep; a sweep that was killed goes on there.
            corpus: Files, folders and globs of text; what the grid says if not given.
            jobs: Runs at a time, one thread each; as many as there are cores if not given.
        """
        if jobs is not None and jobs < 1:
            raise InputError(f"--jobs {jobs}: at least 1")
        chosen = read_grid(grid, {"corpus": list(corpus)} if corpus else {})
        with Progress(chosen.runs) as watch:
            run_sweep(chosen, out, jobs=jobs, watch=watch)
        print(write_report(out))

    _run(sweep, "sweep", arguments)


def _fit(arguments: list[str]) -> None:
    import tyro

    from .report.fit_command import as_dict, fit_report, print_fit

    def fit(
        table: tyro.conf.Positional[Path],
        law: str = "routed-bounded",
        loss: str = "loss_validation",
        rows: str | None = None,
        huber: float | None = None,
        json: bool = False,
    ) -> None:
        """Fit a law to a results table.

        Args:
            table: A results table, .csv or .csv.gz.
            law: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation.
            loss: Column of the loss.
            rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
                such as "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
                if not given, those with k = 1 and the commonest routing frequency, of every seed.
            huber: Minimise the sum of Huber terms with this delta (in log10 units) instead of the mean square.
            json: Print one JSON object and nothing else.
        """
        report = fit_report(table, law, loss, rows, huber)
        if json:
            print(dump_json(as_dict(report), allow_nan=False))
        else:
            print_fit(report)

    _run(fit, "fit", arguments)


def _predict(arguments: list[str]) -> None:
    import tyro

    from .report.predict_command import as_dict, predict_report, print_prediction

    def predict(
        table: tyro.conf.Positional[Path | None] = None,
        law: str = "routed-bounded",
        n: float | None = None,
        experts: float | None = None,
        teraflops: float | None = None,
        utilisation: float | None = None,
        router: str | None = None,
        loss: str = "loss_validation",
        rows: str | None = None,
        level: float = 0.95,
        json: bool = False,
    ) -> None:
        """Predict a loss with a law fitted to a results table.

        Args:
            table: A results table; if not given, the one that the paper's authors released, and of it the rows clark.
            law: dense, per-size, separable, bilinear, routed-bounded or routed-utilisation.
            n: N, dense parameters.
            experts: E, experts per routed layer; 1 is a dense model.
            teraflops: F, TeraFLOPs of a forward pass of 2,048 tokens, for routed-utilisation.
            utilisation: B, parameters per forward FLOP of one token, for routed-utilisation.
            router: One router_type alone; all of the table if not given.
            loss: Column of the loss.
            rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
                such as "k == 1 and num_experts in (1, 16, 64)". The last evaluation of every run that is kept is used;
                if not given, those with k = 1 and the commonest routing frequency, of every seed.
            level: Confidence level of the intervals.
            json: Print one JSON object and nothing else.
        """
        if table is None:
            from .released import released_table

            table = released_table()
            rows = "clark" if rows is None and law != "routed-utilisation" else rows
        at = {"dense_parameters": n, "num_experts": experts, "teraflops": teraflops, "utilisation": utilisation}
        report = predict_report(table, at, law, loss, rows, router, level)
        if json:
            print(dump_json(as_dict(report), allow_nan=False))
        else:
            print_prediction(report)

    _run(predict, "predict", arguments)


def _convert(arguments: list[str]) -> None:
    import tyro

    from .convert import convert_runs, parse_pairs

    def convert(
        runs: tyro.conf.Positional[Path],
        out: Path,
        columns: tuple[str, ...] = (),
        set: tuple[str, ...] = (),
        loss_unit: str = "nats",
    ) -> None:
        """Write your own runs as a results table.

        Args:
            runs: CSV or JSON lines (.csv, .csv.gz, .jsonl, .jsonl.gz), one row for each evaluation.
            out: The table, .csv or .csv.gz; a file that is there already is not overwritten.
            columns: TABLE=YOURS ..., such as loss_validation=val_loss,num_experts=E; columns with the table's names
                need none. hyper_id may be the name of the run.
            set: TABLE=VALUE ..., such as k=1, for cells that are blank. A router_type that is set is that of the rows
                with more than one expert; the others become Dense.
            loss_unit: nats, bits or perplexity, per token.
        """
        done = convert_runs(runs, out, parse_pairs(columns, "--columns"), parse_pairs(set, "--set"), loss_unit)
        for remark in done.remarks:
            print(remark, file=sys.stderr)
        print(f"{out}: {done.rows} rows of {done.runs} runs")

    _run(convert, "convert", arguments)


def _report(arguments: list[str]) -> None:
    import tyro

    from .report.sweep_report import write_report

    def report(folder: tyro.conf.Positional[Path]) -> None:
        """Write the report of a sweep again.

        Args:
            folder: Folder of the sweep.
        """
        print(write_report(folder))

    _run(report, "report", arguments)


def _reproduce(arguments: list[str]) -> None:
    import markdown_it  # noqa: F401  # as in `sweep`: the pages are written last
    import matplotlib  # noqa: F401
    import tyro

    from .report.reproduce.command import reproduce as write

    def reproduce(
        table: tyro.conf.Positional[Path | None] = None,
        *,
        out: Path,
        rows: str | None = None,
        loss: str | None = None,
    ) -> None:
        """Hold a results table against the paper: report.md, report.html, results.json and figures.

        Args:
            table: A results table, .csv or .csv.gz; if not given, the one that the paper's authors released.
            out: Folder of the report; a report in it is replaced.
            rows: The preset clark, or a condition on the columns, such as "seed == 42 and step <= 100000" or
                such as "k == 1 and num_experts in (1, 16, 64)"; if not given, clark for the released runs and
                every seed for others.
            loss: Column of the main loss; loss_validation if not given.
        """
        if table is None:
            from .released import released_table

            table = released_table()
        print(write(table, out, rows, loss, say=lambda line: print(line, file=sys.stderr, flush=True)))

    _run(reproduce, "reproduce", arguments)


def _evaluate(arguments: list[str]) -> None:
    import tyro

    from .training.evaluate import evaluate_run

    def evaluate(
        folder: tyro.conf.Positional[Path],
        group_size: int | None = None,
        one_hot: bool = False,
        tokens: int | None = None,
        json: bool = False,
    ) -> None:
        """Evaluate a trained model again, also with other groups of sequences.

        Args:
            folder: Folder of a run; its last checkpoint is used, on the texts that it was evaluated on.
            group_size: Sequences in a group, for expert_choice and mixture_of_tokens; 1 leaves each alone.
            one_hot: Mixtures of one token each, for mixture_of_tokens.
            tokens: Evaluation tokens; as many as in the run if not given.
            json: Print one JSON object and nothing else.
        """
        tell = functools.partial(print, file=sys.stderr)
        found = evaluate_run(folder, group_size=group_size, one_hot=one_hot, tokens=tokens, tell=tell)
        if json:
            print(dump_json(found))
            return
        groups = f", groups of {found['group_size']}" if found["group_size"] > 1 else ""
        groups += ", mixtures of one token each" if one_hot else ""
        for name in (name.removeprefix("loss_") for name in found if name.startswith("loss_")):
            error = found[f"standard_error_{name}"]
            spread = "" if error is None else f" ± {error:.4f} (standard error over documents)"
            of = f"{found[f'tokens_{name}']:,} tokens of {found[f'documents_{name}']:,} documents{groups}"
            print(f"{folder}: loss_{name} {found[f'loss_{name}']:.4f}{spread} nats per token ({of})")

    _run(evaluate, "evaluate", arguments)


def _generate(arguments: list[str]) -> None:
    import tyro

    from .training.generate import generate as continue_text

    def generate(
        folder: tyro.conf.Positional[Path],
        prompt: str = "",
        tokens: int = 200,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> None:
        """Continue a text with a trained model.

        Args:
            folder: Folder of a run.
            prompt: The text to continue.
            tokens: How many tokens to sample.
            temperature: 0 takes the most likely token each time, 1 samples from the model as it is.
            seed: Of the sampling.
        """
        print(continue_text(folder, prompt, tokens=tokens, temperature=temperature, seed=seed))

    _run(generate, "generate", arguments)


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """Return the value of a flag that has to be known before the others are read."""
    for i, argument in enumerate(arguments):
        if argument == flag:
            return arguments[i + 1] if i + 1 < len(arguments) else None
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None
