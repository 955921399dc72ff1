"""A slow, naive interpreter of recorded programs: one element at a time, in plain Python.

Written from the documents and kept apart from the emulator: every tensor is a bytearray of its own, every number a
Python int or float, rounded by ``struct``. It covers control flow, scalars, vector instructions and moves between
global memory, the Unified Buffer and L1; the fuzz tests compare the emulator with it. It checks nothing.

    outputs = naive.run(program, {"x": array})
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tikemu import ir

CODES = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
}
LARGEST = {"float16": 65504.0, "float32": struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]}


def size_of(dtype: str) -> int:
    return struct.calcsize(CODES[dtype])


def stored(value: Any, dtype: str) -> Any:
    """A result as ``dtype`` holds it: floats rounded to nearest even and saturated, integers wrapped."""
    if dtype in LARGEST:
        if math.isnan(value):
            return 0.0
        try:
            rounded = struct.unpack(CODES[dtype], struct.pack(CODES[dtype], value))[0]
        except OverflowError:
            rounded = math.inf
        return math.copysign(LARGEST[dtype], value) if math.isinf(rounded) else rounded
    bits = 8 * size_of(dtype)
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if CODES[dtype].islower() and value >> (bits - 1) else value


class Pointer:
    """A place in a tensor's bytes."""

    def __init__(self, data: bytearray, address: int, dtype: str) -> None:
        self.data, self.address, self.dtype = data, address, dtype
        self.size = size_of(dtype)

    def at(self, offset: int, dtype: str | None = None) -> Pointer:
        return Pointer(self.data, self.address + offset, dtype or self.dtype)

    def lane(self, repeat: int, lane: int, rep: int, blk: int = 1) -> Pointer:
        """Element ``lane`` of a repeat; strides in blocks of 32 bytes."""
        per_block = 32 // self.size
        return self.at(32 * (repeat * rep + lane // per_block * blk) + lane % per_block * self.size)

    def get(self) -> Any:
        return struct.unpack_from(CODES[self.dtype], self.data, self.address)[0]

    def put(self, value: Any) -> None:
        struct.pack_into(CODES[self.dtype], self.data, self.address, stored(value, self.dtype))

    def copy_from(self, other: Pointer, count: int) -> None:
        """Raw bytes: bit patterns are kept."""
        self.data[self.address : self.address + count] = other.data[other.address : other.address + count]


class Interrupt(Exception):
    """tik_break, tik_continue, tik_return."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind)
        self.kind = kind


def lanes(mask: Any, width: int) -> list[int]:
    if not isinstance(mask, (list, tuple)):
        return list(range(mask))
    bits = (mask[0] & (1 << 64) - 1) << 64 | mask[1] & (1 << 64) - 1
    return [lane for lane in range(width) if bits >> lane & 1]


# ------------------------------------------------------------------------------------------- arithmetic
def divide(x: float, y: float) -> float:
    if y == 0:
        return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)
    return x / y


def exponential(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def logarithm(x: float) -> float:
    return -math.inf if x == 0 else math.nan if math.isnan(x) or x < 0 else math.log(x)


def largest(x: Any, y: Any) -> Any:
    return math.nan if x != x or y != y else y if y > x else x


def smallest(x: Any, y: Any) -> Any:
    return math.nan if x != x or y != y else y if y < x else x


ONE = {
    "abs": lambda x: abs(x),
    "relu": lambda x: 0 if x < 0 else x,
    "exp": exponential,
    "ln": logarithm,
    "sqrt": lambda x: math.nan if x < 0 else math.sqrt(x),
    "not": lambda x: ~x,
}
TWO = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": largest,
    "min": smallest,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "div": divide,
}
COMPARE = {
    "lt": lambda x, y: x < y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "le": lambda x, y: x <= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}


def tree(values: list, dtype: str) -> Any:
    """Sum of adjacent pairs, every node rounded."""
    while len(values) > 1:
        values = [stored(values[i] + values[i + 1], dtype) for i in range(0, len(values), 2)]
    return values[0]


def to_integer(x: float, mode: str, dtype: str) -> int:
    low, high = (0, 255) if dtype == "uint8" else (-128, 127) if dtype == "int8" else (-(1 << 31), (1 << 31) - 1)
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return high if x > 0 else low
    rounded = {
        "floor": math.floor,
        "ceil": math.ceil,
        "ceiling": math.ceil,
        "to-zero": math.trunc,
        "away-zero": lambda v: int(math.copysign(math.floor(abs(v) + 0.5), v)),
    }.get(mode, round)(x)
    return min(max(rounded, low), high)


# ------------------------------------------------------------------------------------------- instructions
def vector(
    a: dict[str, Any], function: Callable[..., Any], sources: tuple[str, ...], legacy: bool, reads_dst: bool = False
) -> None:
    """Element by element, a repeat's sources before its destination."""
    dst, inputs = a["dst"], [a[name] for name in sources]
    width = 256 // max(p.size for p in (dst, *inputs))
    for repeat in range(a["repeat_times"]):
        results = []
        for lane in lanes(a["mask"], width):
            values = [
                p.lane(repeat, lane, a[f"{name}_rep_stride"], a[f"{name}_blk_stride"] if legacy else 1).get()
                for name, p in zip((*sources, *(["dst"] if reads_dst else [])), (*inputs, dst))
            ]
            results.append((lane, function(*values)))
        for lane, value in results:
            dst.lane(repeat, lane, a["dst_rep_stride"], a["dst_blk_stride"] if legacy else 1).put(value)


def multiply_add(kind: str, dtype: str, scalar: Any = None) -> Callable[..., Any]:
    """The product is rounded, then the sum."""
    if kind == "axpy":
        return lambda x, d: stored(x * scalar, dtype) + d
    if kind == "mla":
        return lambda x, y, d: stored(x * y, dtype) + d
    return lambda x, y, d: stored(x * d, dtype) + y


def fill(a: dict[str, Any], legacy: bool) -> None:
    dst = a["dst"]
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], 256 // dst.size):
            dst.lane(repeat, lane, a["dst_rep_stride"], a["dst_blk_stride"] if legacy else 1).put(a["scalar"])


def convert(a: dict[str, Any], legacy: bool) -> None:
    dst, mode = a["dst"].dtype, a["round_mode"]
    if a["deqscale"] is not None:
        vector(a, lambda x: x * a["deqscale"], ("src",), legacy)
    elif dst.startswith("float"):
        vector(a, lambda x: x, ("src",), legacy)
    else:
        vector(a, lambda x: to_integer(x, mode, dst), ("src",), legacy)


def compare(a: dict[str, Any], function: Callable[[Any, Any], bool], legacy: bool) -> None:
    width = 256 // a["src0"].size
    for repeat in range(a["repeat_times"]):
        bits = 0
        for lane in range(width):
            x, y = (
                a[name].lane(repeat, lane, a[f"{name}_rep_stride"], a[f"{name}_blk_stride"] if legacy else 1).get()
                for name in ("src0", "src1")
            )
            bits |= function(x, y) << lane
        for byte in range(width // 8):
            a["dst"].at(repeat * width // 8 + byte, "uint8").put(bits >> 8 * byte & 255)


def select(a: dict[str, Any], legacy: bool, register: int) -> None:
    width = 256 // a["dst"].size
    bits = register
    if isinstance(a["sel"], Pointer):
        bits = sum(a["sel"].at(byte, "uint8").get() << 8 * byte for byte in range(width // 8))
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], width):
            name = "src0" if bits >> lane & 1 else "src1"
            to, source = (
                a[key].lane(repeat, lane, a[f"{key}_rep_stride"], a[f"{key}_blk_stride"] if legacy else 1)
                for key in ("dst", name)
            )
            to.copy_from(source, to.size)


def reduce(a: dict[str, Any], name: str) -> None:
    src, dst = a["src"], a["dst"]
    width = 256 // src.size
    enabled = lanes(a["mask"], width)
    group = {"vcadd": width, "vcmax": width, "vcmin": width, "vcpadd": 2}.get(name, 32 // src.size)
    pair = name in ("vcmax", "vcmin")
    for repeat in range(a["repeat_times"]):
        values = {lane: src.lane(repeat, lane, a["src_rep_stride"], a["src_blk_stride"]).get() for lane in enabled}
        start = repeat * a["dst_rep_stride"] * (2 if pair else width // group) * src.size
        for number, first in enumerate(range(0, width, group)):
            inside = [lane for lane in range(first, first + group) if lane in values]
            if name.endswith("add"):
                if inside or name == "vcadd":
                    result = tree([values.get(lane, 0) for lane in range(first, first + group)], src.dtype)
                    dst.at(start + number * src.size).put(result)
            elif inside:
                sign = 1 if name.endswith("max") else -1
                clean = {lane: 0.0 if values[lane] != values[lane] else values[lane] for lane in inside}
                best = max(inside, key=lambda lane: (sign * clean[lane], -lane))
                dst.at(start + number * src.size).put(clean[best])
                if pair:
                    dst.at(start + src.size, "uint16").put(best)


def reduce_add(a: dict[str, Any]) -> None:
    src = a["src"]
    width = 256 // src.size
    enabled = set(lanes(a["mask"], width))
    values = []
    for repeat in range(a["repeat_times"]):
        row = [src.lane(repeat, lane, a["src_rep_stride"]).get() if lane in enabled else 0 for lane in range(width)]
        values.append(tree(row, src.dtype))
    while len(values) > 1:
        groups = [values[i : i + width] for i in range(0, len(values), width)]
        values = [tree(part + [0] * (width - len(part)), src.dtype) for part in groups]
    if values:
        a["dst"].put(values[0])


def reduce_extreme(a: dict[str, Any], sign: int) -> None:
    src, best = a["src"], None
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], 128):
            value = src.lane(repeat, lane, a["src_rep_stride"]).get()
            value = 0.0 if value != value else value
            if best is None or sign * value > sign * best[0]:
                best = (value, repeat * 128 + lane)
    if best is not None:
        a["dst"].put(best[0])
        if a["cal_index"]:
            a["dst"].at(2, "uint16").put(best[1])


def transpose(dst: Pointer, src: Pointer, repeats: int, dst_stride: int, src_stride: int) -> None:
    for repeat in range(repeats):
        tile = bytes(src.data[src.address + repeat * src_stride * 512 :][:512])
        for i in range(16):
            for j in range(16):
                at = dst.address + repeat * dst_stride * 512 + 2 * (16 * j + i)
                dst.data[at : at + 2] = tile[2 * (16 * i + j) : 2 * (16 * i + j) + 2]


def scatter(a: dict[str, Any]) -> None:
    repeats, size = a["repeat_times"], a["dst_list"][0].size
    high, low = (16 * bool(a[name]) if size == 1 else 0 for name in ("dst_high_half", "src_high_half"))
    for repeat in range(repeats):
        step = 1 if repeats == 1 else repeat  # with one repeat the stride is applied once
        first = 32 * step * a["src_rep_stride"] + low
        block = [[bytes(p.data[p.address + first + size * e :][:size]) for e in range(16)] for p in a["src_list"]]
        for e, p in enumerate(a["dst_list"]):
            for k in range(16):
                at = p.address + 32 * step * a["dst_rep_stride"] + high + size * k
                p.data[at : at + size] = block[k][e]


def move(a: dict[str, Any]) -> None:
    """data_move between global memory, the Unified Buffer and L1: bursts and gaps in blocks of 32 bytes."""
    length = 32 * a["burst"]
    for number in range(a["nburst"]):
        to = a["dst"].at(number * (length + 32 * a["dst_stride"]))
        at = a["src"].at(number * (length + 32 * a["src_stride"]))
        # A GM tensor may end inside the last block.
        count = min(length, len(to.data) - to.address, len(at.data) - at.address)
        to.copy_from(at, count)


class Interpreter:
    """One block of a program."""

    def __init__(self, program: ir.Program, gm: dict[int, bytearray], inputs: Mapping[str, Any], block: int) -> None:
        self.gm, self.block = gm, block
        self.tensors: dict[int, bytearray] = {}
        self.scalars: dict[int, Any] = {
            variable.uid: inputs[variable.name] for variable in program.inputs if isinstance(variable, ir.Variable)
        }
        self.register = 0

    # ---- values
    def value(self, node: Any) -> Any:
        if isinstance(node, ir.Variable):
            return self.scalars[node.uid]
        if isinstance(node, ir.Operation):
            return self.operation(node)
        return node

    def operation(self, node: ir.Operation) -> Any:
        if node.op == "all":
            return int(all(self.value(arg) for arg in node.args))
        if node.op == "any":
            return int(any(self.value(arg) for arg in node.args))
        if node.op == "index":
            return self.value(node.args[1 + self.value(node.args[0])])
        values = [self.value(arg) for arg in node.args]
        if node.op == "not":
            return int(not values[0])
        x, y = values
        if node.op in ("<", "<=", ">", ">=", "==", "!="):
            return int({"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}[node.op])
        if node.dtype in LARGEST:
            exact = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "/": lambda: divide(x, y)}[node.op]()
            return struct.unpack(CODES[node.dtype], struct.pack(CODES[node.dtype], exact))[0]
        quotient = 0
        if node.op in ("/", "%"):
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        result = {
            "+": lambda: x + y,
            "-": lambda: x - y,
            "*": lambda: x * y,
            "/": lambda: quotient,
            "%": lambda: x - quotient * y,
            "&": lambda: x & y,
            "|": lambda: x | y,
            "<<": lambda: x << y,
            ">>": lambda: x >> y,
        }[node.op]()
        return stored(result, node.dtype)

    def pointer(self, view: ir.View) -> Pointer:
        data = self.gm[view.tensor.uid] if view.tensor.memory == "GM" else self.tensors[view.tensor.uid]
        return Pointer(data, self.value(view.offset) * size_of(view.dtype), view.dtype)

    def resolve(self, argument: Any) -> Any:
        if isinstance(argument, ir.View):
            return self.pointer(argument)
        if isinstance(argument, (list, tuple)):
            return [self.resolve(item) for item in argument]
        return self.value(argument)

    # ---- statements
    def body(self, statements: list) -> None:
        for statement in statements:
            getattr(self, f"do_{type(statement).__name__.lower()}")(statement)

    def do_define(self, statement: ir.Define) -> None:
        tensor = statement.tensor
        if tensor.memory != "GM":
            count = math.prod(self.value(extent) for extent in tensor.shape) * size_of(tensor.dtype)
            self.tensors[tensor.uid] = bytearray(max(count, tensor.max_mem_size or 0) + 31)

    def do_definescalar(self, statement: ir.DefineScalar) -> None:
        pass

    def do_assign(self, statement: ir.Assign) -> None:
        value = statement.value
        value = self.pointer(value).get() if isinstance(value, ir.View) else self.value(value)
        target = statement.target
        if target.dtype not in LARGEST and isinstance(value, float):
            value = to_integer(value, "to-zero", "int32")
        self.scalars[target.uid] = stored(value, target.dtype)

    def do_store(self, statement: ir.Store) -> None:
        value = statement.value
        value = self.pointer(value).get() if isinstance(value, ir.View) else self.value(value)
        self.pointer(statement.target).put(value)

    def do_for(self, statement: ir.For) -> None:
        begin, end = self.value(statement.begin), self.value(statement.end)
        parallel = statement.block_num if isinstance(statement.block_num, int) else self.value(statement.block_num)
        for i in [self.block] if parallel > 1 else range(begin, end):
            self.scalars[statement.variable.uid] = i
            try:
                self.body(statement.body.statements)
            except Interrupt as interrupt:
                if interrupt.kind is ir.Break:
                    break
                if interrupt.kind is ir.Return:
                    raise

    def do_if(self, statement: ir.If) -> None:
        for condition, body in statement.branches:
            if self.value(condition):
                self.body(body.statements)
                return
        if statement.otherwise is not None:
            self.body(statement.otherwise.statements)

    def do_scope(self, statement: ir.Scope) -> None:
        self.body(statement.body.statements)

    def do_break(self, statement: ir.Break) -> None:
        raise Interrupt(ir.Break)

    def do_continue(self, statement: ir.Continue) -> None:
        raise Interrupt(ir.Continue)

    def do_return(self, statement: ir.Return) -> None:
        raise Interrupt(ir.Return)

    def do_instruction(self, statement: ir.Instruction) -> None:
        name, a = statement.spec.name, {key: self.resolve(value) for key, value in statement.args.items()}
        INSTRUCTIONS[name](self, a)

    # ---- the compare-mask register
    def compare_to_register(self, a: dict[str, Any], function: Callable[[Any, Any], bool]) -> None:
        for lane in lanes(a["mask"], 256 // a["src0"].size):
            x, y = (a[name].lane(0, lane, 0, a[f"{name}_blk_stride"]).get() for name in ("src0", "src1"))
            self.register = self.register & ~(1 << lane) | function(x, y) << lane

    def load_register(self, a: dict[str, Any]) -> None:
        self.register = int.from_bytes(a["src"].data[a["src"].address : a["src"].address + 16], "little")

    def store_register(self, a: dict[str, Any]) -> None:
        a["dst"].data[a["dst"].address : a["dst"].address + 16] = self.register.to_bytes(16, "little")


def _table() -> Iterator[tuple[str, Callable[[Interpreter, dict[str, Any]], None]]]:
    for legacy, prefix in ((False, "vec_"), (True, "v")):
        for name, function in ONE.items():
            yield prefix + name, lambda _, a, f=function, k=legacy: vector(a, f, ("src",), k)
        for name, function in TWO.items():
            yield prefix + name, lambda _, a, f=function, k=legacy: vector(a, f, ("src0", "src1"), k)
        for name in ("add", "mul"):
            yield (
                f"{prefix}{name}s",
                lambda _, a, f=TWO[name], k=legacy: vector(
                    a, lambda x: f(x, stored(a["scalar"], a["dst"].dtype)), ("src",), k
                ),
            )
        yield (
            prefix + "axpy",
            lambda _, a, k=legacy: vector(
                a, multiply_add("axpy", a["dst"].dtype, stored(a["scalar"], a["src"].dtype)), ("src",), k, True
            ),
        )
        yield prefix + "conv", lambda _, a, k=legacy: convert(a, k)
        yield prefix + "sel", lambda machine, a, k=legacy: select(a, k, machine.register)
        for name, function in COMPARE.items():
            yield f"{prefix}cmpv_{name}", lambda _, a, f=function, k=legacy: compare(a, f, k)
    yield "vec_dup", lambda _, a: fill(a, False)
    yield "vector_dup", lambda _, a: fill(a, True)
    for name in ("mla", "madd"):
        yield f"v{name}", lambda _, a, n=name: vector(a, multiply_add(n, a["dst"].dtype), ("src0", "src1"), True, True)
    for name, function in COMPARE.items():
        yield f"vcmp_{name}", lambda machine, a, f=function: machine.compare_to_register(a, f)
    yield "mov_tensor_to_cmpmask", Interpreter.load_register
    yield "mov_cmpmask_to_tensor", Interpreter.store_register
    for name in ("vcadd", "vcmax", "vcmin", "vcgadd", "vcgmax", "vcgmin", "vcpadd"):
        yield name, lambda _, a, n=name: reduce(a, n)
    yield "vec_reduce_add", lambda _, a: reduce_add(a)
    yield "vec_reduce_max", lambda _, a: reduce_extreme(a, 1)
    yield "vec_reduce_min", lambda _, a: reduce_extreme(a, -1)
    yield (
        "vec_trans",
        lambda _, a: transpose(a["dst"], a["src"], a["repeat_times"], a["dst_rep_stride"], a["src_rep_stride"]),
    )
    yield "vtranspose", lambda _, a: transpose(a["dst"], a["src"], 1, 0, 0)
    yield "vnchwconv", lambda _, a: scatter(a)
    yield "vec_trans_scatter", lambda _, a: scatter(a)
    yield "data_move", lambda _, a: move(a)


#: Instructions that the interpreter knows, by name.
INSTRUCTIONS: dict[str, Callable[[Interpreter, dict[str, Any]], None]] = dict(_table())


def block_count(statements: list) -> int:
    """Blocks of the multi-core loop, 1 without one."""
    for statement in statements:
        if isinstance(statement, ir.For):
            if isinstance(statement.block_num, int) and statement.block_num > 1:
                return statement.block_num
            found = block_count(statement.body.statements)
        elif isinstance(statement, ir.Scope):
            found = block_count(statement.body.statements)
        else:
            continue
        if found > 1:
            return found
    return 1


def run(program: ir.Program, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Execute a program block after block.

    Args:
        program: as recorded, with immediate shapes of its GM tensors.
        inputs: array (number for an InputScalar) by name.

    Returns:
        The output tensors by name.
    """
    gm: dict[int, bytearray] = {}

    def allocate(statements: list) -> None:
        for statement in statements:
            if isinstance(statement, ir.Define) and statement.tensor.memory == "GM":
                add(statement.tensor)
            elif isinstance(statement, (ir.For, ir.Scope)):
                allocate(statement.body.statements)

    def add(tensor: ir.TensorInfo) -> None:
        if tensor.uid not in gm:
            gm[tensor.uid] = bytearray(math.prod(tensor.shape) * size_of(tensor.dtype))

    for view in (*program.inputs, *program.outputs):
        if isinstance(view, ir.View):
            add(view.tensor)
    allocate(program.body.statements)
    for view in program.inputs:
        if isinstance(view, ir.View):
            gm[view.tensor.uid][:] = np.ascontiguousarray(inputs[view.tensor.name]).tobytes()
    for block in range(block_count(program.body.statements)):
        try:
            Interpreter(program, gm, inputs, block).body(program.body.statements)
        except Interrupt as interrupt:
            if interrupt.kind is not ir.Return:
                raise
    return {
        view.tensor.name: np.frombuffer(bytes(gm[view.tensor.uid]), view.tensor.dtype).reshape(view.tensor.shape)
        for view in program.outputs
    }
