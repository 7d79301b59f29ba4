"""Downstream tasks: questions of a file, scores of a model, and accuracies by hand."""

import dataclasses
import json
import math
import re
import threading

import filelock
import jax
import numpy as np
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.accuracies import add_run, read_accuracies
from routelaws.accelerated.training import tasks
from routelaws.accelerated.training.runs import weights
from routelaws.accelerated.training.runs.run_folder import read_config
from routelaws.accelerated.training.tasks import Question, read_task, score_questions, summary
from routelaws.accelerated.training.text.tokenizer import Tokenizer
from routelaws.reference import configuration
from routelaws.reference import transformer as reference

from .small_runs import saved_run

CHOICES = [
    {"context": "import o", "choices": ["s", "t", "pen"], "answer": 0, "note": "passed over"},
    {"context": "def f(x): ", "choices": ["return x", "yield"], "answer": 1},
    {"context": "for i in range(10): " * 20, "choices": [" print(i)", " pass", " x"], "answer": 2},
]
WORDS = [{"text": "the quick brown fox "}, {"text": "return self.value"}]


def write(path, entries):
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run_folder(small_fields, tmp_path_factory):
    fields = {**small_fields, "steps": 8, "evaluations": 1, "router": "hash", "experts": 2}
    return saved_run(fields, tmp_path_factory.mktemp("tasks") / "run", at=8)


def oracle_logits(folder, ids: list[int]) -> np.ndarray:
    """Return the logits [S, V] of a sequence by the reference, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights.load_run(folder).params)
    model = configuration.ModelConfig(**dataclasses.asdict(read_config(folder).model))
    return reference.apply(params, np.array([ids]), model, table=weights.load_run(folder).table).logits[0]


def test_scores_are_those_of_each_text_by_itself(run_folder, tmp_path, capsys):
    """Batches, padding and truncation do not matter: the reference scores each continuation alone and unpadded."""
    path = write(tmp_path / "mine.jsonl", CHOICES)
    assert cli.main(["evaluate", str(run_folder), "--task", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    config, tokenizer = read_config(run_folder), Tokenizer((run_folder / "tokenizer.model").read_bytes())

    def alone(context, choice):
        end = tokenizer.encode(choice)
        whole = [1, *tokenizer.encode(context), *end]
        ids = whole[-(config.sequence_length + 1) :]
        logits = oracle_logits(run_folder, ids[:-1])
        likely = (logits - np.logaddexp.reduce(logits, axis=1)[:, None])[np.arange(len(ids) - 1), ids[1:]]
        return float(likely[-len(end) :].sum()), len(end), len(whole) > len(ids)

    joined = [("import o", ("s", "t", "pen")), ("def f(x):", (" return x", " yield")),
              (CHOICES[2]["context"].rstrip(), ("  print(i)", "  pass", "  x"))]  # fmt: skip
    scores = [[alone(context, choice) for choice in choices] for context, choices in joined]
    answers = [entry["answer"] for entry in CHOICES]
    for name, size in (
        ("accuracy", lambda score, choice: 1),
        ("accuracy_per_token", lambda score, choice: score[1]),
        ("accuracy_per_character", lambda score, choice: len(choice.strip())),
    ):
        hits = [
            int(np.argmax([s[0] / size(s, c) for s, c in zip(given, entry["choices"], strict=True)])) == entry["answer"]
            for given, entry in zip(scores, CHOICES, strict=True)
        ]
        assert found[name] == np.mean(hits)
    right = np.mean([given[answer][0] for given, answer in zip(scores, answers, strict=True)])
    assert np.isclose(found["log_likelihood"], right, rtol=1e-4)
    cut = sum(any(score[2] for score in given) for given in scores)
    assert (found["task"], found["kind"], found["questions"]) == ("mine", "choice", 3)
    assert found["cut"] == cut and 0 < cut < 3
    assert found["guess_rate"] == np.mean([1 / 3, 1 / 2, 1 / 3])
    assert found["tokens"] == 8 * 4 * 16 and found["params"] == config.accounting().dense_parameters
    assert found["flops"] == 3 * config.accounting().flops_per_token * found["tokens"]


def test_the_last_word_is_the_most_likely_one_or_not(run_folder, tmp_path, capsys):
    tokenizer, params = Tokenizer((run_folder / "tokenizer.model").read_bytes()), weights.load_run(run_folder).params
    config, table = read_config(run_folder), weights.load_run(run_folder).table
    ids = [1, *tokenizer.encode("x")]
    logits = oracle_logits(run_folder, ids)[-1]
    best = int(np.argmax(logits))
    score = jax.jit(lambda windows: tasks._score(params, windows, config=config.model, table=table, dtype=None))
    encode = {"x": [ids[1]], "best": [best], "other": [(best + 1) % 300]}.get
    questions = [Question("x", (word,), 0, at) for at, word in enumerate(("best", "other"), 1)]
    scores = score_questions(questions, lambda text: encode(text, []), score, 16, 4, "here")
    assert [given[0].greedy for given in scores] == [True, False]
    assert np.isclose(scores[0][0].log_likelihood, logits[best] - np.logaddexp.reduce(logits), rtol=1e-4)
    path, table = write(tmp_path / "words.jsonl", WORDS), tmp_path / "accuracies.csv"
    before = f"other,5,100,3.5,0.25,\n{run_folder},7,1,9,0.5,0.875\n"  # an earlier row of the run
    table.write_text(f"run,params,tokens,loss_validation,acc_quiz,acc_words\n{before}")
    results = run_folder / "results.csv"
    evaluations = "hyper_id,step,loss_validation,loss_c4\n0,4,5.5,\n"
    results.write_text(evaluations)
    command = ["evaluate", str(run_folder), "--task", str(path)]
    assert cli.main([*command, "--json"]) == 0
    early = json.loads(capsys.readouterr().out)
    assert early["tokens"] == 8 * 4 * 16 and "loss_validation" not in early, "the checkpoint is of step 8"
    foreign = weights.load_run(run_folder)._replace(tokens=0, step=0)
    assert tasks._training(run_folder, foreign) == {"params": early["params"]}, "another program trained these weights"
    results.write_text(evaluations + "0,8,5.25,\n")
    assert cli.main([*command, "--table", str(table)]) == 0
    results.unlink()
    printed = capsys.readouterr().out
    kept = read_accuracies(table)
    assert kept.run.tolist() == ["other", str(run_folder)] and kept.accuracies["quiz"].tolist() == [0.25, 0.5]
    assert kept.accuracies["words"][1] in (0, 0.5, 1) and np.isnan(kept.accuracies["words"][0])
    assert kept.tokens.tolist() == [100, 8 * 4 * 16] and kept.losses["validation"].tolist() == [3.5, 5.25]
    assert kept.flops[1] == 3 * config.accounting().flops_per_token * 8 * 4 * 16
    assert "words: accuracy" in printed and "the last word" in printed
    assert "2 questions; guessing gives an accuracy of 0.0000" in printed


def test_what_just_fills_the_window_is_not_cut():
    """A letter is a token, and its position in the alphabet is its loss. The model reads five letters at once."""
    questions = [Question("abc", ("de", "def"), 0, 1), Question("abcdefg", ("x", "vwxyz"), 1, 2)]

    def score(windows):
        return 96.0 - windows[:, 1:], windows[:, 1:] < ord("f")

    found = tasks.score_questions(questions, lambda text: [*map(ord, text)], score, 5, 3, "here")
    assert found == [
        [tasks.Scores(-9.0, 2, True, False), tasks.Scores(-15.0, 3, False, True)],
        [tasks.Scores(-24.0, 1, False, True), tasks.Scores(-120.0, 5, False, True)],
    ]


def test_a_model_without_likelihoods_has_no_accuracy():
    """NumPy's argmax returns the first NaN, so a question whose first choice is right would count as answered."""
    questions = [Question("a", ("b", "c"), 0, 1), Question("x", ("y", "z"), 0, 4)]

    def score(windows):
        bad = (windows == ord("x")).any(axis=1, keepdims=True)
        return np.where(bad, np.nan, -1.0 * windows[:, 1:]), windows[:, 1:] < 0

    with pytest.raises(InputError, match="quiz, line 4: a log-likelihood is NaN"):
        score_questions(questions, lambda text: [*map(ord, text)], score, 2, 4, "quiz")


def test_accuracies_by_hand():
    """Three choices: the first is best by the sum, the second per token, the third per character."""
    questions = [Question("", ("ab", "abcd", "abcdefghi"), answer, answer + 1) for answer in (0, 1, 2, 2)]
    sums = ((-2.0, 1, False, False), (-3.0, 3, False, True), (-4.0, 2, True, False))
    scores = [tasks.Scores(*given) for given in sums]
    found = summary(questions, [scores] * 4)
    assert (found["accuracy"], found["accuracy_per_token"], found["accuracy_per_character"]) == (0.25, 0.25, 0.5)
    errors = found["standard_error"], found["standard_error_per_character"]
    assert errors == (math.sqrt(0.25 * 0.75 / 3), math.sqrt(0.25 / 3))
    assert (found["guess_rate"], found["cut"], found["log_likelihood"]) == (1 / 3, 4, (-2 - 3 - 4 - 4) / 4)
    one = summary(questions[:1], [[scores[0]] * 3])
    assert (one["accuracy"], one["standard_error"]) == (1.0, None), "a tie goes to the first; one question has no error"
    spaced = [Question("", (" a", " bcd"), 1, 1)]  # -1 and -2.4 / 3; with the space counted -1 / 2 and -2.4 / 4
    assert summary(spaced, [[tasks.Scores(x, 1, False, False) for x in (-1.0, -2.4)]])["accuracy_per_character"] == 1


def test_a_run_has_one_row_in_a_table(tmp_path):
    """New values of a run replace its old values. Other rows and columns stay."""
    table = tmp_path / "table.csv"
    last = {"run": "a", "params": 5, "acc_y": 0.25}
    for run in ({"run": "a", "params": 4, "acc_x": 0.5}, {"run": "b", "params": 6}, last):
        add_run(table, run)
    assert table.read_text().split() == ["run,params,acc_x,acc_y", "a,5,0.5,0.25", "b,6,,"]
    table.write_text("name,params\na,5\n")
    with pytest.raises(InputError, match="table.csv: is not a table of runs; needed: a .csv file with"):
        add_run(table, {"run": "a"})
    assert table.read_text() == "name,params\na,5\n"


def test_a_run_is_added_to_what_others_have_added_meanwhile(tmp_path):
    """If tasks of a job array end together, a waiting task reads the table after the other task has written."""
    table = tmp_path / "table.csv"
    later = threading.Thread(target=add_run, args=(table, {"run": "b", "acc_x": 0.5}), daemon=True)
    with filelock.FileLock(tmp_path / ".table.csv.lock"):
        later.start()
        later.join(0.3)
        assert later.is_alive() and not table.exists(), "it did not wait"
        table.write_text("run,params\na,4\n")
    later.join(30)
    assert table.read_text().split() == ["run,params,acc_x", "a,4,", "b,,0.5"]


def test_layouts(tmp_path):
    words = read_task(write(tmp_path / "words.jsonl", WORDS))
    assert words == [Question("the quick brown ", ("fox",), 0, 1), Question("return ", ("self.value",), 0, 2)]
    assert read_task(write(tmp_path / "choices.jsonl", CHOICES))[1] == Question(
        "def f(x): ", ("return x", "yield"), 1, 2
    )


def test_a_line_of_a_task_ends_at_a_line_end_alone(tmp_path):
    """Other programs write the Unicode line separator and the ISO 8859 next line unescaped in JSON."""
    path = tmp_path / "task.jsonl"
    path.write_bytes('{"text": "one\u2028two three\u0085 four"}\r\n\r\n{"text": "five six"}'.encode())
    wanted = [Question("one\u2028two three\u0085 ", ("four",), 0, 1), Question("five ", ("six",), 0, 3)]
    assert read_task(path) == wanted


def test_a_space_at_the_end_of_a_context_belongs_to_the_choice():
    asked = []

    def encode(text):
        asked.append(text)
        return [5] * len(text.split())

    score_questions(
        [Question("a b ", ("c", "d"), 0, 1)], encode, lambda block: (np.zeros((2, 8)), np.ones((2, 8), bool)), 8, 2, "x"
    )
    assert asked == [" c", "a b", " d", "a b"]


@pytest.mark.parametrize(("likely", "right"), [((2, 3), True), ((3,), False), ((2,), False), ((1, 3), False)])
def test_a_last_word_is_right_if_all_of_its_tokens_are(likely, right):
    """The input has the end of a document, two tokens, and the two tokens of the word.

    Positions 2 and 3 predict the word.
    """
    best = np.isin(np.arange(8), likely)[None]
    scores = score_questions(
        [Question("a b", (" c d",), 0, 1)], lambda text: [5] * len(text.split()),
        lambda block: (np.zeros((1, 8)), best), 8, 1, "x",
    )  # fmt: skip
    assert scores[0][0].greedy == right and scores[0][0].tokens == 2


def test_what_cannot_be_evaluated_is_named(run_folder, tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"text": "un café"}'.encode("latin-1"))
    long = write(tmp_path / "long.jsonl", [{"context": "a", "choices": ["b " * 40, "c"], "answer": 0}])
    for arguments, message in (
        (["--task", tmp_path / "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["--task", empty], "holds no question"),
        (["--task", latin], "latin.jsonl: cannot be read: it is not UTF-8"),
        (["--task", long], "long.jsonl, line 1: .* tokens; needed: 1 to 16"),
        (["--task", empty, "--tokens", 4], "--tokens 4: a task uses all of its questions"),
        (["--table", tmp_path / "a.csv"], "--table needs the accuracies of a task; add --task"),
        (["--task", long, "--group-size", 2], "--group-size is for .*; this run's router is hash"),
        (["--task", long, "--one-hot"], "--one-hot is for mixture_of_tokens; this run's router is hash"),
        (["--group-size", 2], "--group-size is for .*; this run's router is hash"),
        (["--one-hot"], "--one-hot is for mixture_of_tokens; this run's router is hash"),
        (["--corpus", tmp_path / "none.txt"], "none.txt: no such file or folder"),
    ):
        assert cli.main(["evaluate", str(run_folder), *map(str, arguments)]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert re.search(message, error), error
