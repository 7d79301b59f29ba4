"""Reading a corpus: files, bytes, the split, and errors."""

import gzip
import json
import os
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.text import corpus as module
from routelaws.accelerated.training.text.corpus import Document, cut, find_files, name_hash, read_corpus, split

from .small_runs import denied


def lines(count, word="line"):
    return "".join(f"{word} {i} of some text\n" for i in range(count))


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(folder)


def texts(corpus):
    return {document.name: document.text for document in corpus.training + corpus.validation}


def message(call, *arguments):
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# FIND


def test_default_corpus_is_the_source_of_the_standard_library():
    found = module.standard_library_files()
    names = [source.name for source in found]
    assert names == sorted(names) and len(names) > 500
    assert all(name.endswith(".py") for name in names)
    assert not any("site-packages" in name or "dist-packages" in name for name in names)
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert all(source.lenient and not os.path.isabs(source.name) for source in found)


def test_default_corpus_is_read_as_any_folder(tmp_path, monkeypatch):
    library = {f"m{i}.py": lines(9, f"m{i}") for i in range(20)}
    library |= {"latin.py": "é".encode("latin-1"), "site-packages/x.py": "x = 1\n", "data.txt": "no source\n"}
    write(tmp_path, library)
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    corpus = read_corpus()
    assert set(texts(corpus)) == {f"m{i}.py" for i in range(20)}
    assert (corpus.files_read, corpus.files_undecodable) == (20, 1)
    assert corpus.content_hash == read_corpus([]).content_hash


def test_interpreter_without_source_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path / "python311.zip"))
    assert "--corpus" in message(read_corpus)


def test_folders_patterns_and_files(tmp_path):
    write(tmp_path, {"a.txt": "a\n", "sub/b.md": "b\n", "sub/.hidden": "h", ".git/config": "g", "sub/c.txt": "c\n"})
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)

    def names(*paths):
        return [source.name for source in find_files(paths)]

    root = str(tmp_path)
    assert names(root) == ["a.txt", "sub/b.md", "sub/c.txt"]
    assert names(f"{root}/**/*.txt") == names(f"{root}/**/*.txt", f"{root}/a.txt") == ["a.txt", "sub/c.txt"]
    assert names(f"{root}/sub/b.md") == ["b.md"]
    assert names(root, f"{root}/a.txt") == names(f"{root}/a.txt", root) == ["a.txt", "sub/b.md", "sub/c.txt"]


def test_relative_pattern_and_a_file_that_looks_like_a_pattern(tmp_path, monkeypatch):
    write(tmp_path, {"x[1].txt": "x", "x1.txt": "y", "d/z.txt": "z"})
    monkeypatch.chdir(tmp_path)
    assert [source.name for source in find_files(["x[1].txt"])] == ["x[1].txt"]
    assert [source.name for source in find_files(["d/*.txt"])] == ["z.txt"]


@pytest.mark.parametrize("path", ["missing.txt", "missing/", "none-*.txt", "", "empty"])
def test_missing_corpus(tmp_path, monkeypatch, path):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "no such file or folder" in (said := message(read_corpus, [path])) or "no files there" in said


def test_what_may_not_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path, {"a.txt": lines(40), "shut/b.txt": lines(40)})
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", denied(scan, lambda path: path.endswith("shut")))
    assert message(read_corpus, [str(tmp_path)]) == f"{tmp_path}/shut: cannot be read: Permission denied"
    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(os, "stat", denied(os.stat, lambda path: path.endswith("shut")))
    (tmp_path / "shut/shut").write_text("a folder that can be listed but not searched\n" * 40)
    assert message(read_corpus, [str(tmp_path)]) == f"{tmp_path}/shut/shut: cannot be read: Permission denied"
    assert message(read_corpus, [f"{tmp_path}/shut"]).startswith(f"{tmp_path}/shut: Permission denied; name another")


# READ


def test_line_ends_tabs_and_byte_order_mark(tmp_path):
    content = "a\r\nb\rc\n\td  \u2028\u0085\n" * 40
    write(tmp_path, {"a.txt": b"\xef\xbb\xbf" + content.encode("utf-8"), "b.txt": lines(9)})
    pieces = sorted((name, text) for name, text in texts(read_corpus([str(tmp_path)])).items() if name[0] == "a")
    assert "".join(text for _, text in pieces) == content


def test_gzip_and_json_lines_give_the_text_of_plain_files(tmp_path):
    content = [lines(8, f"document {i}") for i in range(9)] + ["é\u2028 in one line"]
    jsonl = "".join(json.dumps({"text": text, "id": i}, ensure_ascii=False) + "\n" for i, text in enumerate(content))
    write(
        tmp_path,
        {
            "plain.txt": content[0],
            "plain.txt.gz": gzip.compress(content[0].encode("utf-8")),
            "many.jsonl": jsonl + "\n",
            "many.jsonl.gz": gzip.compress(jsonl.encode("utf-8")),
        },
    )
    corpus = read_corpus([str(tmp_path)])
    assert sorted(texts(corpus).values()) == sorted(content)
    assert "many.jsonl.gz:0000001" in texts(corpus)
    assert (corpus.files_read, corpus.duplicates_removed) == (4, 12)


def test_undecodable_files_are_counted_in_a_folder_and_refused_by_name(tmp_path):
    root = write(tmp_path, {"a.txt": lines(40), "bad.txt": b"\xef\xbb\xbfgood \xff", "bad.gz": gzip.compress(b"\x80")})
    corpus = read_corpus([root])
    assert (corpus.files_read, corpus.files_undecodable) == (1, 2)
    assert "2 not UTF-8" in corpus.summary()
    assert read_corpus([f"{root}/*"]).files_undecodable == 2
    said = message(read_corpus, [f"{root}/bad.txt"])
    assert "bad.txt" in said and "byte 8 is 0xff" in said
    assert "byte 8" in message(read_corpus, [root, f"{root}/bad.txt"])


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(os.urandom(999))
    damaged = {
        "cut": whole[:-20],
        "changed": whole[:300] + b"\0\0\0\0" + whole[304:],
        "no-deflate": whole[:10] + b"\xff" * 99,
        "no-gzip": b"just text",
        "head": whole[:5],
    }
    for name, content in damaged.items():
        write(tmp_path, {f"{name}.gz": content})
        said = message(read_corpus, [str(tmp_path / f"{name}.gz")])
        assert "damaged gzip" in said and f"{name}.gz" in said


@pytest.mark.parametrize(
    "line", ["{", "5", "[]", "{}", '{"text": null}', '{"text": 1}', '{"text": "\\ud800"}', "plain", "[" * 100_000]
)
def test_bad_json_line(tmp_path, line):
    root = write(tmp_path, {"x.jsonl": f'{{"text": "good"}}\n\n{line}\n'})
    for path in (root, f"{root}/x.jsonl"):
        said = message(read_corpus, [path])
        assert "x.jsonl, line 3" in said and len(said) < 1000


@pytest.mark.parametrize("content", ["", "\ufeff", "x" * module.SHORTEST_PIECE])
def test_too_little_text(tmp_path, content):
    said = message(read_corpus, [write(tmp_path, {"x.txt": content})])
    assert "too small" in said and "257" in said or "no text" in said


# UNIQUE, CUT


def test_a_text_counts_once_under_its_first_name(tmp_path):
    root = write(tmp_path, {"b.txt": lines(40), "a.txt": lines(40), "c.txt": lines(41), "empty.txt": ""})
    corpus = read_corpus([root])
    assert corpus.duplicates_removed == 1
    assert {name.split("#")[0] for name in texts(corpus)} == {"a.txt", "c.txt"}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("ab\n\r😀", max_size=200), st.integers(2, 40))
def test_pieces_are_short_and_together_the_document(text, longest):
    pieces = cut(Document("x", text), longest)
    assert "".join(piece.text for piece in pieces) == text
    assert all(0 < len(piece.text) <= longest for piece in pieces) or not text
    for piece in pieces[:-1]:
        assert piece.text.endswith("\n") or "\n" not in piece.text[longest // 2 :]


def test_one_file_gives_both_halves_wherever_it_lies(tmp_path):
    for size in (20, 400, 30_000):
        first = read_corpus([write(tmp_path / "one", {"my.txt": lines(size)}) + "/my.txt"])
        again = read_corpus([write(tmp_path / "two", {"my.txt": lines(size)})])
        assert first.training == again.training and first.validation == again.validation
        assert first.content_hash == again.content_hash
        assert "".join(text for _, text in sorted(texts(first).items())) == lines(size)
        assert first.training and first.validation
        assert first.bytes == len(lines(size))
    assert read_corpus(str(tmp_path / "two")) == read_corpus(tmp_path / "two") == read_corpus([str(tmp_path / "two")])


# SPLIT


def test_the_split_follows_the_name_and_not_the_text():
    names = [f"folder/file{i}.txt" for i in range(3000)]
    halves = [split([Document(name, f"{name} {salt}") for name in names]) for salt in range(2)]
    validation = [[document.name for document in half] for _, half in halves]
    assert validation[0] == validation[1] == sorted(validation[0], key=name_hash)
    assert 0.05 < len(validation[0]) / len(names) < 0.075
    fewer = split([Document(name, "") for name in names[:1500]])[1]
    assert {document.name for document in fewer} == set(validation[0]) & set(names[:1500])


def test_the_hash_of_a_name_is_the_stated_one():
    digest = blake2b(b"a/b.py", digest_size=6).digest()
    assert name_hash("a/b.py") == int.from_bytes(digest, "big") / 2**48
    assert 0 <= name_hash(os.fsdecode(b"\xff")) < 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_neither_half_is_empty(count):
    for start in range(200):
        training, validation = split([Document(f"{start + i}", "text") for i in range(count)])
        assert training and validation and len(training) + len(validation) == count


def test_content_hash_sees_names_texts_and_rule(tmp_path, monkeypatch):
    files = {f"{i}.txt": lines(30, str(i)) for i in range(12)}
    renamed = {("other.txt" if name == "3.txt" else name): text for name, text in files.items()}
    changed = files | {"5.txt": files["5.txt"] + " "}
    hashes = [
        read_corpus([write(tmp_path / str(i), kind)]).content_hash for i, kind in enumerate([files, renamed, changed])
    ]
    monkeypatch.setattr(module, "SPLIT_RULE", "another")
    hashes.append(read_corpus([str(tmp_path / "0")]).content_hash)
    assert len(set(hashes)) == 4
    pairs = [("a", "bc"), ("ab", "c"), ("d", "bc")]
    assert len({module._measure([Document(*pair)], [])[1] for pair in pairs}) == 3
