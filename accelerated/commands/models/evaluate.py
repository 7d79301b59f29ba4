"""The command `routelaws evaluate`: evaluate a trained model."""

from json import dumps as dump_json
from pathlib import Path

from ...errors import InputError
from ...tables.accuracies import add_run
from ...training.evaluate import evaluate_run
from ...training.tasks import MEASURES, evaluate_task, table_row
from ...training.window_losses import few_documents
from ...wording import plural
from ..flags import refuse
from ..terminal import remark, say


def evaluate(
    folder: Path,
    /,
    *,
    group_size: int | None = None,
    one_hot: bool = False,
    tokens: int | None = None,
    corpus: tuple[str, ...] = (),
    task: Path | None = None,
    table: Path | None = None,
    routing: Path | None = None,
    json: bool = False,
) -> None:
    """Evaluate a trained model on its own texts, on other texts or on a downstream task.

    Args:
        folder: Folder of a run. The command evaluates its last checkpoint, on the run's evaluation texts unless you
            name others.
        group_size: Sequences in a group, for expert_choice and mixture_of_tokens. With 1, each sequence is a group.
        one_hot: For mixture_of_tokens: each mixture holds one token.
        tokens: Number of evaluation tokens. If not given: as many as in the run.
        corpus: Other texts, each a file, a folder or a pattern in quotes, such as 'notes/*.txt'. Prints the loss on
            each whole text, with the run's own tokenizer. The training text is then not needed.
        task: Questions instead of texts, one JSON object per line: {"context", "choices", "answer"} or {"text"}. With
            the key "choices", the model picks the most likely choice, and "answer" counts from 0. With the key "text",
            the model predicts the last word. The command adds no space between context and choice, so begin each choice
            with a space.
        table: With --task: a .csv file for `routelaws downstream`, with one row per run. The command writes the
            accuracy into this file.
        routing: A file that `routelaws inspect --out` wrote. Prints two losses on its tokens: one with the experts and
            gates of the file, one with the experts and gates that the run's routers choose.
        json: Print only one JSON object.
    """
    texts = {"tokens": tokens, "corpus": corpus or None}
    if routing is not None:
        others = {"task": task, "table": table, "group-size": group_size, "one-hot": one_hot or None}
        refuse(others | texts, "the file of --routing has the tokens and groups; leave it out")
        _tell_replay(folder, routing, json)
        return
    if task is not None:
        refuse(texts, "a task uses all of its questions; leave it out")
        evaluation = evaluate_task(folder, task, group_size=group_size, one_hot=one_hot, tell=remark)
        if table is not None:
            add_run(table, table_row(folder, evaluation))
        _tell_task(folder, evaluation, json)
        return
    if table is not None:
        raise InputError("--table needs the accuracies of a task; add --task")
    evaluation = evaluate_run(folder, group_size=group_size, one_hot=one_hot, tokens=tokens, corpus=corpus, tell=remark)
    if json:
        print(dump_json(evaluation))
        return
    groups = f", groups of {evaluation['group_size']}" if evaluation["group_size"] > 1 else ""
    groups += ", mixtures of one token each" if one_hot else ""
    for name in (name.removeprefix("loss_") for name in evaluation if name.startswith("loss_")):
        error = evaluation[f"standard_error_{name}"]
        few = few_documents(evaluation[f"documents_{name}"])
        spread = "" if few else f" ± {error:.4f} (standard error over documents)"
        of = f"{evaluation[f'tokens_{name}']:,} tokens of {evaluation[f'documents_{name}']:,} documents{groups}"
        label = f"loss on {name}" if corpus else f"loss_{name}"
        say(f"{folder}: {label} {evaluation[f'loss_{name}']:.4f}{spread} nats per token ({of})")
        if few:
            say(f"{folder}: {label}: {few}")


def _tell_replay(folder: Path, routing: Path, json: bool) -> None:
    from ...inspection.replay import replay

    losses = replay(folder, routing, remark)
    if json:
        print(dump_json(losses))
        return
    how = "experts and gates" if losses["gates"] else "experts"
    loss_text = (
        f"loss {losses['loss']:.4f} with the {how} of {routing}, {losses['loss_own']:.4f} with the run's own {how}"
    )
    say(f"{folder}: {loss_text} (nats per token, {losses['tokens']:,} tokens)")


def _tell_task(folder: Path, found: dict, json: bool) -> None:
    if json:
        print(dump_json(found))
        return
    for measure, by in MEASURES.items():
        if measure not in found:
            continue
        error = found[measure.replace("accuracy", "standard_error")]
        spread = "" if error is None else f" ± {error:.4f} (standard error over questions)"
        how = f", choosing by the log-likelihood {by}" if found["kind"] == "choice" else " on the last word"
        say(f"{folder}: {found['task']}: {measure} {found[measure]:.4f}{spread}{how}")
    questions = plural(found["questions"], "question")
    say(f"{folder}: {found['task']}: {questions}; guessing gives an accuracy of {found['guess_rate']:.4f}")
    if found["cut"]:
        say(f"{folder}: {found['task']}: the start of the context was truncated in {plural(found['cut'], 'question')}")
