"""Batches have every target once per epoch, in an order set by the seed, also after a restore of the position."""

import json
from itertools import islice

import numpy as np
import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.training.text import batches
from routelaws.accelerated.training.text.batches import training_batches, validation_batches, windows_of_text
from routelaws.accelerated.training.text.tokenizer import END_OF_DOCUMENT, train_tokenizer
from routelaws.accelerated.training.text.tokens import TokenFiles

S, B = 8, 4


def token_files(folder, train=201, validation=90, dtype="uint16"):
    """Write token files whose tokens are 0, 1, 2, ..., so that a window shows its position."""
    folder.mkdir(exist_ok=True)
    paths = [folder / "train.bin", folder / "validation.bin"]
    for path, count in zip(paths, (train, validation), strict=True):
        np.arange(count, dtype=dtype).tofile(path)
    return TokenFiles(folder, folder / "tokenizer.model", *paths, train, validation, 2**16, 2.0, dtype)


@pytest.fixture
def files(tmp_path):
    return token_files(tmp_path / "entry")


def stream(files, seed=0, sequence_length=S, batch_size=B):
    return training_batches(files, sequence_length=sequence_length, batch_size=batch_size, seed=seed)


def starts(batches, count):
    return np.concatenate([batch[:, 0] for batch in islice(batches, count)])


@pytest.mark.parametrize("train", [200, 201, 202, 208, 209])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_every_target_once_per_epoch(tmp_path, train, batch_size):
    files = token_files(tmp_path / "entry", train)
    windows = (train - 1) // S
    batches = np.concatenate(list(islice(stream(files, batch_size=batch_size), 2 * windows)))
    assert batches.shape == (2 * windows * batch_size, S + 1) and batches.dtype == np.int32
    for epoch in range(2 * batch_size):
        targets = batches[epoch * windows : (epoch + 1) * windows, 1:]
        assert sorted(targets.ravel()) == list(range(1, windows * S + 1))


def test_windows_are_consecutive_tokens(files):
    for batch in islice(stream(files), 20):
        assert np.array_equal(batch, batch[:, :1] + np.arange(S + 1))


def test_order_follows_from_seed_and_epoch(files):
    windows = 25
    first = starts(stream(files, seed=3), 2 * windows)
    assert np.array_equal(first, starts(stream(files, seed=3), 2 * windows))
    assert not np.array_equal(first, starts(stream(files, seed=4), 2 * windows))
    epochs = first.reshape(-1, windows)
    others = starts(stream(files, seed=4), 2 * windows).reshape(-1, windows)
    # Epochs of different seeds differ, because seeds are repetitions of an experiment.
    assert len({tuple(epoch) for epoch in [*epochs, *others]}) == len(epochs) + len(others)


def test_the_shuffle_reaches_over_the_whole_text(tmp_path):
    files = token_files(tmp_path / "entry", 32_001, dtype="uint16")
    order = starts(stream(files), 500) / 16_000 - 1  # 2000 of 4000 windows, uniform in [-1, 1)
    assert abs(order.mean()) < 0.05 and abs((order**2).mean() - 1 / 3) < 0.03
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.1


@pytest.mark.parametrize("position", [0, 1, 6, 13])
def test_a_saved_position_gives_the_same_batches(files, position):
    batches = stream(files, seed=5)
    for _ in range(position):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    rest = list(islice(batches, 20))
    restored = stream(files, seed=5)
    next(restored)  # the iterator need not be new
    restored.set_state(state)
    assert all(np.array_equal(a, b) for a, b in zip(rest, islice(restored, 20), strict=True))
    assert restored.get_state() == batches.get_state() != state


def test_stacks_are_the_same_stream(files):
    batches, one_by_one = stream(files), stream(files)
    for n in (1, 5, 2):
        stack = batches.stacked(n)
        assert stack.shape == (n, B, S + 1) and stack.dtype == np.int32
        assert np.array_equal(stack, np.stack(list(islice(one_by_one, n))))
        assert batches.get_state() == one_by_one.get_state()


def test_what_was_read_ahead_leaves_the_position_where_it_was(files):
    batches, undisturbed = stream(files), stream(files)
    for ahead, n in ((4, 4), (4, 3), (2, 5), (0, 1)):
        batches.read_ahead(ahead)
        assert batches.get_state() == undisturbed.get_state()
        assert np.array_equal(batches.stacked(n), undisturbed.stacked(n))
    state, rest = undisturbed.get_state(), undisturbed.stacked(3)
    batches.read_ahead(7)
    batches.set_state(state)
    assert np.array_equal(batches.stacked(3), rest), "what was read ahead of another position is gone"


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": B + 1}, {"sequence_length": S + 1}])
def test_a_position_of_another_run_is_refused(files, change):
    state = stream(files).get_state()
    with pytest.raises(InputError) as caught:
        stream(files, **change).set_state(state)
    [(name, value)] = change.items()
    assert str(caught.value) == (
        f"the saved position in the text is for {name} {state[name]}, but this run has {value}; "
        "resume with the settings of the saved run"
    )


def test_a_position_in_another_text_is_refused(files, tmp_path):
    with pytest.raises(InputError, match="tokens"):
        stream(token_files(tmp_path / "other")).set_state(stream(files).get_state())


def test_validation_windows_are_at_equal_steps_through_the_whole_text(tmp_path):
    files = token_files(tmp_path / "entry", validation=100 * S + 1)
    text = validation_batches(files, sequence_length=S, batch_size=B, num_batches=5)
    assert text.tokens.shape == (5, B, S + 1) and text.tokens.dtype == np.int32
    assert np.array_equal(text.tokens, text.window[..., None] * S + np.arange(S + 1))
    in_order = text.window.T.ravel()  # neighbouring windows are in different batches
    assert in_order.tolist() == list(range(2, 100, 5))  # the middles of twenty stretches of five windows


@pytest.mark.parametrize("windows", [8, 9, 11, 12, 13, 40])
@pytest.mark.parametrize("num_batches", [1, 2, 3, 99])
def test_no_part_of_the_validation_text_is_left_out(tmp_path, windows, num_batches):
    files = token_files(tmp_path / "entry", validation=windows * S + 1)
    text = validation_batches(files, sequence_length=S, batch_size=B, num_batches=num_batches)
    n = min(num_batches, windows // B)
    chosen = text.window.T.ravel()
    assert text.window.shape == (n, B) and len(set(chosen)) == n * B
    step = windows / (n * B)
    assert chosen[0] < step and chosen[-1] >= windows - 1 - step  # from the first interval to the last
    assert set(np.diff(chosen)) <= {int(np.floor(step)), int(np.ceil(step))}


@pytest.mark.parametrize("part", [batches.PART, 10])
def test_every_token_knows_its_document(tmp_path, monkeypatch, part):
    monkeypatch.setattr(batches, "PART", part)
    files = token_files(tmp_path / "entry", validation=9 * S + 1)
    lengths = [3, 1, 20, 7, 30]  # with end tokens; the rest is a document without an end token
    tokens = np.full(9 * S + 1, 7, dtype="uint16")
    tokens[np.cumsum(lengths) - 1] = END_OF_DOCUMENT
    tokens.tofile(files.validation)
    text = validation_batches(files, sequence_length=S, batch_size=3, num_batches=3)
    expected = np.repeat(np.arange(6), [*lengths, len(tokens) - sum(lengths)])
    assert np.array_equal(text.document, expected[text.window[..., None] * S + np.arange(S + 1)])


def test_windows_of_another_text(files, tmp_path):
    files.tokenizer.write_bytes(train_tokenizer(["some text to learn from " * 9], 266))
    tokenizer, sizes = files.load_tokenizer(), {"sequence_length": S, "batch_size": 1, "num_batches": 999}
    texts = {f"{i}.txt": f"text number {i}\r\n" * (i + 1) for i in range(9)} | {"same.txt": "text number 0\r\n"}
    (tmp_path / "other").mkdir()
    for name, text in texts.items():
        (tmp_path / "other" / name).write_text(text, newline="")
    found = windows_of_text(str(tmp_path / "other"), files, **sizes)
    windows = found.tokens
    assert windows.shape[1:] == (1, S + 1) and windows.dtype == np.int32
    row = [*windows.swapaxes(0, 1)[..., :-1].ravel(), windows[-1, -1, -1]]
    ends = np.flatnonzero(np.array(row) == END_OF_DOCUMENT)
    documents = [tokenizer.decode(part) for part in np.split(row, ends + 1)]
    assert len(documents) > 1 and set(documents[:-1]) <= set(texts.values())

    with pytest.raises(InputError, match="0.txt is too small: it has .* needs 33"):
        windows_of_text(str(tmp_path / "other" / "0.txt"), files, **sizes | {"batch_size": B})
    with pytest.raises(InputError, match="no such file"):
        windows_of_text(str(tmp_path / "missing"), files, **sizes)


def test_windows_of_a_text_that_is_too_large_to_encode_come_from_all_of_it(files, tmp_path, monkeypatch):
    files.tokenizer.write_bytes(train_tokenizer(["0 1 2 3 4 5 6 7 8 9 " * 9], 266))
    tokenizer = files.load_tokenizer()
    lines = [json.dumps({"text": f"{i:03d} " * 20}) for i in range(200)]
    (tmp_path / "large.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(batches, "MOST_ENCODED", 80 * 50)  # characters: fifty of two hundred documents
    monkeypatch.setattr(batches, "ENCODED_FOR_ONE", 0)
    text = windows_of_text(str(tmp_path / "large.jsonl"), files, sequence_length=S, batch_size=B, num_batches=10_000)
    assert text.document.max() == 49
    names = {
        int(word) for row in text.tokens.reshape(-1, S + 1) for word in tokenizer.decode(row).split() if len(word) == 3
    }
    assert len(names) > 40 and min(names) < 20 and max(names) > 180


@pytest.mark.parametrize("tokens", [1, 2, B * S])
def test_too_little_text_for_a_batch(tmp_path, tokens):
    def refused(call, **settings):
        with pytest.raises(InputError, match=f"has {tokens} tokens.*needs {B * S + 1}") as caught:
            call(token_files(tmp_path / "entry", tokens, tokens), sequence_length=S, batch_size=B, **settings)
        return str(caught.value)

    assert "training text" in refused(training_batches, seed=0)
    assert "validation text" in refused(validation_batches, num_batches=1)


def test_just_enough_text_for_a_batch(tmp_path):
    files = token_files(tmp_path / "entry", B * S + 1, B * S + 1)
    assert sorted(next(stream(files))[:, 0]) == [0, 8, 16, 24]
    assert validation_batches(files, sequence_length=S, batch_size=B, num_batches=1).tokens.max() == B * S


@pytest.mark.parametrize("sizes", [{"sequence_length": 0}, {"batch_size": 0}, {"batch_size": -1}])
def test_sizes_below_one(files, sizes):
    with pytest.raises(InputError, match="at least 1"):
        stream(files, **sizes)
    with pytest.raises(InputError, match="at least 1"):
        validation_batches(files, **({"sequence_length": S, "batch_size": B} | sizes), num_batches=1)
    with pytest.raises(InputError, match="at least 1"):
        validation_batches(files, sequence_length=S, batch_size=B, num_batches=0)
