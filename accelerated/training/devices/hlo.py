"""Read the text of a compiled XLA program: collectives, matrix products, and the largest tensors.

XLA's own cost analysis counts the body of a loop once. This module counts it once per round. It knows the number of
rounds if the condition is i < n with a constant n, as in `lax.scan` (i runs from 0 in steps of 1). Other loops, such as
a search until convergence, count once.

A computation of the text has one instruction per line, `%name = type opcode(operands), attributes`, and stands before
its callers. `ENTRY` marks the computation that a call runs. XLA may change this form, so an unknown line is an error.
"""

import collections
import itertools
import math
import re
from typing import NamedTuple

from ...errors import InputError

WIDTHS = {"pred": 1, "token": 0, "opaque": 0, "bf16": 2, "c64": 8, "c128": 16}
"""Bytes of a number; the names of other types begin with a letter and the number of bits, such as f32 and f8e4m3."""

SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "all-gather": lambda size, n: size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "ragged-all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
    "collective-broadcast": lambda size, n: size,
}
"""By collective, the bytes that a device sends in rings, from the bytes of its result and the devices of a group. A
ragged all-to-all sends what the router decides. Its number is an upper estimate: all rows of the smaller buffer."""

VIEWS = (
    "parameter", "get-tuple-element", "bitcast", "tuple", "while", "conditional", "call", "opt-barrier", "constant",
)  # fmt: skip
"""Instructions that move no bytes of their own."""

VIEW_CALLS = ('custom_call_target="ConcatBitcast"', 'custom_call_target="AllocateBuffer"')
"""Attributes of calls by which libtpu names memory: the whole of parts that came one by one, and memory to fill."""

_COLLECTIVE = r"(?<![\w%.-])((?:all|ragged|partitioned|collective)-[\w-]+|reduce-scatter[\w-]*|send|recv)\("
_TENSOR = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,]*)\](\{[^{}]*\})?")
_CALLED = re.compile(r"\b(calls|body|condition|branch_computations|\w+_computation|to_apply)=(\{[^}]*\}|%[\w.-]+)")


class Instruction(NamedTuple):
    name: str
    type: str  # such as f32[8,128]{1,0:T(8,128)}, or several in parentheses
    opcode: str
    operands: str
    attributes: str

    def names(self) -> list[str]:
        """Return the names of the operands."""
        return re.findall(r"%([\w.-]+)", self.operands)

    def source(self) -> str:
        """Return the operation of the traced program; "" if unknown."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1].replace("\\'", "'") if found else ""


class Collective(NamedTuple):
    kind: str  # a key of `SENT`
    devices: int  # in each group
    times: int  # in a call of the program
    sent: float  # bytes that a device sends each time


class LargeTensor(NamedTuple):
    size: float  # bytes, without padding
    shape: str
    source: str  # the operation of the traced program


class Program:
    """A compiled program.

    Args:
        text: `as_text()` of JAX's compiled program.

    Attributes:
        computations: {name: its instructions}
        times: {name: how often a call of the program runs the computation}
        uncounted: number of loops with an unknown number of rounds

    Raises:
        InputError: a line has an unknown form.
    """

    def __init__(self, text: str):
        self.computations, self.entry, lines = {}, None, None
        for line in re.sub(r'\n(?="|}, ")', " ", text).splitlines():  # some attributes of kernels have several lines
            head = re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line)
            if head:
                lines = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            elif line == "}" or line.startswith("}, execution_thread="):  # a part of the chip, such as "sparsecore"
                lines = None
            elif lines is not None and line.strip():
                lines.append(_instruction(line.strip()))
            elif re.search(_COLLECTIVE, line):
                raise _unknown("line outside of computations", line)
        if self.entry is None:
            raise _unknown("text without ENTRY", text)
        for name, lines in self.computations.items():
            if name.startswith("all-reduce-scatter"):  # written as an all-reduce and a slice, but sent as a scatter
                of_part = {"opcode": "reduce-scatter", "type": lines[-1].type}
                lines[:] = [line._replace(**of_part) if line.opcode == "all-reduce" else line for line in lines]
        self.times, self.uncounted = collections.Counter({self.entry: 1}), 0
        for name in reversed(self.computations):
            for line in self.computations[name] if self.times[name] else ():
                self._count_called(name, line)

    def _count_called(self, name: str, line: Instruction) -> None:
        called = {kind: re.findall(r"%([\w.-]+)", names) for kind, names in _CALLED.findall(line.attributes)}
        times = self.times[name]
        if line.opcode == "while":
            rounds = self._rounds(line, self.computations[called["condition"][0]])
            self.uncounted += rounds is None
            times *= 1 if rounds is None else rounds
        for each in itertools.chain(*called.values()):
            if each not in self.computations:
                raise _unknown("call of a missing computation", f"{line.name} calls {each}")
            self.times[each] += times

    def _rounds(self, loop: Instruction, condition: list[Instruction]) -> int | None:
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):  # of XLA on CPU
            return int(known[1])
        lines = {line.name: line for line in condition}
        limit = lines.get((condition[-1].names() or [""])[-1])
        compared = condition[-1].opcode == "compare" and "direction=LT" in condition[-1].attributes
        if not compared or limit is None or limit.opcode != "constant":
            return None
        return int(limit.operands)

    def lines(self):
        """Yield (instruction, {name: instruction} of its computation, times) of all computations that run."""
        for name, lines in self.computations.items():
            if self.times[name]:
                by_name = {line.name: line for line in lines}
                for line in lines:
                    yield line, by_name, self.times[name]

    def collectives(self) -> list[Collective]:
        """Return all collectives.

        XLA runs some in pieces, beside other work. Each piece repeats the collective, with the same channel.

        Raises:
            InputError: the groups of devices have an unknown form.
        """
        found, pieces = [], {}
        for line, by_name, times in self.lines():
            kind = line.opcode.removesuffix("-start")
            if kind in SENT:
                size = tensor_bytes(line.type)
                if kind == "ragged-all-to-all":  # no more than the rows of either side
                    size = min(size, tensor_bytes(by_name[line.names()[0]].type))
                if line.opcode != kind and kind != "all-reduce":  # the result of a start repeats its operands
                    size -= sum(tensor_bytes(by_name[name].type) for name in line.names())
                devices = 2 if kind == "collective-permute" else _group_size(line)
                collective = Collective(kind, devices, times, SENT[kind](size, devices))
                if "chain_id=" not in line.attributes:
                    found.append(collective)
                    continue
                channel = re.search(r"channel_id=\d+", line.attributes)[0]
                pieces[channel] = min(pieces.get(channel, collective), collective)
        return found + list(pieces.values())

    def product_flops(self) -> float:
        """Return the FLOPs of all matrix products: two for each pair of factors. (On a TPU they are convolutions.)

        A kernel, such as the products of experts, states its FLOPs for the most rows that it can get.
        """
        total = 0
        for line, by_name, times in self.lines():
            if line.opcode in ("dot", "convolution"):
                shapes = [_shape(by_name[name].type) for name in line.names()[:2]]
                count = _dot if line.opcode == "dot" else _convolution
                total += 2 * times * count(_shape(line.type), *shapes, line.attributes)
            elif line.opcode == "custom-call":
                stated = re.search(r'"cost_estimate": ?\{[^{}]*"flops":"?(\d+)', line.attributes)
                total += times * int(stated[1]) if stated else 0
        return total

    def _unfused(self):
        """Yield (name, instructions) of the computations that run, except the insides of fusions."""
        inside = {name for lines in self.computations.values() for line in lines for name in _fused(line)}
        for name, lines in self.computations.items():
            if self.times[name] and name not in inside:
                yield name, lines

    def moved_bytes(self) -> float:
        """Return the bytes that instructions read and write, in the large or the fast memory.

        XLA's count is similar, but counts the body of a loop once. Of an array from which an instruction takes a slice,
        or in which it replaces one, only the slice counts.
        """
        total = 0
        for name, lines in self._unfused():
            types = {line.name: line.type for line in lines}
            for line in lines:
                if line.opcode.endswith("-done"):
                    total += 2 * self.times[name] * tensor_bytes(line.type)
                elif not (line.opcode in VIEWS or line.opcode.endswith("-start") or _calls_view(line)):
                    total += self.times[name] * self._moved(line, types)
        return total

    def _moved(self, line: Instruction, types: dict[str, str]) -> float:
        body, inner = [line], line.names()
        if fused := _fused(line):
            body = self.computations[fused[0]]
            parameters = [each for each in body if each.opcode == "parameter"]
            inner = [each.name for each in sorted(parameters, key=lambda each: int(each.operands))]
        total, root = 0, body[-1]
        for name, outer in zip(inner, line.names(), strict=True):
            users = [each for each in body if name in each.names()]
            uses = {(each.opcode, each.names()[0] == name) for each in users}
            if uses in ({("dynamic-slice", True)}, {("slice", True)}):
                total += sum(tensor_bytes(each.type) for each in users)
            elif uses != {("dynamic-update-slice", True)}:
                total += tensor_bytes(types[outer])
        types = types | {each.name: each.type for each in body}
        return total + tensor_bytes(types[root.names()[1]] if root.opcode == "dynamic-update-slice" else line.type)

    def largest_tensors(self, number: int) -> list[LargeTensor]:
        """Return the largest results of instructions in the device's large memory (HBM), one for each shape."""
        found = {}
        for name, lines in self._unfused():
            for line in lines:
                if line.opcode in VIEWS and not (name == self.entry and line.opcode == "parameter"):
                    continue
                for match in _TENSOR.finditer(line.type):
                    if "S(" not in (match[5] or ""):  # S(1) is the small fast memory
                        shape = match[0].removesuffix(match[5] or "")
                        if shape not in found or not found[shape].source:
                            found[shape] = LargeTensor(tensor_bytes(match[0]), shape, line.source())
        return sorted(found.values(), key=lambda tensor: -tensor.size)[:number]


def tensor_bytes(text: str) -> float:
    """Return the bytes of all tensors of a type, without padding."""
    total = 0
    for letters, bits, rest, sizes, _ in _TENSOR.findall(text):
        width = WIDTHS.get(letters + bits, int(bits) / 8 if bits and letters in "sufc" or rest else None)
        if width is None:
            raise _unknown("type", text)
        total += width * math.prod(map(int, filter(None, sizes.split(","))))
    return total


def _unknown(what: str, line: str) -> InputError:
    return InputError(
        f"the compiled program has a {what} that this version cannot read: {line.strip()[:160]!r}; "
        "install the versions of docs/scale.md"
    )


def _instruction(line: str) -> Instruction:
    match = re.match(r"(?:ROOT )?%?([\w.-]+) = (.*)$", line)
    rest = match[2] if match else ""
    end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    kind, rest = rest[:end], rest[end:].strip()
    opcode = re.match(r"([a-z][\w-]*)\(", rest)
    if not opcode:
        raise _unknown("line", line)
    end = _closing(rest, opcode.end() - 1)
    attributes = rest[end:]
    moves = re.match(_COLLECTIVE, rest)
    known = re.sub("-(start|done)$", "", opcode[1]) in SENT
    if moves and not known or re.search(_COLLECTIVE, re.sub(r'"(?:[^"\\]|\\.)*"', "", attributes)):
        raise _unknown("collective", line)
    return Instruction(match[1], kind, opcode[1], rest[opcode.end() : end - 1], attributes)


def _closing(text: str, start: int) -> int:
    """Return the index after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile("[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    raise _unknown("line", text)


def _fused(line: Instruction) -> list[str]:
    return re.findall(r"calls=%([\w.-]+)", line.attributes) if line.opcode in ("fusion", "async-start") else []


def _calls_view(line: Instruction) -> bool:
    return line.opcode == "custom-call" and any(call in line.attributes for call in VIEW_CALLS)


def _group_size(line: Instruction) -> int:
    """Return the number of devices of a group, in one of XLA's three forms.

    The forms: {{0,1},{2,3}}; [2,4]<=[8], groups by size; mesh['x'=2,'y'=4] {'y'}, a mesh and the axes of a group.
    """
    groups = line.attributes.partition("replica_groups=")[2]
    if match := re.match(r"\{\{([\d,]+)\}", groups):
        return match[1].count(",") + 1
    if match := re.match(r"\[\d+,(\d+)\]<=", groups):
        return int(match[1])
    if match := re.match(r"mesh\[([^\]]*)\][^{}]*\{([^}]*)\}", groups):
        sizes = dict(re.findall(r"('\w+')=(\d+)", match[1]))
        axes = re.findall(r"'\w+'", match[2])
        if axes and all(axis in sizes for axis in axes) and ":" not in match[2]:
            return math.prod(int(sizes[axis]) for axis in axes)
    raise _unknown("group of devices", f"{line.name}: {groups}")


def _shape(text: str) -> list[int]:
    return [int(size) for size in _TENSOR.match(text)[4].split(",") if size]


def _dot(result, left, right, attributes) -> int:
    axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", attributes)
    return math.prod(result) * math.prod(left[int(axis)] for axis in axes[1].split(",") if axes[1])


def _convolution(result, left, right, attributes) -> int:
    """Return the number of products: places of the result, times input features, times the window inside the input."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    of_left, of_right, of_result = (
        dict(zip(names, sizes, strict=True))
        for names, sizes in zip(labels.groups(), (left, right, result), strict=True)
    )
    groups = re.search(r"batch_group_count=(\d+)", attributes)
    count = of_result["b"] * of_result["f"] * of_right["i"] // (int(groups[1]) if groups else 1)
    window = re.search(r"window=\{([^}]*)\}", attributes)
    options = dict(item.split("=") for item in window[1].split()) if window else {}
    for axis in sorted(of_result.keys() - {"b", "f"}):
        stride, spread, apart = (
            int(options[name].split("x")[int(axis)]) if name in options else 1
            for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(options["pad"].split("x")[int(axis)].split("_")[0]) if "pad" in options else 0
        places = (i * stride + j * apart - low for i in range(of_result[axis]) for j in range(of_right[axis]))
        count *= sum(0 <= place <= (of_left[axis] - 1) * spread and place % spread == 0 for place in places)
    return count
