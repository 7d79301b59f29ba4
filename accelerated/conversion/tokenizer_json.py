"""The tokenizer of a run in the form of the library tokenizers: `tokenizer.json`, without that library.

Pieces keep their spaces, so no normaliser is needed, and a space symbol in a text is encoded as bytes, as in a run.
"""

from ..training.text.tokenizer import END_OF_DOCUMENT, LINE_END, SPACE_SYMBOL, UNKNOWN, Tokenizer


def tokenizer_files(tokenizer: Tokenizer, longest: int) -> dict[str, dict]:
    """Return {file: content} of a tokenizer, with the end of a document before each text, as in training.

    Args:
        longest: tokens per sequence in training.
    """
    processor = tokenizer._processor
    pieces = [processor.id_to_piece(i) for i in range(tokenizer.vocab_size)]
    fixed = {*range(LINE_END + 1), *(i for i in range(len(pieces)) if processor.is_byte(i))}
    vocabulary = {piece if i in fixed else piece.replace(SPACE_SYMBOL, " "): i for i, piece in enumerate(pieces)}
    end, unknown = pieces[END_OF_DOCUMENT], pieces[UNKNOWN]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(i, pieces[i], i != LINE_END) for i in range(LINE_END + 1)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
            "special_tokens": {end: {"id": end, "ids": [END_OF_DOCUMENT], "tokens": [end]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": False,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": _merges(processor, vocabulary, fixed),
        },
    }
    options = {"bos_token": end, "eos_token": end, "unk_token": unknown, "clean_up_tokenization_spaces": False}
    options |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
    options["split_special_tokens"] = True  # a text with "</s>" has no end of a document
    return {"tokenizer.json": content, "tokenizer_config.json": options}


def _added(number: int, piece: str, special: bool) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": piece, "special": special} | flags


def _merges(processor, vocabulary: dict[str, int], fixed: set[int]) -> list[list[str]]:
    """Return the pairs of pieces that merge, the best score first; SentencePiece stores only the merged pieces."""
    pairs = []
    for piece, number in vocabulary.items():
        if number not in fixed:
            splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
            known = [pair for pair in splits if all(vocabulary.get(part, -1) not in fixed | {-1} for part in pair)]
            pairs += [(-processor.get_score(number), vocabulary[a], vocabulary[b], [a, b]) for a, b in known]
    return [pair for *_, pair in sorted(pairs)]
