"""The tokenizer restores every text, and the cache of tokens has only complete entries."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.text import tokenizer as tokenizer_module
from routelaws.accelerated.training.text import tokens as module
from routelaws.accelerated.training.text.corpus import read_corpus
from routelaws.accelerated.training.text.tokenizer import (
    END_OF_DOCUMENT,
    LINE_END,
    SMALLEST_VOCABULARY,
    Tokenizer,
    train_tokenizer,
)
from routelaws.accelerated.training.text.tokens import changed_files, default_cache, load_tokens, prepare_tokens

V = 320

TEXT = "".join(f"def name_{i}(x):\n    return x + {i}  # naïve 😀 <0x41> <s> </s> <unk>\n" for i in range(300))

AWKWARD = [" ", "  ", "\t", "\n", "\r\n", "\r", "\0", "\u2581", "\u2581 ", "😀", "e\u0301", "\ufeff", "\u2028"]
AWKWARD += ["\ue000", "<0x41>", "<0x0A>", "<s>", "</s>", "<unk>", " \u2047 ", "\ufffd", "\U0010ffff", "return", "    "]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(train_tokenizer([TEXT], V))


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return read_corpus([str(tmp_path / "text.txt")])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTELAWS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(line): ...


def contents(files):
    """Return the bytes of the three files of an entry."""
    return [path.read_bytes() for path in (files.tokenizer, files.train, files.validation)]


# TOKENIZER


@settings(max_examples=30, deadline=None, derandomize=True)
@given(parts=st.lists(st.one_of(st.sampled_from(AWKWARD), st.text(max_size=8)), max_size=12))
def test_every_text_comes_back(tokenizer, parts):
    text = "".join(parts)
    identifiers = tokenizer.encode(text)
    assert tokenizer.decode(identifiers) == text
    assert b"".join(map(tokenizer.content, identifiers)) == text.encode()
    assert all(LINE_END <= i < V for i in identifiers)  # neither <unk> nor an end of document
    assert tokenizer.encode_all([text, "x", text]) == [identifiers, tokenizer.encode("x"), identifiers]


def test_identifiers_are_as_stated(tokenizer):
    assert tokenizer.vocab_size == V
    assert tokenizer.encode("\n\n") == [LINE_END, LINE_END]
    assert tokenizer.encode("\x07") == [3 + 7]
    assert tokenizer.decode(np.array([END_OF_DOCUMENT, 3 + 65, END_OF_DOCUMENT, 3 + 0xFF])) == "A\ufffd"
    assert len(tokenizer.encode("        ")) < 4  # runs of spaces are pieces


def test_a_long_text_is_trained_on_every_nth_piece(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "SAMPLE", 100)
    for pieces, chosen in ((20, range(20)), (21, range(0, 21, 2)), (61, range(0, 61, 4))):
        assert tokenizer_module._sample([f"{i:05d}" for i in range(pieces)]) == [f"{i:05d}" for i in chosen]


def test_training_twice_gives_the_same_bytes():
    assert train_tokenizer([TEXT], V) == train_tokenizer([TEXT], V)


@pytest.mark.parametrize("vocab_size", [SMALLEST_VOCABULARY, 265, 300, 400])
@pytest.mark.parametrize("text", [TEXT, "".join(map(chr, range(0x4E00, 0x5200))) * 3], ids=["code", "chinese"])
def test_the_vocabulary_is_exactly_as_asked(text, vocab_size):
    tokenizer = Tokenizer(train_tokenizer([text], vocab_size))
    assert tokenizer.vocab_size == vocab_size
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_many_characters_leave_room_for_pairs():
    tokenizer = Tokenizer(train_tokenizer(["".join(map(chr, range(0x4E00, 0x5200))) * 3 + " abab" * 999], 280))
    assert len(tokenizer.encode("abab")) < 4


def test_long_lines_without_spaces():
    text = "ab" * 50_000 + "\u2581" + "c" * 10
    tokenizer = Tokenizer(train_tokenizer([text], 266))
    assert len(tokenizer.encode("ab" * 8)) < 8  # the long line is in the training text
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "vocab_size", "words"),
    [
        (TEXT, 200, "use 264 or more"),
        (TEXT, 50_000, r"for vocab_size 50000: it supports at most \d+ pieces; .*, or use a smaller vocab_size$"),
        ("a", 500, r"for vocab_size 500: it supports at most \d+ pieces; give more text$"),
        ("\n\n\n", 300, "has only line ends"),
        ("", 300, "has only line ends"),
    ],
)
def test_vocabulary_that_the_text_does_not_support(text, vocab_size, words):
    with pytest.raises(InputError, match=words) as caught:
        train_tokenizer([text], vocab_size)
    assert "\n" not in str(caught.value)


def test_the_most_that_is_named_is_what_works():
    with pytest.raises(InputError) as caught:
        train_tokenizer([TEXT], 50_000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert Tokenizer(train_tokenizer([TEXT], most)).vocab_size == most


# TOKENS


@pytest.mark.parametrize("at_once", [module.DOCUMENTS_AT_ONCE, 3])
def test_tokens_are_the_text_with_an_end_after_every_piece(corpus, cache, monkeypatch, at_once):
    monkeypatch.setattr(module, "DOCUMENTS_AT_ONCE", at_once)
    files = prepare_tokens(corpus, V, tell=quiet)
    tokenizer = files.load_tokenizer()
    for half, path, count in (
        (corpus.training, files.train, files.train_tokens),
        (corpus.validation, files.validation, files.validation_tokens),
    ):
        tokens = load_tokens(path, files.dtype)
        assert tokens.dtype == np.uint16 and tokens.shape == (count,) and not tokens.flags.writeable
        ends = np.flatnonzero(tokens == END_OF_DOCUMENT)
        assert ends[-1] == count - 1
        documents = np.split(tokens, ends + 1)[:-1]
        assert [tokenizer.decode(document) for document in documents] == [document.text for document in half]
    size = sum(len(document.text.encode("utf-8")) for document in corpus.validation)
    assert files.bytes_per_token == size / files.validation_tokens
    assert files.vocab_size == V


def test_the_tokenizer_never_sees_validation_text(corpus, cache, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "train_tokenizer", lambda texts, v: seen.extend(texts) or train_tokenizer(texts, v))
    prepare_tokens(corpus, V, tell=quiet)
    assert seen == [document.text for document in corpus.training]


def test_large_identifiers_take_four_bytes(corpus, cache, monkeypatch):
    made = train_tokenizer([TEXT], V)
    monkeypatch.setattr(module, "train_tokenizer", lambda texts, v: made)
    narrow, wide = (prepare_tokens(corpus, v, tell=quiet) for v in (65_536, 65_537))
    assert (narrow.dtype, wide.dtype) == ("uint16", "uint32")
    assert np.array_equal(load_tokens(narrow.train, "uint16"), load_tokens(wide.train, "uint32"))


def test_the_cache_is_used_and_standard_output_stays_empty(corpus, cache, monkeypatch, capfd):
    first = prepare_tokens(corpus, V)
    said = capfd.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2  # SentencePiece prints nothing
    monkeypatch.setattr(module, "train_tokenizer", lambda *arguments: pytest.fail("made again"))
    assert prepare_tokens(corpus, V) == first
    assert capfd.readouterr() == ("", "")
    assert os.listdir(cache) == [first.folder.name]
    assert corpus.content_hash in first.folder.name


def test_where_the_cache_is(monkeypatch):
    for name in ("ROUTELAWS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache() == Path("/home/someone/.cache/routelaws/tokens")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache() == Path("/caches/routelaws/tokens")
    monkeypatch.setenv("ROUTELAWS_CACHE", "/here")
    assert default_cache() == Path("/here")


@pytest.mark.parametrize("name", ["tokenizer.model", "train.bin", "validation.bin", "meta.json"])
@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_damaged_entry_is_made_again_and_said(corpus, cache, name, damage):
    files = prepare_tokens(corpus, V, tell=quiet)
    whole = contents(files)
    path = files.folder / name
    data = bytearray(path.read_bytes())
    middle = data.index(b",", data.index(b"train_tokens")) - 1 if name == "meta.json" else len(data) // 2
    data[middle] ^= 1  # in meta.json, the last digit of a number, so that the file still parses
    path.unlink()
    if damage != "remove":
        path.write_bytes(data[: len(data) if damage == "flip" else -1 if name != "meta.json" else -4])
    said = []
    assert prepare_tokens(corpus, V, tell=said.append) == files
    assert contents(files) == whole
    assert name in said[0] and "again" in said[0]
    assert os.listdir(cache) == [files.folder.name]


def test_nothing_is_left_after_an_error(corpus, cache, monkeypatch):
    with pytest.raises(InputError, match="supports at most"):
        prepare_tokens(corpus, 50_000, tell=quiet)
    assert os.listdir(cache) == []

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_tokens", full)
    with pytest.raises(InputError, match="No space left on device"):
        prepare_tokens(corpus, V, tell=quiet)
    assert os.listdir(cache) == []


def test_cache_that_cannot_be_a_folder(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="ROUTELAWS_CACHE"):
        prepare_tokens(corpus, V, tmp_path / "file", tell=quiet)


@pytest.mark.parametrize(
    "step", ["_write_tokens", *(pytest.param(name, marks=pytest.mark.slow) for name in ("train_tokenizer", "_publish"))]
)
def test_a_killed_run_leaves_no_entry(corpus, cache, step):
    script = f"""
        import os, signal, sys
        from routelaws.accelerated.training.text import corpus, tokens
        def killed(*arguments):
            if "{step}" != "_publish":
                step(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        step, tokens.{step} = tokens.{step}, killed
        tokens.prepare_tokens(corpus.read_corpus([sys.argv[1]]), {V})
    """
    command = [sys.executable, "-c", textwrap.dedent(script), corpus.description]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    left = os.listdir(cache)
    assert len(left) == 1 and left[0].startswith(".building-")  # only an incomplete entry

    said = []
    files = prepare_tokens(corpus, V, tell=said.append)
    assert not any("again" in line for line in said)  # it never counts as an entry
    assert sorted(os.listdir(cache)) == sorted([*left, files.folder.name])  # it may belong to a running process
    os.utime(cache / left[0], (0, 0))
    prepare_tokens(corpus, V + 1, tell=quiet)
    assert left[0] not in os.listdir(cache)


@pytest.mark.parametrize("damaged", [False, True])
def test_another_run_makes_the_same_entry_meanwhile(corpus, cache, monkeypatch, damaged):
    write, other = module._write_entry, []

    def overtaken(*arguments):
        write(*arguments)
        monkeypatch.setattr(module, "_write_entry", write)
        other.append(prepare_tokens(corpus, V, tell=quiet))
        if damaged:
            other[0].train.write_bytes(b"")

    monkeypatch.setattr(module, "_write_entry", overtaken)
    files = prepare_tokens(corpus, V, tell=quiet)
    assert files == other[0] and files.train.stat().st_size == 2 * files.train_tokens
    assert os.listdir(cache) == [files.folder.name]
    assert json.loads((files.folder / "meta.json").read_text())["body"]["vocab_size"] == V


def test_the_files_of_a_corpus_that_changed_are_named(tmp_path, cache):
    """The entry of the old corpus names the files. Without it, or with an invalid digest, the message names none."""
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(TEXT + name)
    corpus = read_corpus([str(tmp_path / "*.txt")])
    before = prepare_tokens(corpus, V, cache, tell=lambda line: None).content_hash
    assert before == corpus.content_hash
    (tmp_path / "b.txt").write_text(TEXT + "other")
    (tmp_path / "c.txt").unlink()
    (tmp_path / "d.txt").write_text(TEXT + "d.txt")
    now = prepare_tokens(read_corpus([str(tmp_path / "*.txt")]), V, cache, tell=lambda line: None)
    assert sorted(changed_files(now, before)) == ["b.txt", "c.txt", "d.txt"]
    assert changed_files(now, "0" * 32) == changed_files(now, "../../outside") == changed_files(now, "*") == []
