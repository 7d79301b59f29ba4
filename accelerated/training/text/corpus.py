"""The training text of a model: files without duplicates, in pieces for training and for validation.

    1. FIND    `standard_library_files` or `find_files`    which files, and the name of each
    2. READ    `read_documents`                            UTF-8, `.gz` and `.jsonl`; undecodable files are counted
    3. UNIQUE  `without_duplicates`                        a repeated text keeps its first name
    4. CUT     `cut`                                       long documents become pieces, at line ends where possible
    5. SPLIT   `split`                                     by a hash of the name of the piece

The name of a document is its path relative to the given folder, or to the fixed part of a pattern. A single file has
its file name. So the same text is split in the same way in any folder. Texts of 1 MB or more have pieces of a fixed
length, so a new file does not move other pieces.

The whole text is in memory. Reading needs about twice as much memory as the text needs on disk.
"""

import glob
import gzip
import json
import os
import platform
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from ...errors import InputError
from ...files import exists, file_line, opened
from ...wording import in_short, plural

SPLIT_RULE = "1"
"""Version of steps 3 to 5; part of the content hash, so a changed rule never uses an old cache."""

VALIDATION_SHARE = 1 / 16
"""Expected share of the pieces in the validation text."""

PIECE = 32_768
"""Longest piece, in characters."""

SHORTEST_PIECE = 256
"""Shortest piece, in characters."""

FEWEST_PIECES = 32
"""A text shorter than this many `PIECE`s is cut into smaller pieces, so that both parts of the split have pieces."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """A piece of text, and the name that determines its split."""

    name: str  # relative path, with "#000001" for the second piece of a document and ":0000001" for the first line
    text: str  # not empty; with the line ends of the file


class TextFile(NamedTuple):
    """A file to read; files sort by name."""

    name: str  # relative, with "/" as separator on every system
    path: str
    lenient: bool  # whether a file that is not UTF-8 is counted and skipped; else it is an error


@dataclass(frozen=True)
class Corpus:
    """A split text. `training` is in the order of the names, and `validation` in the order of their hashes.

    The first tokens of `validation` are therefore a fair sample of the whole text.
    """

    description: str
    training: tuple[Document, ...]
    validation: tuple[Document, ...]
    files_read: int  # files that were used, or that are duplicates
    files_undecodable: int  # skipped files that are not UTF-8
    duplicates_removed: int  # documents with the text of an earlier document
    bytes: int  # length of all text in UTF-8
    content_hash: str  # 32 hexadecimal digits of a hash of the rule, every name and every text
    files: dict[str, str]  # {name: digest} of each file that was read

    def summary(self) -> str:
        return (
            f"{self.description}: {self.bytes:,} bytes in {plural(self.files_read, 'file', ',')} "
            f"({self.files_undecodable:,} not UTF-8, {self.duplicates_removed:,} duplicates left out), "
            f"{len(self.training):,} chunks to train on and {len(self.validation):,} to validate"
        )


def read_corpus(paths: Sequence[str] | None = None) -> Corpus:
    """Read and split the training text.

    Args:
        paths: files, folders, and glob patterns of files (`**` goes through folders). All files in a folder and its
            subfolders are read, except files with a part of the path that begins with a dot. `.gz` is decompressed.
            Each line of `.jsonl` (or `.jsonl.gz`) is an object whose "text" is a document. None or empty: the `.py`
            source of the running interpreter's standard library.

    Returns:
        The corpus. Files that are not UTF-8 are skipped and counted, unless `paths` names them individually.

    Raises:
        InputError: there are no files, or the text is too short for two pieces. The error also means that a file cannot
            be read, a named file is not UTF-8, a `.gz` is damaged, or a line of a `.jsonl` has no text.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [os.fspath(paths)]
    sources = find_files(paths) if paths else standard_library_files()
    description = in_short(paths) if paths else f"standard library of Python {platform.python_version()}"

    documents, files = read_documents(sources)
    unique = without_duplicates(documents)
    pieces = cut_all(unique, description)
    training, validation = split(pieces)
    size, digest = _measure(training, validation)
    return Corpus(
        description=description,
        training=training,
        validation=validation,
        files_read=len(files),
        files_undecodable=len(sources) - len(files),
        duplicates_removed=len(documents) - len(unique),
        bytes=size,
        content_hash=digest,
        files=files,
    )


# FIND


def standard_library_files() -> list[TextFile]:
    """Return the `.py` files of the running interpreter's standard library, without installed packages.

    Raises:
        InputError: this interpreter has no source files (it is frozen or zipped).
    """
    root = sysconfig.get_path("stdlib")
    files = _walk(root, skip=("site-packages", "dist-packages")) if os.path.isdir(root) else ()
    sources = [source for source in files if source.name.endswith(".py")]
    if not sources:
        raise InputError(
            f"{root}: the source of Python's standard library is missing; name your own text with --corpus"
        )
    return sorted(sources)


def find_files(paths: Iterable[str]) -> list[TextFile]:
    """Return the files of the paths, folders and patterns, sorted by name, each file once.

    A path that exists is never read as a pattern.
    """
    sources = []
    for path in map(os.path.expanduser, map(os.fspath, paths)):
        if os.path.isdir(path):
            matches = list(_walk(path))
        elif os.path.exists(path):
            matches = [TextFile(os.path.basename(path), path, lenient=False)]
        elif glob.has_magic(path):
            matches = list(_match(path))
        else:
            raise InputError(_why_not_there(path))
        if not matches:
            raise InputError(f"{path}: no files there")
        sources += matches
    # A folder, a pattern or a link may name the same file twice: the shortest path counts. Sorting makes the result
    # independent of the order of the arguments, and puts strict entries before lenient entries.
    once = {}
    for source in sorted(sources, key=lambda source: (source.name.count("/"), source)):
        once.setdefault(os.path.realpath(source.path), source)
    return sorted(once.values())


def _why_not_there(path: str) -> str:
    try:
        exists(path)
    except OSError as error:
        return file_line(error)
    except ValueError:  # a NUL character
        pass
    return f"{path or repr(path)}: no such file or folder"


def _is_file(path: str, refuse: Callable[[OSError], None]) -> bool:
    """Return whether a path is a file. Call `refuse` if its folder can be listed but not searched."""
    try:
        return exists(path) and os.path.isfile(path)
    except PermissionError as error:
        refuse(error)
    except OSError:  # a loop of links
        return False


def _walk(root: str, skip: Sequence[str] = ()) -> Iterator[TextFile]:
    def refuse(error: OSError):
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}")

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skip]
        for file in files:
            path = os.path.join(folder, file)
            if not file.startswith(".") and _is_file(path, refuse):
                yield TextFile(os.path.relpath(path, root).replace(os.sep, "/"), path, lenient=True)


def _match(pattern: str) -> Iterator[TextFile]:
    """Yield the files that match. Their names are relative to the part of the pattern before its first wildcard."""
    parts = pattern.split(os.sep)
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    root = os.sep.join(parts[:fixed]) + os.sep if fixed else os.curdir
    for name in glob.iglob(os.sep.join(parts[fixed:]), root_dir=root, recursive=True):
        path = os.path.join(root, name)
        if os.path.isfile(path):
            yield TextFile(name.replace(os.sep, "/"), path, lenient=True)


# READ


def read_documents(sources: Iterable[TextFile]) -> tuple[list[Document], dict[str, str]]:
    """Return the documents, and {name: digest} of the files. Files that are not UTF-8 are skipped."""
    documents, files = [], {}
    for source in sources:
        documents_of_file = _read_file(source)
        if documents_of_file is not None:
            documents += documents_of_file
            files[source.name] = digest_of_texts(documents_of_file)
    return documents, files


def digest_of_texts(documents: Iterable[Document]) -> str:
    """Return a digest of the names and the texts of documents."""
    result = blake2b(digest_size=8)
    for part in (part for document in documents for part in document):
        content = part.encode("utf-8", "surrogateescape")
        result.update(len(content).to_bytes(8, "big") + content)
    return result.hexdigest()


def _read_file(source: TextFile) -> list[Document] | None:
    """Return the documents of a file: its text, or each line of a `.jsonl`.

    Return None if a lenient source is not UTF-8.
    """
    text = _decode(_read_bytes(source.path), source)
    if text is None:
        return None
    if source.path.lower().endswith((".jsonl", ".jsonl.gz")):
        return [document for document in _json_lines(text, source) if document.text]
    return [Document(source.name, text)] if text else []


def _read_bytes(path: str) -> bytes:
    try:
        with opened(path) as file:
            return (gzip.open(file) if path.lower().endswith(".gz") else file).read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decode(data: bytes, source: TextFile) -> str | None:
    """Return `data` as text without a byte order mark, with unchanged line ends."""
    start = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    try:
        return data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        if source.lenient:
            return None
        offset = start + error.start
        raise InputError(
            f"{source.path}: not UTF-8: byte {offset} is 0x{data[offset]:02x}; convert the file, "
            "or name its folder to skip files that are not UTF-8"
        ) from None


def _json_lines(text: str, source: TextFile) -> Iterator[Document]:
    # Not splitlines(): it also breaks at characters that JSON allows within a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)["text"]
            content.encode("utf-8")  # a lone surrogate, as in "\ud800", is valid JSON but not text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(
                f'{source.path}, line {number}: not a JSON object with a string of Unicode text under "text"'
            ) from None
        yield Document(f"{source.name}:{number:07d}", content)


# UNIQUE, CUT


def without_duplicates(documents: Iterable[Document]) -> list[Document]:
    """Return the documents in the order of their names, without duplicates. A text keeps its first name."""
    first = {}
    for document in sorted(documents):
        first.setdefault(document.text, document)
    return list(first.values())


def cut_all(documents: Sequence[Document], description: str) -> list[Document]:
    """Return the documents. Cut long documents into pieces of `PIECE` characters (fewer if the text is short).

    Raises:
        InputError: there is no text, or not enough for two pieces.
    """
    total = sum(len(document.text) for document in documents)
    if not total:
        raise InputError(f"{description}: no text found; every file is empty or not UTF-8")
    longest = min(PIECE, max(SHORTEST_PIECE, total // FEWEST_PIECES))
    pieces = [piece for document in documents for piece in cut(document, longest)]
    if len(pieces) < 2:
        raise InputError(
            f"{description}: too small to be split into training and validation text: {total} characters; "
            f"at least {SHORTEST_PIECE + 1} are needed"
        )
    return pieces


def cut(document: Document, longest: int) -> list[Document]:
    """Return the document as pieces of at most `longest` characters.

    A piece ends at the last line end in its second half, or at `longest` characters if there is none.
    """
    name, text = document
    if len(text) <= longest:
        return [document]
    pieces, start = [], 0
    while start < len(text):
        end = start + longest
        if end < len(text):
            line_end = text.rfind("\n", start + longest // 2, end)
            end = line_end + 1 if line_end >= 0 else end
        pieces.append(Document(f"{name}#{len(pieces):06d}", text[start:end]))
        start = end
    return pieces


# SPLIT


def split(pieces: Iterable[Document]) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Return (training, validation). A piece is for validation if the hash of its name is below `VALIDATION_SHARE`.

    The piece with the smallest hash always goes to validation, and the piece with the largest hash to training, so
    neither part is empty. The function needs at least two pieces.
    """
    ranked = sorted(pieces, key=lambda piece: (name_hash(piece.name), piece))
    below = sum(name_hash(piece.name) < VALIDATION_SHARE for piece in ranked)
    count = min(max(below, 1), len(ranked) - 1)
    return tuple(sorted(ranked[count:])), tuple(ranked[:count])


def name_hash(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone, not on the machine or the version of Python."""
    digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=6)
    return int.from_bytes(digest.digest(), "big") / 2**48


def _measure(training: Iterable[Document], validation: Iterable[Document]) -> tuple[int, str]:
    digest, size = blake2b(SPLIT_RULE.encode(), digest_size=16), 0
    for half in (training, validation):
        digest.update(b"half")
        for document in half:
            name, text = document.name.encode("utf-8", "surrogateescape"), document.text.encode("utf-8")
            # The lengths go first, so that different corpora never give the same bytes.
            digest.update(len(name).to_bytes(8, "big") + len(text).to_bytes(8, "big") + name)
            digest.update(text)
            size += len(text)
    return size, digest.hexdigest()
