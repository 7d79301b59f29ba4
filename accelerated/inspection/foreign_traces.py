"""Routing that other programs recorded: read it, and name what is wrong with it.

    .npz with `token` and `expert`          `routelaws inspect --out`
    .npy, integers [T, L, k]                vLLM: `CompletionOutput.routed_experts`
    .json with `routed_experts`             a response of vLLM (base64 of .npy) or SGLang (base64 of int32 [T, L, k]),
                                            at any depth; `prompt_token_ids` and `token_ids` are the tokens if present,
                                            and `prompt_routed_experts` of vLLM has the experts of the prompt
    .npz, integers [T, k] in each array     Megatron's `RouterReplay`, a tensor for each layer; llama.cpp, the tensors
                                            ffn_moe_topk-0, ... The last number of a name orders the arrays, then the
                                            number before it
    .npz, floats [T, E] in each array       transformers: `router_logits` of `output_router_logits=True`

The last two are arrays that a user saves with `np.savez(path, *tensors)`. Their programs write no file.
"""

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..files import read_bytes
from ..json_files import parse_json
from ..wording import in_short, plural
from .trace import Trace

LONG_RUN, CHANCE = 4, 1e-6
"""Least length of a run of tokens with a fault, and the number of such runs by chance, below which it is none. Our
choice."""

AGREES = 0.9
"""Share of choices that are the largest logits, from which a trace and its logits belong together. Our choice."""

GATE_ERROR = 0.02
"""Largest error of a sum of gates: k = 8 gates in bfloat16 are off by up to 8/512. Our choice."""

HALF = 64
"""Choices per expert from which an unused upper half of the experts is no chance. Our choice."""


NO_EXPERT = 2**16 - 1
"""The number -1 in 16 bits, which stands for no expert. We assume that no model has so many experts or blocks."""


WRONG_NUMBERS = {"missing", "out of range", "counted from 1", "shared expert", "8 bits", "rounded", "local numbers"}
"""Problems of the numbers of the experts, which cause others."""


class Design(NamedTuple):
    """What a model says about its routing; None if unknown.

    Attributes:
        experts: E
        choices: k
        blocks: [n_r] numbers of the routed blocks, from 1
        layers: number of all blocks
        gate_sum: sum of the gates of a token
        largest: whether the experts of a token are those with the largest logits
    """

    experts: int
    choices: int
    blocks: np.ndarray
    layers: int
    gate_sum: float | None
    largest: bool = True


class Recorded(NamedTuple):
    """A recorded routing as it was read.

    Attributes:
        expert: [n, T, k] integers
        gate: [n, T, k], or None
        logits: [n, T, E], or None
        token: [T'] integers, or None; more than T if tokens were not routed
        start: [T] whether a token begins a sequence
        block: [n] numbers of the layers, from 1, or None
        experts: E, or None
    """

    expert: np.ndarray
    gate: np.ndarray | None
    logits: np.ndarray | None
    token: np.ndarray | None
    start: np.ndarray
    block: np.ndarray | None = None
    experts: int | None = None


def read_recorded(path: Path, design: Design | None) -> Recorded:
    """Read a recorded routing.

    Args:
        design: needed for SGLang and for logits, whose files do not have k.

    Raises:
        InputError: the file cannot be read, has no routing, or needs a design.
    """
    content = _arrays(path)
    tokens = content.get("token")
    if "expert" in content:
        expert = content["expert"]
        position = content.get("position", np.arange(expert.shape[1] if expert.ndim == 3 else 0))
        gate, logits = content.get("gate"), content.get("logits")
    else:
        parts = [content[name] for name in sorted(content.keys() - {"token"}, key=_number)]
        if not parts or len({part.shape for part in parts}) > 1 or not (parts[0].ndim and parts[0].size):
            raise InputError(f"{path}: has no routing; needed: arrays of one shape, one for each layer, or `expert`")
        if "routed_experts" not in content and all(part.dtype.kind == "f" for part in parts):
            known = _known(design, path, "logits")
            if not known.largest:
                raise InputError(
                    f"{path}: has logits, but a bias or groups of experts also decide in this model; record the experts"
                )
            logits = np.stack([part.reshape(-1, part.shape[-1]) for part in parts])
            expert = np.argsort(-logits, axis=2, kind="stable")[:, :, : known.choices]
        elif len(parts) == 1 and parts[0].ndim != 2:
            expert, logits = parts[0], None
            if expert.ndim == 1:
                known = _known(design, path, "numbers without a shape")
                layers = next(
                    (n for n in (known.layers, len(known.blocks)) if not expert.size % (n * known.choices)), 0
                )
                if not layers:
                    raise InputError(f"{path}: {expert.size} numbers are not layers x {known.choices} for each token")
                expert = expert.reshape(-1, layers, known.choices)
            expert = expert.swapaxes(0, 1) if expert.ndim == 3 else expert
        else:
            expert, logits = np.stack(parts), None
        gate, position = None, np.arange(expert.shape[1] if expert.ndim == 3 else 0)
    if expert.ndim != 3 or expert.dtype.kind not in "iu" or 0 in expert.shape:
        needed = "[n, T, k]" if "expert" in content else "[T, n, k] of one sequence, or an array [T, k] for each layer"
        shape = list(expert.shape)
        raise InputError(f"{path}: has {expert.dtype} experts of shape {shape}; needed: integers {needed}")
    unset = np.iinfo(expert.dtype).max  # -1 in an array without signs, unless an expert has this number
    holes = (expert == unset) & (expert.dtype.kind == "u")
    if unset < (design.experts if design else NO_EXPERT):  # then only a token that would have the expert k > 1 times
        holes = holes.all(axis=2, keepdims=True) & (expert.shape[2] > 1)
    if holes.any():
        expert = np.where(holes, -1, expert.astype(np.int64))
    if design is None and logits is None and expert.max() >= NO_EXPERT:
        wrong = f"has expert {expert.max()}, not below {NO_EXPERT:,}"
        raise InputError(f"{path}: {wrong}; write -1 for no expert, or add --model")
    if tokens is not None and (tokens.ndim != 1 or tokens.dtype.kind not in "iu"):
        raise InputError(f"{path}: has tokens of type {tokens.dtype} and shape {list(tokens.shape)}; needed: integers")
    if np.shape(position) != expert.shape[1:2]:
        raise InputError(f"{path}: has positions of shape {list(np.shape(position))} and experts {list(expert.shape)}")
    for name, part, axes, needed in (("gate", gate, 3, "[n, T, k]"), ("logits", logits, 2, "[n, T, E]")):
        if part is not None and (
            part.ndim != 3 or part.dtype.kind not in "fiu" or part.shape[:axes] != expert.shape[:axes]
        ):
            raise InputError(
                f"{path}: has {name} of type {part.dtype} and shape {list(part.shape)}; needed: numbers {needed}, with "
                f"the n and T of the experts, which are [n, T, k] = {list(expert.shape)}"
            )
    block, experts = content.get("block"), content.get("experts")
    for name, part, like, needed in (("block", block, expert[:, 0, 0], "[n] numbers"), ("experts", experts, 0, "one")):
        if part is not None and (
            part.shape != np.shape(like) or part.dtype.kind not in "iu" or not 0 < part.min() <= NO_EXPERT
        ):
            raise InputError(
                f"{path}: has {name} {in_short(part.ravel().tolist())}; needed: {needed} from 1 to {NO_EXPERT}"
            )
    starts = np.asarray(position) == 0
    return Recorded(expert, gate, logits, tokens, starts, block, None if experts is None else int(experts))


def _known(design: Design | None, path: Path, what: str) -> Design:
    if design is None:
        raise InputError(f"{path}: has {what}, which do not say k; add --model config.json")
    return design


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        content = read_bytes(path)
        if content.lstrip()[:1] in (b"{", b"["):
            return _of_json(path, parse_json(content.decode()))
        if not content.startswith((b"PK", b"\x93NUMPY")):
            raise ValueError("its first bytes are those of another form")
        stored = np.load(io.BytesIO(content), allow_pickle=False)
        return {"routed_experts": stored} if isinstance(stored, np.ndarray) else {n: stored[n] for n in stored.files}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except InputError:
        raise
    except Exception as error:  # NumPy's reader and zipfile raise many types
        again = "save each answer in a file of its own" if "Extra data" in str(error) else "save it again"
        raise InputError(f"{path}: is no .npz, .npy or .json file with a routing ({error}); {again}") from error


def _of_json(path: Path, values: dict | list) -> dict[str, np.ndarray]:
    pairs = [pair for pair in _values(values) if pair[1] is not None]
    found, routings = dict(pairs), sum(name == "routed_experts" for name, _ in pairs)
    if not found.keys() & {"routed_experts", "prompt_routed_experts"}:
        raise InputError(f"{path}: has no routed_experts; ask the server to return them")
    if routings > 1:
        raise InputError(f"{path}: has {routings} answers with routed_experts; save each answer in a file of its own")
    parts = [_decoded(found[name]) for name in ("prompt_routed_experts", "routed_experts") if name in found]
    arrays = {"routed_experts": np.concatenate(parts) if len(parts) > 1 else parts[0]}
    tokens = [*(found.get("prompt_token_ids") or ()), *(found.get("token_ids") or found.get("output_ids") or ())]
    return arrays | ({"token": np.asarray(tokens)} if tokens else {})


def _decoded(routed) -> np.ndarray:
    if isinstance(routed, str):
        content = base64.b64decode(routed, validate=True)
        whole = content.startswith(b"\x93NUMPY")
        return np.load(io.BytesIO(content), allow_pickle=False) if whole else np.frombuffer(content, "<i4")
    return np.asarray(routed)


def _values(node) -> Iterator[tuple[str, object]]:
    """Yield the pairs of all objects in a JSON value, the outermost last."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _values(child)
    if isinstance(node, dict):
        yield from node.items()


def _number(name: str) -> tuple[list[int], str]:
    return [*map(int, reversed(re.findall(r"\d+", name)))], name


# WHAT IS WRONG


def problems(of: Recorded, design: Design | None = None) -> dict[str, str]:
    """Return {name of a problem: sentence}. Problems that follow from another one are left out.

    Args:
        of: the routing.
        design: the model; without it, the number of experts is taken from the logits or the largest expert.
    """
    expert, experts = of.expert, design.experts if design else _experts(of)
    found = dict(_of_shape(of, design))
    if "axes" in found and (design or of.token is not None):
        return found
    found |= dict(_of_numbers(expert, experts))
    if "shared expert" in found:
        found.pop("choices", None)
    if not found.keys() & WRONG_NUMBERS:
        found |= dict(_of_rows(of, experts))
        if not found.keys() & {"padding", "last token", "dense block", "strided copy"}:
            found |= dict(_of_logits(of, design))
    return found | dict(_of_gates(of, design, found))


def _experts(of: Recorded) -> int:
    return of.experts or int(of.expert.max()) + 1 if of.logits is None else of.logits.shape[2]


def _of_shape(of: Recorded, design: Design | None) -> Iterator[tuple[str, str]]:
    blocks, tokens, choices = of.expert.shape
    layers = (len(design.blocks), design.layers) if design else (blocks,)
    if of.token is not None and len(of.token) == blocks != tokens or blocks not in layers and tokens in layers:
        yield "axes", f"tokens and layers are exchanged: it has {blocks} layers of {plural(tokens, 'token')}"
        return
    if design and choices != design.choices == tokens:
        yield "axes", f"tokens and choices are exchanged: it has {plural(tokens, 'token')} with {choices} experts each"
        return
    if blocks not in layers:
        yield "blocks", f"it has {plural(blocks, 'layer')}; the model has {len(design.blocks)} routed blocks"
    if not design and of.token is None and max(blocks, choices) > tokens:
        found = f"{plural(blocks, 'layer')} of {plural(tokens, 'token')} with {plural(choices, 'expert')} each"
        yield "axes", f"its axes may be exchanged: it has {found}; needed: [n, T, k]; add --model to compare"
    if design and choices != design.choices:
        yield "choices", f"it has {plural(choices, 'expert')} per token; the model chooses {design.choices}"
    if design and of.logits is not None and of.logits.shape[2] != design.experts:
        yield "experts", f"its logits have {of.logits.shape[2]} experts; the model has {design.experts}"
    if of.token is not None and len(of.token) - tokens == 1:
        yield "last token", "it has no row for the last token, which is sampled and never routed; replay without it"
    elif of.token is not None and len(of.token) != tokens:
        yield "length", f"it has {tokens} rows for {len(of.token)} tokens; perhaps one of them lacks the prompt"


def _of_numbers(expert: np.ndarray, experts: int) -> Iterator[tuple[str, str]]:
    least, most = int(expert.min()), int(expert.max())
    if least < 0:
        missing = (expert < 0).all(axis=(0, 2))
        where = f"of {plural(int(missing.sum()), 'token')}" if missing.any() else "of some choices"
        yield "missing", f"the experts {where} are negative: no route was recorded, or no expert chose them"
    elif most == experts and least >= 1:
        yield "counted from 1", f"its experts are 1 to {most}; subtract 1"
    elif most >= experts and (expert[:, :, -1] == expert[0, 0, -1]).all():
        yield "shared expert", f"the last choice is always expert {most}: the shared expert, which no router chooses"
    elif most >= experts:
        yield "out of range", f"expert {most} is out of range; the model has experts 0 to {experts - 1}"
    if expert.dtype.itemsize == 1 and experts > 2**8:
        yield "8 bits", f"its experts are stored in 8 bits, but the model has {experts}"
    above = expert[expert > 256]
    if len(above) >= HALF and not (above % 2).any():
        yield "rounded", "no expert above 256 is odd: the numbers were stored in bfloat16"
    if 0 <= least and 2 <= most + 1 <= experts // 2 and expert.size >= HALF * experts:
        found = f"no expert of the upper half is chosen (0 to {most} of {experts})"
        yield "local numbers", f"{found}: perhaps numbers of one device"


def _of_rows(of: Recorded, experts: int) -> Iterator[tuple[str, str]]:
    expert = of.expert
    blocks, tokens, choices = expert.shape
    zero = (expert == 0).all(axis=2)
    dense = np.flatnonzero(zero.all(axis=1))
    if 0 < len(dense) < blocks and tokens >= LONG_RUN:
        listed = in_short((dense + 1).tolist())
        yield "dense block", f"all tokens of layer {listed} have expert 0: a dense block without a router"
    kept = np.delete(np.arange(blocks), dense)
    rows = zero[kept].all(axis=0)
    rows = rows if choices > 1 else _long_run(rows)
    lasts = np.append(of.start[1:], True)
    if rows.any() and not rows[~lasts].any():
        yield "last token", "the last token of a sequence has only expert 0: it was never routed, and was filled with 0"
    elif rows.any():
        effect = "is in no load" if choices > 1 else "adds load to expert 0"
        yield "padding", f"{rows.sum()} tokens ({rows.mean():.0%}) have only expert 0: padding, which {effect}"
    real = expert[:, ~rows][kept]
    ordered = np.sort(real, axis=2)
    group = experts // choices
    if choices * group == experts and real.shape[1] >= 2 * group and group > 1:
        whole = real[:, : real.shape[1] // group * group].reshape(len(kept), -1, experts)
        if (np.sort(whole, axis=2) == np.arange(experts)).all():
            yield "strided copy", f"each {group} rows have all {experts} experts once: a flat copy of a view of a sort"
            return
    repeated = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
    if repeated.any():
        yield "repeated", f"{repeated.any(axis=0).sum()} tokens choose an expert twice in a block"
    if real.shape[1] < 2 or experts <= choices:
        return
    same = (ordered[:, 1:] == ordered[:, :-1]).all(axis=(0, 2))
    if of.token is not None and len(of.token) == tokens:
        same = same[np.diff(of.token[~rows]) != 0]  # equal tokens may have equal experts
    if len(same) and same.all():
        yield "constant", "all tokens have the same experts in every block: a buffer that was not updated"
    elif len(kept) > 1 and len(same) and (run := _long_run(same)).any():
        yield "repeated rows", f"{run.sum() + 1} tokens in a row have the same experts in every block: a stale buffer"
    elif len(kept) > 1 and real.shape[1] >= 2 * LONG_RUN:
        equal = [i for i in range(1, len(kept)) if (ordered[i] == ordered[i - 1]).all()]
        if equal:
            yield "equal blocks", f"layers {kept[equal[0]]} and {kept[equal[0]] + 1} are equal: one was recorded twice"


def _long_run(values: np.ndarray) -> np.ndarray:
    """Return a mask [n] of the longest run of True in [n] truths; empty if such a run may be chance.

    With the share p of True elsewhere, chance gives n p^length such runs. Fewer than `CHANCE` are none.
    """
    ends = np.flatnonzero(~np.concatenate([[False], values, [False]]))
    lengths = np.diff(ends) - 1
    longest = int(lengths.max())
    mask = np.zeros(len(values), bool)
    share = max((values.sum() - longest) / max(len(values) - longest, 1), 1 / len(values))
    if longest >= LONG_RUN and len(values) * share**longest < CHANCE:
        start = ends[lengths.argmax()]
        mask[start : start + longest] = True
    return mask


def _of_logits(of: Recorded, design: Design | None) -> Iterator[tuple[str, str]]:
    if of.logits is None:
        return
    if not np.isfinite(of.logits).all():
        yield "logits", "its logits are not finite"
        return
    expert, logits = of.expert, of.logits
    sums = logits.sum(axis=2, dtype=np.float64)
    if logits.shape[2] > 1 and (logits >= 0).all() and np.abs(sums - 1).max() <= GATE_ERROR:
        yield "probabilities", "its logits are probabilities, which sum to 1; record the scores before the softmax"
    own = _agreement(expert, logits)
    if own >= AGREES or (expert >= logits.shape[2]).any():
        return
    for by in (1, -1):
        if len(expert) > 1 and _agreement(*_shifted(expert, logits, by, 0)) >= AGREES:
            yield "layer shifted", f"its experts belong to the logits of the {_side(by)} layer"
            return
        if expert.shape[1] > 1 and _agreement(*_shifted(expert, logits, by, 1)) >= AGREES:
            yield "token shifted", f"its experts belong to the logits of the {_side(by)} token"
            return
    if len(expert) > 1 and _agreement(expert[::-1], logits) >= AGREES:
        yield "order of layers", "its layers are in the opposite order of its logits"
    elif design is None or design.largest:
        yield "not the largest", f"only {own:.0%} of its choices have the largest logits: perhaps a bias chooses"


def _side(by: int) -> str:
    return "next" if by == 1 else "previous"


def _shifted(expert: np.ndarray, logits: np.ndarray, by: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return experts and logits, so that the experts meet the logits of the next (by = 1) place on an axis."""
    whole, cut = slice(None), (slice(None, -1), slice(1, None))[::by]
    places = [(part,) if axis == 0 else (whole, part) for part in cut]
    return expert[places[0]], logits[places[1]]


def _agreement(expert: np.ndarray, logits: np.ndarray) -> float:
    """Return the share of choices whose logit is at least the k-th largest."""
    choices = expert.shape[2]
    bound = np.partition(logits, -choices, axis=2)[:, :, -choices, None]
    return float((np.take_along_axis(logits, expert.astype(np.int64), axis=2) >= bound).mean())


def _of_gates(of: Recorded, design: Design | None, known: dict) -> Iterator[tuple[str, str]]:
    if of.gate is None:
        return
    gate = of.gate.astype(np.float64)
    routed = ~((of.expert == of.expert[:, :, :1]).all(axis=2) & (of.expert.shape[2] > 1))
    if not np.isfinite(gate).all() or (gate < 0).any():
        yield "gates", "some gates are negative or not finite"
        return
    empty = (gate.sum(axis=2) == 0) & routed
    if empty.any():
        yield "zero gates", f"all gates of {empty.any(axis=0).sum()} tokens are 0: taken from probabilities set to 0"
        return
    sums = gate.sum(axis=2)[routed]
    if design and design.gate_sum is not None and np.abs(sums / design.gate_sum - 1).max() > GATE_ERROR:
        span = f"{sums.min():.3g} to {sums.max():.3g}"
        yield "sums of gates", f"the gates of a token sum to {span}; the model's sum is {design.gate_sum:g}"
    elif of.logits is not None and not known and of.expert.shape[2] > 1 and of.expert.max() < of.logits.shape[2]:
        chosen = np.take_along_axis(of.logits, of.expert.astype(np.int64), axis=2)
        first, second = chosen[:, :, :-1], chosen[:, :, 1:]
        clear = np.abs(first - second) > 0.1
        wrong = (np.sign(first - second) != np.sign(gate[:, :, :-1] - gate[:, :, 1:])) & clear
        if wrong.sum() > (1 - AGREES) * clear.sum():
            yield "gates of others", "a larger logit often has a smaller gate: the gates belong to other experts"


def as_trace(of: Recorded, name: str, design: Design | None) -> Trace:
    """Return a routing as a trace for `block_statistics`.

    Experts out of range are missing choices. So are the choices of a token that has expert 0 k > 1 times: it was never
    routed.

    A routing of all layers loses the dense blocks of the design, and any routing its blocks without a choice. Unknown
    tokens are 0.

    Raises:
        InputError: no choice is an expert.
    """
    expert = of.expert.astype(np.int64)
    blocks, tokens = np.arange(1, len(expert) + 1) if of.block is None else of.block, expert.shape[1]
    kept = np.ones(len(expert), bool)
    if design and len(expert) == design.layers:
        kept = np.isin(blocks, design.blocks)
    elif design and len(expert) == len(design.blocks):
        blocks = design.blocks
    experts = design.experts if design else _experts(of)
    unrouted = (expert == 0).all(axis=2, keepdims=True) & (expert.shape[2] > 1)
    inside = (expert >= 0) & (expert < experts) & ~unrouted
    kept &= inside.any(axis=(1, 2))
    if not kept.any():
        raise InputError(f"{name}: has only numbers out of range, and no expert of a routed block; record it again")
    gate = np.where(inside, 1.0 if of.gate is None else of.gate, 0.0)
    known = of.token is not None and len(of.token) - tokens in (0, 1)
    token = of.token[:tokens] if known else np.zeros(tokens, np.int64)
    starts = np.flatnonzero(of.start) if of.start.any() else np.array([0])
    sequence = np.searchsorted(starts, np.arange(tokens), side="right") - 1
    return Trace(
        name=name, token=token, piece=np.array([f"[{i}]" for i in token]), sequence=sequence,
        position=np.arange(tokens) - starts[sequence], block=blocks[kept], expert=np.where(inside, expert, -1)[kept],
        gate=gate[kept], experts=experts,
        logits=None if of.logits is None else of.logits[kept],
    )  # fmt: skip
