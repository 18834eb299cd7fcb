"""Reads an optimised XLA program: which kernels it starts, and how many bytes and operations they take.

A kernel is anything that the device is told to do: a fusion, a library call, a copy. It is taken to read each of its
operands once and to write its results once. Of an operand from which a fusion takes only a slice or some rows, only those
count; of an array that is updated in place, only the update. Arrays in a TPU's vector memory are no traffic.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterator

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_FREE = {
    "parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "opt-barrier",
    "copy-done", "slice-done", "async-done", "all-gather-done", "all-reduce-done", "collective-permute-done",
}  # fmt: skip
_TRANSFERS = {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_ON_CHIP = "S(1)"  # a TPU's vector memory, in the layout of an array


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]  # dtype, shape and layout of each result
    opcode: str
    operands: tuple[str, ...]
    text: str  # the whole line
    root: bool

    @property
    def bytes(self) -> int:
        """In the device's main memory."""
        return sum(_size(array) for array in self.arrays if _ON_CHIP not in array[2])

    def called(self, attribute: str) -> str | None:
        """The name of a computation that the line calls, such as `body` or `calls`."""
        match = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.text)
        return match and match.group(1)


@dataclasses.dataclass
class Cost:
    """What a sequence of kernels takes."""

    kernels: int = 0
    conditionals: int = 0
    transfers: int = 0  # between host and device
    bytes: float = 0.0
    operations: float = 0.0  # of matrix products and cuDNN's attention
    by_kind: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, other: "Cost", times: int = 1) -> None:
        for name in ("kernels", "conditionals", "transfers", "bytes", "operations"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for kind, count in other.by_kind.items():
            self.by_kind[kind] += times * count


class Program:
    """The computations of a compiled program, `compiled.as_text()`.

    `filled` is the share of keys and values that attention with a length for each row reads.
    """

    def __init__(self, text: str, filled: float = 1.0):
        self._filled = filled
        self._computations: dict[str, dict[str, Instruction]] = {}
        self.entry, current = "", None
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self._computations.setdefault(start.group(1), {})
                self.entry = start.group(1) if line.startswith("ENTRY") else self.entry
            elif line == "}":
                current = None
            elif current is not None and (found := _INSTRUCTION.match(line.strip())):
                root, name, shape, opcode, rest = found.groups()
                arrays = tuple((dtype, _shape(dims), layout) for dtype, dims, layout in _ARRAY.findall(shape))
                operands = tuple(re.findall(r"%([\w.\-]+)", _arguments(rest)))
                current[name] = Instruction(name, arrays, opcode, operands, line, bool(root))

    def instructions(self, computation: str) -> list[Instruction]:
        return list(self._computations.get(computation, {}).values())

    def all_instructions(self) -> Iterator[Instruction]:
        for computation in self._computations.values():
            yield from computation.values()

    def decode_loops(self) -> list[str]:
        """The bodies of the loops whose number of turns is not known at compile time, in the order in which they run."""
        whiles = [line for line in self.instructions(self.entry) if line.opcode == "while"]
        return [line.called("body") for line in whiles if self._turns(line) is None]

    def collectives(self) -> dict[str, int]:
        found = collections.Counter(line.opcode.removesuffix("-start") for line in self.all_instructions())
        return {name: found[name] for name in COLLECTIVES if found[name]}

    def whole(self) -> Cost:
        """The cost of a run in which every loop without a known number of turns makes one."""
        return self.cost(self.entry)

    def copies(self, computation: str, shapes: Collection[tuple[int, ...]]) -> int:
        """Kernels of a computation that only copy, convert or transpose an array of one of these shapes in main memory."""
        moving = {"copy", "transpose", "convert", "bitcast", "parameter", "reshape"}
        wanted = {tuple(sorted(shape)) for shape in shapes}
        count = 0
        for line in self.instructions(computation):
            inside = self.instructions(line.called("calls") or "") if line.opcode == "fusion" else [line]
            found = any(tuple(sorted(shape)) in wanted and _ON_CHIP not in layout for _, shape, layout in line.arrays)
            count += found and line.opcode not in _FREE and {part.opcode for part in inside} <= moving
        return count

    @functools.cache  # noqa: B019
    def cost(self, computation: str) -> Cost:
        """What one run of a computation takes; a loop counts with all its turns."""
        total, lines = Cost(), self._computations.get(computation, {})
        for line in lines.values():
            if line.opcode in _FREE:
                continue
            if line.opcode == "while":
                total.add(self.cost(line.called("body")), self._turns(line) or 1)
            elif line.opcode == "conditional":
                total.conditionals += 1
            elif line.opcode == "call":
                total.add(self.cost(line.called("to_apply")))
            else:
                total.kernels += 1
                total.transfers += line.opcode in _TRANSFERS or "S(5)" in line.text  # memory space 5: the host's
                total.bytes += self._traffic(line, lines)
                total.operations += self._operations(line, lines)
                total.by_kind[_kind(line)] += 1
        return total

    def _turns(self, line: Instruction) -> int | None:
        """The turns of a loop, from the compiler's note or a condition that only compares a counter with a constant."""
        if found := re.search(r'known_trip_count":\{"n":"(\d+)"', line.text):
            return int(found.group(1))
        condition = self.instructions(line.called("condition"))
        bounds = [re.search(r" constant\((\d+)\)", x.text) for x in condition if x.opcode == "constant"]
        simple = [x.opcode for x in condition if x.opcode not in _FREE] == ["compare"] and "direction=LT" in condition[-1].text
        return int(bounds[0].group(1)) if simple and len(bounds) == 1 and bounds[0] else None

    def _traffic(self, line: Instruction, lines: dict[str, Instruction]) -> float:
        given = [lines[name] for name in line.operands if name in lines]
        if line.opcode == "fusion" and (inside := self._computations.get(line.called("calls"))):
            read = sum(min(x.bytes, self._read(i, inside)) for i, x in enumerate(given))
            return read + self._written(next(x for x in inside.values() if x.root), inside)
        if line.opcode == "custom-call" and "fmhaSoftmax" in line.text and "PADDING" in line.text:
            return given[0].bytes + self._filled * sum(x.bytes for x in given[1:3]) + line.bytes
        if line.opcode == "dynamic-update-slice":
            return 2 * given[1].bytes
        if line.opcode in ("slice", "dynamic-slice", "gather"):
            return 2 * line.bytes
        if line.opcode in ("copy-start", "slice-start"):  # its results: copy and source, or source and slice
            moved = line.arrays[line.opcode == "slice-start"]
            return _size(moved) * sum(_ON_CHIP not in layout for layout in (moved[2], given[0].arrays[0][2]))
        return sum({x.name: x.bytes for x in given}.values()) + line.bytes

    def _read(self, index: int, inside: dict[str, Instruction]) -> float:
        """Bytes that a fusion reads of its operand number `index`; all of it, if the result is that operand in another shape."""
        parameter = next(x for x in inside.values() if x.opcode == "parameter" and _index(x) == index)
        sliced, pending = 0.0, [parameter.name]
        while pending:
            name = pending.pop()
            if inside[name].root:
                return parameter.bytes
            for user in inside.values():
                if name not in user.operands:
                    continue
                if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                    sliced += user.bytes
                elif user.opcode in ("dynamic-update-slice", "scatter") and user.operands[0] == name:
                    continue  # the rest stays as it is
                elif user.opcode == "bitcast":
                    pending.append(user.name)
                elif user.opcode == "fusion" and (within := self._computations.get(user.called("calls"))):
                    sliced += sum(self._read(i, within) for i, operand in enumerate(user.operands) if operand == name)
                else:
                    return parameter.bytes
        return min(sliced, parameter.bytes)

    def _written(self, root: Instruction, inside: dict[str, Instruction]) -> float:
        """Bytes that a fusion writes."""
        if root.opcode == "tuple":
            return sum(self._written(inside[name], inside) for name in root.operands)
        if root.opcode == "bitcast":
            return self._written(inside[root.operands[0]], inside)
        if root.opcode == "fusion" and (within := self._computations.get(root.called("calls"))):
            return self._written(next(x for x in within.values() if x.root), within)
        if root.opcode == "dynamic-update-slice":
            return inside[root.operands[1]].bytes
        if root.opcode == "scatter":
            return inside[root.operands[-1]].bytes
        return root.bytes

    def _operations(self, line: Instruction, lines: dict[str, Instruction]) -> float:
        if line.opcode == "fusion":
            inside = self._computations.get(line.called("calls"), {})
            return sum(self._operations(part, inside) for part in inside.values())
        if line.opcode == "dot":
            contracted = [int(i) for i in re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.text).group(1).split(",")]
            shape = lines[line.operands[0]].arrays[0][1]
            return 2.0 * math.prod(line.arrays[0][1]) * math.prod(shape[i] for i in contracted)
        if line.opcode == "convolution":  # a TPU's product; a spatial axis that is dilated or padded stands for a batch
            labels = re.search(r"dim_labels=(\w+)_", line.text).group(1)
            window = dict(re.findall(r"(\w+)=(\S+?)[ }]", (re.search(r"window=\{([^}]*\})", line.text) or [""])[0].removeprefix("window={")))
            summed = 1 if window.keys() & {"lhs_dilate", "pad"} else math.prod(map(int, window.get("size", "1").split("x")))
            return 2.0 * math.prod(line.arrays[0][1]) * lines[line.operands[0]].arrays[0][1][labels.index("f")] * summed
        if line.opcode == "custom-call" and "cublas" in line.text:
            contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', line.text).group(1)
            shape = lines[line.operands[0]].arrays[0][1]
            return 2.0 * math.prod(line.arrays[0][1]) * math.prod(shape[int(i)] for i in re.findall(r"\d+", contracted))
        if line.opcode == "custom-call" and "fmhaSoftmax" in line.text:
            queries, keys = (lines[name].arrays[0][1] for name in line.operands[:2])
            products = 5 if "Backward" in line.text else 2
            used = 0.5 if "CAUSAL" in line.text else 1.0
            return 2.0 * products * math.prod(queries) * keys[1] * used
        return 0.0


def _kind(line: Instruction) -> str:
    if line.opcode == "custom-call":
        return re.search(r'custom_call_target="([^"]+)"', line.text).group(1)
    if "gemm_fusion" in line.name:
        return "product"
    return line.opcode


def _size(array: tuple[str, tuple[int, ...], str]) -> int:
    return _BYTES.get(array[0], 4) * math.prod(array[1])


def _index(parameter: Instruction) -> int:
    return int(re.search(r" parameter\((\d+)\)", parameter.text).group(1))


def _shape(dims: str) -> tuple[int, ...]:
    return tuple(int(n) for n in dims.split(",") if n)


def _arguments(rest: str) -> str:
    """The text up to the bracket that closes the operands."""
    depth = 1
    for i, char in enumerate(rest):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return rest[:i]
    return rest
