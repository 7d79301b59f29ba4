"""Downstream tasks for a trained model: multiple choice by log-likelihood, and the last word of a text.

A task is a file of JSON lines, one question per line, in one of two layouts. Other entries are ignored.

    {"context": "The sky is", "choices": [" blue", " square"], "answer": 0}      answer counts from 0
    {"text": "He opened the door with the key"}                                  the model predicts the last word

Context and choice are joined unchanged, so a choice begins with a space. A space at the end of a context moves to the
front of the choice: the tokenizer joins a space to the next word. Context and choice are encoded separately, so the
tokens of a choice do not depend on the context (our choice).

    choice      Three measures rank the choices: ln p(choice | context), summed over the tokens of the choice; this sum
                per token; and this sum per character (without blanks at the ends). Ties go to the first choice.
                The guess rate is the mean of 1 / (number of choices).
    last word   An answer is right if each token of the word is the most likely token after the tokens before it.
                The guess rate is 0.

The standard error of an accuracy a on n questions is √(a (1 - a)/(n - 1)). Every sequence begins with the
end-of-document token, as in training. If a sequence exceeds the S tokens of the window, its context is truncated at the
beginning. A choice must fit.
"""

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InputError
from ..files import read_bytes
from ..json_files import parse_json, shown
from ..transformer import apply
from ..wording import plural
from .evaluate import changed_model
from .runs.run_folder import read_config, read_results
from .runs.weights import SavedRun, load_run
from .step import compute_dtype
from .text.tokenizer import END_OF_DOCUMENT
from .watch import telling

TRAINING = 3
"""FLOPs of a training step divided by FLOPs of its forward pass."""

MEASURES = {
    "accuracy": "summed over the tokens",
    "accuracy_per_token": "per token",
    "accuracy_per_character": "per character",
}
"""Measures that rank the choices, by the names in `evaluate_task`."""


class Question(NamedTuple):
    """A question: the context, the choices, and the index of the right choice."""

    context: str
    choices: tuple[str, ...]  # only the last word if the question has no choices
    answer: int
    line: int  # line number in the file, from 1


class Scores(NamedTuple):
    """A model's score of one continuation."""

    log_likelihood: float  # nats, summed over its tokens
    tokens: int
    greedy: bool  # whether each token is the most likely token
    cut: bool  # whether the context was truncated at its beginning


def evaluate_task(
    folder: Path, task: Path, *, group_size: int | None = None, one_hot: bool = False, tell=print
) -> dict:
    """Return the accuracy of the last checkpoint of a run on a task.

    Args:
        group_size: as in `evaluate_run`; must be 1 for routers that group sequences.

    Returns:
        {"router", "task": its name, "kind": "choice" or "last word", "questions": n, "guess_rate", "accuracy",
        "standard_error" (None with one question), "accuracy_per_token" and "accuracy_per_character" with their
        "standard_error_..." (choice only), "log_likelihood": mean log-likelihood of the right answer, nats, "cut":
        number of truncated contexts, "params": N without the embedding, "tokens": training tokens of the weights, also
        in earlier runs, "flops": three times the FLOPs of their forward passes, and "loss_NAME": the losses of the
        run's evaluation at the step of the checkpoint}. Weights of another program have no tokens and no FLOPs.

    Raises:
        InputError: the folder has no run, a line of the task cannot be read, or the model needs several texts at a
            time.
    """
    folder = Path(folder)
    questions = read_task(task)
    config = read_config(folder)
    model = changed_model(config, group_size, one_hot)
    if model.objective != "causal":
        raise InputError(f"{folder}: the model predicts hidden tokens from both sides; a task needs a causal model")
    if model.record.grouped and model.group_size != 1:
        raise InputError(
            f"{folder}: its router {model.router} groups {model.group_size} sequences, so the choices of a "
            "question would affect each other; use --group-size 1"
        )
    run = load_run(folder, telling(tell))
    score = jax.jit(functools.partial(_score, config=model, table=run.table, dtype=compute_dtype(config)))
    tell(f"{task}: {plural(len(questions), 'question')}")
    scores = score_questions(
        questions,
        run.tokenizer.encode,
        functools.partial(score, run.params),
        config.sequence_length,
        config.batch_size,
        task,
    )
    name = Path(task).name.partition(".")[0]
    return {"router": config.model.router, "task": name} | summary(questions, scores) | _training(folder, run)


def table_row(folder: Path, found: dict) -> dict:
    """Return the result of `evaluate_task` as a row for `tables.accuracies.add_run`."""
    kept = {name: value for name, value in found.items() if name in ("params", "tokens", "flops")}
    kept |= {name: value for name, value in found.items() if name.startswith("loss_")}
    scores = {f"acc_{found['task']}{m.removeprefix('accuracy')}": found[m] for m in MEASURES if m in found}
    guesses = {name.replace("acc_", "guess_", 1): found["guess_rate"] for name in scores}
    return {"run": str(folder)} | kept | scores | guesses


def read_task(path: Path) -> list[Question]:
    """Return the questions of a task.

    Raises:
        InputError: the file cannot be read, or a line is not a question; the message names the line.
    """
    try:
        # Not splitlines(): it also breaks at characters that JSON allows within a string.
        lines = read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    questions = [_question(f"{path}, line {at}", line, at) for at, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise InputError(
            f"{path}: holds no questions; needed: JSON lines with context, choices and answer, or with text"
        )
    kinds = [_is_choice(question) for question in questions]
    if len(set(kinds)) > 1:
        other = questions[kinds.index(not kinds[0])]
        raise InputError(f"{path}, line {other.line}: its layout differs from line {questions[0].line}")
    return questions


def score_questions(questions, encode, score, length: int, batch: int, where) -> list[list[Scores]]:
    """Return the scores of every choice of every question.

    Args:
        encode: a function from a text to the identifiers of its tokens.
        score: a function from windows [b, S + 1] to (log-probability of each token after the first [b, S], whether this
            token is the most likely [b, S]).
        batch: b, number of windows in a batch.

    Raises:
        InputError: a choice has too many tokens, or its log-likelihood is NaN, which `np.argmax` ranks first.
    """
    windows, places = [], []
    for question in questions:
        for choice in question.choices:
            context = question.context.rstrip()
            end = encode(question.context[len(context) :] + choice)
            if not 0 < len(end) <= length:
                raise InputError(
                    f"{where}, line {question.line}: {choice!r} has {len(end)} tokens; needed: 1 to {length}, the "
                    "sequence length of the model"
                )
            ids = [END_OF_DOCUMENT, *encode(context), *end]
            kept = ids[-(length + 1) :]
            windows.append(kept + [END_OF_DOCUMENT] * (length + 1 - len(kept)))
            places.append((len(kept) - 1 - len(end), len(kept) - 1, len(kept) < len(ids)))
    padded = np.array(windows + windows[:1] * (-len(windows) % batch), np.int32).reshape(-1, batch, length + 1)
    parts = [[np.asarray(part) for part in score(block)] for block in padded]
    likely, best = (np.concatenate(column) for column in zip(*parts, strict=True))
    scores = iter(
        Scores(float(np.sum(row[start:stop], dtype=np.float64)), stop - start, bool(np.all(most[start:stop])), cut)
        for row, most, (start, stop, cut) in zip(likely, best, places, strict=False)
    )
    scored = [[next(scores) for _ in question.choices] for question in questions]
    for question, question_scores in zip(questions, scored, strict=True):
        if any(math.isnan(item.log_likelihood) for item in question_scores):
            raise InputError(
                f"{where}, line {question.line}: a log-likelihood is NaN, so the model has no accuracy; use weights "
                "whose logits are finite"
            )
    return scored


def summary(questions: list[Question], scores: list[list[Scores]]) -> dict:
    """Return the result of `evaluate_task` for the questions."""
    cut = sum(any(item.cut for item in question_scores) for question_scores in scores)
    right = np.mean(
        [question_scores[q.answer].log_likelihood for q, question_scores in zip(questions, scores, strict=True)]
    )
    entries = {"kind": "choice" if _is_choice(questions[0]) else "last word", "questions": len(questions)}
    if not _is_choice(questions[0]):
        entries |= {"guess_rate": 0.0} | _accuracy(
            "accuracy", [question_scores[0].greedy for question_scores in scores]
        )
        return entries | {"log_likelihood": float(right), "cut": cut}
    entries["guess_rate"] = float(np.mean([1 / len(question.choices) for question in questions]))
    for measure in MEASURES:
        hits = []
        for question, question_scores in zip(questions, scores, strict=True):
            sizes = {
                "accuracy": [1] * len(question_scores),
                "accuracy_per_token": [item.tokens for item in question_scores],
                "accuracy_per_character": [max(len(choice.strip()), 1) for choice in question.choices],
            }[measure]
            values = [item.log_likelihood / size for item, size in zip(question_scores, sizes, strict=True)]
            hits.append(int(np.argmax(values)) == question.answer)
        entries |= _accuracy(measure, hits)
    return entries | {"log_likelihood": float(right), "cut": cut}


def _training(folder: Path, run: SavedRun) -> dict:
    rows, counted = [row for row in read_results(folder)[0] if int(row["step"]) == run.step], run.config.accounting()
    flops = TRAINING * counted.flops_per_token * run.tokens
    cost = {"tokens": run.tokens, "flops": flops} if run.tokens else {}
    losses = {k: float(v) for k, v in rows[-1].items() if k.startswith("loss_") and v} if rows else {}
    return {"params": counted.dense_parameters} | cost | losses


def _accuracy(name: str, hits: list[bool]) -> dict:
    share, count = float(np.mean(hits)), len(hits)
    error = math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else None
    return {name: share, name.replace("accuracy", "standard_error"): error}


def _is_choice(question: Question) -> bool:
    return len(question.choices) > 1


def _question(where: str, line: str, at: int) -> Question:
    try:
        entry = parse_json(line)
        json.dumps(entry, ensure_ascii=False).encode("utf-8")  # a lone surrogate is JSON, but no text
    except ValueError as error:
        raise InputError(f"{where}: is not valid JSON ({error})") from None
    if not isinstance(entry, dict):
        raise InputError(f"{where}: is not a JSON object")
    if "text" in entry and "choices" not in entry:
        text = entry["text"]
        if not isinstance(text, str) or len(text.split()) < 2:
            raise InputError(f"{where}: text is {shown(text)}; needed: text of at least two words")
        text = text.rstrip()
        start = len(text) - len(text.split()[-1])
        return Question(text[:start], (text[start:],), 0, at)
    missing = [name for name in ("context", "choices", "answer") if name not in entry]
    if missing:
        raise InputError(f"{where}: has no {' and no '.join(missing)}; needed: context, choices and answer, or text")
    context, choices, answer = entry["context"], entry["choices"], entry["answer"]
    if not isinstance(context, str):
        raise InputError(f"{where}: context is {shown(context)}; needed: text")
    if not (isinstance(choices, list) and len(choices) > 1 and all(isinstance(c, str) and c.strip() for c in choices)):
        raise InputError(
            f"{where}: choices are {shown(choices)}; needed: a list of at least two texts that are not blank"
        )
    if not (isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices)):
        raise InputError(f"{where}: answer is {shown(answer)}; needed: a whole number from 0 to {len(choices) - 1}")
    return Question(context, tuple(choices), answer, at)


def _score(params: dict, windows: jax.Array, *, config, table, dtype) -> tuple[jax.Array, jax.Array]:
    """Return, for each token after the first, its log-probability and whether it is the most likely: [b, S] each."""
    output = apply(params, windows[:, :-1], config, table=table, compute_dtype=dtype)
    logits = output.logits.astype(jnp.float32)
    targets = windows[:, 1:]
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return likely, jnp.argmax(logits, axis=-1) == targets
