"""The command line: `routelaws train | sweep | fit | predict | plan | report`, and more (`COMMANDS`).

Exit code 0: done, or stopped by a signal with a checkpoint ("to resume"). Exit code 2: wrong input, with one line on
standard error. Exit code 1: a bug of ours. Results go to standard output; progress and remarks go to standard error.
"""

import contextlib
import importlib
import os
import sys
import warnings

from .caches import keep_programs
from .errors import InputError, SlowerWarning, WorkerDiedError, in_line
from .files import file_line
from .training.stopping import Resumable, stoppable

EXTRAS = {
    "train": ("cyclopts", "flatbuffers", "grain", "optax", "orbax", "rich", "safetensors", "sentencepiece"),
    "laws": ("cyclopts", "markdown_it", "matplotlib", "pandas", "pooch", "rich"),
    "gguf": ("gguf",),
}
"""The packages that each extra adds to the base install, by import name."""

NEEDED = {
    "train": "train",
    "sweep": "train,laws",
    "evaluate": "train",
    "generate": "train",
    "inspect": "train",
    "export": "train",
    "plan-mesh": "train",
    "compile": "train",
    "probe": "train,laws",
    "convert-weights": "train,laws",
}
"""{command: its extras}, for the commands in `commands/models`. The commands in `commands/laws` need `laws`."""

TRAINING = ("train", "sweep", "evaluate", "generate", "inspect", "report")
"""The commands that compile a model; they use JAX's cache of compiled programs."""

RESUMABLE = ("train", "sweep")
"""The commands that SIGTERM and Ctrl-C stop with a checkpoint and exit code 0."""

COMMANDS = {
    "train": "Train one model.",
    "sweep": "Train a grid of models, fit the law to it and write the report.",
    "fit": "Fit a law to a results table.",
    "predict": "Predict a loss, an accuracy or a leverage by a law fitted to a table, or by published coefficients.",
    "plan": "Rank the models that fit a budget, with the uncertainty of the ranking.",
    "court": "Judge printed and fitted laws of the loss on tables that they have not seen.",
    "recipe": "Print the peak learning rate and the batch of a model by several recipes, or fit a recipe to runs.",
    "plan-mesh": "Find meshes of devices that a model fits on, and their cost, without building the model.",
    "compile": "Compile a run for a slice of a TPU pod, without a TPU: memory, FLOPs and communication.",
    "probe": "Time training steps on this machine, for plan --hours.",
    "convert": "Write your own runs as a results table.",
    "report": "Write the report of a sweep or of one run, or compare runs.",
    "reproduce": "Compare a results table (default: the paper's) with the paper: report, figures, numbers.",
    "downstream": "Compare laws of downstream accuracy: fit them below a budget and score them above it.",
    "evaluate": "Evaluate a trained model on its own texts, on other texts or on a downstream task.",
    "generate": "Continue a text with a trained model.",
    "inspect": "Show what the routers of a trained model do with a text.",
    "convert-weights": "Write a trained model for transformers or llama.cpp, or read a folder of transformers.",
    "export": "Write the train step of a model to a file that runs on other platforms.",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: the command and its flags; None for the arguments of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if hasattr(sys.stdout, "reconfigure"):  # an output that lacks Greek letters, such as on Windows, gets escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    command = ""
    try:
        limits, (command, *rest) = _split(arguments)
        if command in ("", "-h", "--help"):
            print(_usage())
            return 0 if command else 2
        with limits, _warnings():
            _obey(command, rest)
        sys.stdout.flush()
    except InputError as error:
        return _ended(error, 2)
    except WorkerDiedError as error:
        return _ended(error, 1)
    except ModuleNotFoundError as error:
        return _ended(_missing(error, command), 2)
    except Resumable as stop:
        return _ended(stop, 0)
    except KeyboardInterrupt:
        goes_on = "; repeat the command to resume from the last checkpoint" if command in RESUMABLE else ""
        return _ended(f"interrupted{goes_on}", 130)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):  # XLA's code for lack of memory
            raise
        return _ended(f"not enough memory: {str(error).partition(chr(10))[0]}; choose smaller sizes", 2)
    except BrokenPipeError:
        _close_output()  # the reader has closed the pipe
    except OSError as error:
        if error.filename is None:  # such as a full disk under the output
            _close_output()
        return _ended(file_line(error), 2)
    return 0


@contextlib.contextmanager
def _warnings():
    """Hide NumPy's runtime warnings (overflow, empty means), and print a `SlowerWarning` as a line, unless -W is given.

    Commands report non-finite results in another way: by a status, as "not determined", or as None in JSON.
    """
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore", RuntimeWarning)
            warnings.simplefilter("default", SlowerWarning)
            show = warnings.showwarning

            def as_line(message, category, *where, **more):
                if issubclass(category, SlowerWarning):
                    print(f"routelaws: {in_line(str(message))}", file=sys.stderr)
                else:
                    show(message, category, *where, **more)

            warnings.showwarning = as_line
        yield


def _split(arguments: list[str]):
    limits = contextlib.nullcontext()
    if arguments and arguments[0].startswith("--limit"):
        from .commands.flags import take_limits
        from .tables.schema import limited

        changed_limits, arguments = take_limits(arguments)
        limits = limited(changed_limits)
    return limits, arguments or [""]


def _obey(command: str, arguments: list[str]) -> None:
    if command == "--version":
        print(importlib.import_module("routelaws").__version__)
        return
    if any("\0" in argument for argument in arguments):
        raise InputError("an argument contains a NUL character (value 0); remove it")
    if command not in COMMANDS:
        raise InputError(f"unknown command {command!r}; allowed: {', '.join(COMMANDS)}")
    if command in TRAINING:
        keep_programs()
    with stoppable() if command in RESUMABLE else contextlib.nullcontext():
        _run(command, arguments)


def _close_output() -> None:
    with contextlib.suppress(OSError, ValueError):  # standard output may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ended(said: object, code: int) -> int:
    print(f"routelaws: {said if isinstance(said, InputError) else in_line(str(said))}", file=sys.stderr)
    return code


def _missing(error: ModuleNotFoundError, command: str) -> str:
    extras = NEEDED.get(command, "laws").split(",")
    package = (error.name or "").partition(".")[0]
    bringing = [extra for extra, packages in EXTRAS.items() if package in packages]
    if not bringing:
        raise error
    if not set(bringing) & set(extras):  # an option of the command needs more: `report` of a run needs `train`
        extras = [extra for extra in EXTRAS if extra in (*extras, bringing[0])]
    return f"{package} is missing; install it with: pip install 'routelaws[{','.join(extras)}]'"


def _run(command: str, arguments: list[str]) -> None:
    name, folder = command.replace("-", "_"), "models" if command in NEEDED else "laws"
    module = importlib.import_module(f"{__package__}.commands.{folder}.{name}")
    if hasattr(module, "main"):
        module.main(arguments)
    else:
        flags = importlib.import_module(f"{__package__}.commands.flags")
        flags.run(getattr(module, name), command, arguments)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: routelaws [--limit NAME=NUMBER ...] COMMAND [flags]",
            "",
            *lines,
            "",
            "routelaws COMMAND --help lists the flags. --limit changes a limit on tables: docs/columns.md.",
        ]
    )
