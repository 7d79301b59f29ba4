"""A SentencePiece tokenizer: byte-pair encoding that restores every text exactly.

The paper probably used SentencePiece. The settings are our choice and lose no information. There is no normalisation
and no added space. Runs of spaces (frequent in source code) are pieces, and characters without a piece are bytes.
Identifiers:

    0            <unk>, never produced
    1            the end of a document
    2            "\
    "; no piece crosses a line end
    3 ... 258    the 256 bytes
    259 ... V-1  learned pieces and single characters

Training is deterministic: the same text and V give the same model file.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...errors import InputError
from ..sweeps.workers import available_cores

UNKNOWN, END_OF_DOCUMENT, LINE_END = 0, 1, 2

FIXED_PIECES = 3 + 256
"""Number of fixed pieces: the three special pieces and the bytes."""

SMALLEST_VOCABULARY = 264
"""The fixed pieces and a few characters; SentencePiece needs some characters to train."""

SAMPLE = 16_000_000
"""Largest training sample, in characters. Samples of 8 MB and 30 MB give equal tokens per byte within 1 %."""

LONGEST_LINE = 4096
"""Longest training line, in characters; longer lines are cut, because SentencePiece would skip them."""

SPACE_SYMBOL = "\u2581"
"""SentencePiece's symbol for a space; a text with this character is encoded with the three bytes of the character."""

NEVER_LEARNED = ("\n", "\t", "\0", SPACE_SYMBOL)
"""Characters that SentencePiece cannot learn; except the line end, they are encoded as bytes."""

COVERAGE = 0.9995
"""The most frequent characters, which cover this share of the text, have a piece. Others are encoded as bytes."""


class Tokenizer:
    """A trained tokenizer; `decode(encode(text)) == text` for every text.

    Attributes:
        vocab_size: V; identifiers are 0 ... V-1.
    """

    def __init__(self, model: bytes):
        """Take the bytes of a SentencePiece model from `train_tokenizer`."""
        import sentencepiece  # imported here, because reports of run folders do not need it

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.get_piece_size()
        self._first_byte = self._processor.piece_to_id("<0x00>")
        self._space_symbol = [self._first_byte + byte for byte in SPACE_SYMBOL.encode("utf-8")]

    def encode(self, text: str) -> list[int]:
        """Return the identifiers of a text, without an end of document."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the identifiers of each text, encoded on all cores (about 6 MB/s per core)."""
        encoded = self._processor.encode(list(texts), out_type=int, num_threads=available_cores())
        for i, text in enumerate(texts):
            if SPACE_SYMBOL in text:
                encoded[i] = self._encode_with_space_symbol(text)
        return encoded

    def _encode_with_space_symbol(self, text: str) -> list[int]:
        """Encode the text between space symbols, and insert the bytes of the symbols."""
        first, *others = self._processor.encode(text.split(SPACE_SYMBOL), out_type=int, num_threads=1)
        for part in others:
            first += self._space_symbol + part
        return first

    def content(self, identifier: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character; none for an end of a document."""
        byte = identifier - self._first_byte
        return bytes([byte]) if 0 <= byte < 256 else self.decode([identifier]).encode("utf-8")

    def decode(self, identifiers: Iterable[int]) -> str:
        """Return the text without ends of documents; bytes that are not UTF-8 become U+FFFD."""
        return self._processor.decode([int(i) for i in identifiers])


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> bytes:
    """Train a tokenizer with exactly `vocab_size` pieces.

    Args:
        texts: the training texts; beyond `SAMPLE` characters, every n-th text is used.
        vocab_size: V, from `SMALLEST_VOCABULARY` to the limit of the text.

    Returns:
        The bytes of the SentencePiece model.

    Raises:
        InputError: V is too small, or the text is too small for V; the message gives the limit.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocab_size {vocab_size} is out of range; use {SMALLEST_VOCABULARY} or more: each byte has a piece"
        )
    sample = _sample(texts)
    pieces = min(vocab_size, FIXED_PIECES + 2 * sum(map(len, sample)) + 1)  # no text supports more
    # At first, at most half of the learned pieces are single characters. So a text with many characters (such as
    # Chinese) leaves room for pairs in a small vocabulary. A text with too few pairs may fill it with characters.
    for share in (2, 1):
        learned = _learned_characters(sample, (pieces - FIXED_PIECES) // share)
        try:
            return _train(_lines(sample, learned), pieces)
        except RuntimeError as error:
            most = re.search(r"value <= (\d+)", str(error))
            if not most:
                raise
    fewer = ", or use a smaller vocab_size" if int(most[1]) >= SMALLEST_VOCABULARY else ""
    raise InputError(
        f"the corpus is too small for vocab_size {vocab_size}: it supports at most {most[1]} pieces; "
        f"give more text{fewer}"
    )


def _train(lines: Iterator[str], vocab_size: int) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=True,
        character_coverage=1.0,  # every character of `_lines`; SentencePiece takes 0.98 or more
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n"],
        unk_id=UNKNOWN,
        eos_id=END_OF_DOCUMENT,
        bos_id=-1,
        pad_id=-1,
        max_sentence_length=8 * LONGEST_LINE,  # in bytes; SentencePiece drops longer lines
        num_threads=1,
        minloglevel=4,  # print nothing
    )
    return model.getvalue()


def _sample(texts: Sequence[str]) -> list[str]:
    total = sum(map(len, texts))
    return list(texts[:: max(1, -(-total // SAMPLE))])


def _learned_characters(texts: Iterable[str], most: int) -> set[str]:
    """Return the characters with a piece: the most frequent characters that cover `COVERAGE` of the text.

    Raises:
        InputError: the text has only line ends.
    """
    counts = Counter()
    for text in texts:
        counts.update(text)
    for character in NEVER_LEARNED:
        counts.pop(character, None)
    if not counts:
        raise InputError("the training text has only line ends, so no tokenizer can be trained on it")
    needed, learned = COVERAGE * counts.total(), set()
    for character, count in counts.most_common(most):
        if needed <= 0:
            break
        learned.add(character)
        needed -= count
    return learned


def _lines(texts: Iterable[str], learned: set[str]) -> Iterator[str]:
    others = set().union(*texts) - learned
    breaks = {ord(character): "\n" for character in others}
    for text in texts:
        for line in text.translate(breaks).split("\n"):
            for start in range(0, len(line), LONGEST_LINE):
                yield line[start : start + LONGEST_LINE]
