"""Random legal programs."""

import contextlib
from typing import Any

import numpy as np
from tikemu import tik

BLOCKS = 64  # of 32 bytes in every on-chip tensor
DTYPES = ("float16", "float32", "int32", "int16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TWO = {
    "float16": ("add", "sub", "mul", "max", "min", "div"),
    "float32": ("add", "sub", "mul", "max", "min", "div"),
    "int32": ("add", "sub", "mul", "max", "min"),
    "int16": ("and", "or"),
}
ONE = {"float16": ("abs", "relu", "sqrt"), "float32": ("abs", "sqrt"), "int32": (), "int16": ("not",)}
#: dst, src, round modes, blocks per repeat of dst and src
CONVERSIONS = (
    ("float32", "float16", ("", "none"), 8, 4),
    ("float16", "float32", ("", "none"), 4, 8),
    ("int32", "float32", ("round", "floor", "ceil", "to-zero", "away-zero"), 8, 8),
    ("float32", "int32", ("",), 8, 8),
    ("int32", "float16", ("round", "floor", "ceil"), 8, 4),
)
LANES = {"float16": 128, "int16": 128, "float32": 64, "int32": 64}


def elements(dtype):
    """Return the number of elements of an on-chip tensor."""
    return BLOCKS * 32 // np.dtype(dtype).itemsize


class Generator:
    """Record a random legal program: statements, and the loops, branches and scopes around them.

    The same seed gives the same program and the same feeds. Every random choice comes from one stream, so the order of
    the choices is part of that. Tensors are ``BLOCKS`` blocks long. Offsets, repeats and strides are drawn so that all
    accesses stay inside; run-time offsets are a loop variable or Scalar modulo what is left.

    Attributes:
        inputs, outputs: global tensors by dtype, ``blocks`` times as long as an on-chip tensor.
        n: an input scalar from 0 to 3.
        tensors, floats: of the Unified Buffer, and Scalars, each with its dtype.
        integers: run-time integers that are not negative.
        block: number of the core.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tik = tik.Tik()
        self.blocks = int(self.rng.choice([1, 1, 2, 3]))
        self.inputs = {dtype: self._global(dtype, f"in_{dtype}") for dtype in DTYPES}
        self.outputs = {dtype: self._global(dtype, f"out_{dtype}") for dtype in DTYPES}
        self.n = self.tik.InputScalar("int32", "n")
        self.tensors: list[tuple[str, Any]] = []
        self.integers: list[Any] = []
        self.floats: list[tuple[str, Any]] = []
        self.names = 0
        self.block: Any = 0
        self.depth = 0
        self.budget = 60
        with self.tik.for_range(0, self.blocks, block_num=self.blocks) as self.block:
            self._body()
        self.tik.BuildCCE("fuzz", [*self.inputs.values(), self.n], [*self.outputs.values()])

    def chance(self, share):
        """Return True in the given share of all calls."""
        return bool(self.rng.random() < share)

    def pick(self, options):
        """Return an element of a sequence."""
        return options[int(self.rng.integers(len(options)))]

    def upto(self, low, high):
        """Return an integer from ``low`` to ``high``."""
        return int(self.rng.integers(low, high + 1))

    def _global(self, dtype, name):
        """Return a tensor in global memory."""
        return self.tik.Tensor(dtype, (self.blocks * elements(dtype),), tik.scope_gm, name)

    def name(self, prefix):
        """Return a name that nothing else has."""
        self.names += 1
        return f"{prefix}{self.names}"

    @contextlib.contextmanager
    def inside(self):
        """Forget at the end what is defined inside."""
        known = self.tensors, self.integers, self.floats
        lengths = [len(entries) for entries in known]
        yield
        for entries, length in zip(known, lengths):
            del entries[length:]

    def integer(self):
        """Return a run-time integer from 0 to 30, or a number."""
        choice = self.upto(0, 4)
        if choice == 4:
            return self.tensor("int32")[self.upto(0, 60)] & 15
        if choice == 0 or not self.integers:
            return self.upto(0, 30)
        value = self.pick(self.integers)
        return value % 31 if choice == 1 else (value * self.upto(1, 3) + self.upto(0, 5)) % 31

    def offset(self, dtype, room):
        """Return an offset in elements of at most ``room`` blocks."""
        per_block = 32 // np.dtype(dtype).itemsize
        value = self.integer()
        if isinstance(value, int):
            return min(value, room) * per_block
        return (value % (room + 1)) * per_block

    def tensor(self, dtype):
        """Return a tensor of ``dtype``."""
        return self.pick([tensor for kind, tensor in self.tensors if kind == dtype])

    def operand(self, dtype, span, other_than=None):
        """Return a part of a tensor followed by at least ``span`` blocks. Return None if there is none."""
        found = [tensor for kind, tensor in self.tensors if kind == dtype and tensor is not other_than]
        if not found:
            return None
        return self.pick(found)[self.offset(dtype, BLOCKS - span) :]

    def whole(self, part):
        """Return the tensor that a part belongs to."""
        return next(tensor for _, tensor in self.tensors if tensor.name == part.name)

    # ------------------------------------------------------------------------------------------- Scalars
    def element(self):
        """Read a Scalar from a tensor, or write it into one. Integers may be parts of other elements."""
        dtype = self.pick(DTYPES)
        tensor = self.tensor(dtype)
        if self.chance(0.5):
            dtype = self.pick(INTEGERS)
            tensor = tensor.reinterpret_cast_to(dtype)
        index = self.integer()
        if self.chance(0.5):
            value = self.tik.Scalar(dtype, self.name("s"))
            value.set_as(tensor[index])
            if dtype.startswith("float"):
                self.floats.append((dtype, value))
            else:
                wide = self.tik.Scalar("int32", self.name("w"))
                wide.set_as(value & 255)
                self.integers.append(wide)
        else:
            value = self.tik.Scalar(dtype, self.name("s"), init_value=self.upto(-50, 50))
            tensor[index].set_as(value)

    def arithmetic(self):
        """Make a new integer, not negative, from two."""
        value = self.tik.Scalar("int32", self.name("i"))
        one, other = self.integer(), self.integer()
        operator = self.pick(("+", "*", "/", "%", "&", "|", ">>"))
        if operator in "/%":
            other = other + 1
        elif operator == ">>":
            other = self.upto(0, 4)
        value.set_as(eval(f"one {'//' if operator == '/' else operator} other") if operator != "+" else one + other)
        with self.tik.if_scope(value > 1000):
            value.set_as(value % 1000)
        self.integers.append(value)

    def array(self):
        """Store into a ScalarArray at a run-time index, and make an integer of an element."""
        array = self.tik.ScalarArray("int32", 3, self.name("a"), [self.upto(0, 9) for _ in range(3)])
        array[self.integer() % 3].set_as(self.integer())
        value = self.tik.Scalar("int32", self.name("i"))
        value.set_as(array[self.integer() % 3])
        self.integers.append(value)

    def signed(self):
        """Compute with values of any sign, and store the result."""
        tensor = self.tensor("int32")
        value = self.tik.Scalar("int32", self.name("v"))
        value.set_as(tensor[self.integer()])
        for _ in range(3):
            operator, number = self.pick(("+", "-", "*", "//", "%", "&", "|", "<<", ">>")), self.upto(1, 9)
            if operator in ("//", "%", "*") and self.chance(0.5):
                number = -number
            value.set_as(eval(f"value {operator} number"))
        tensor[self.integer()].set_as(value)

    # ------------------------------------------------------------------------------------------- definitions and moves
    def define(self, dtype=None):
        """Fill a tensor of the Unified Buffer from global memory or with zeros."""
        dtype = dtype or self.pick(DTYPES)
        count = elements(dtype)
        tensor = self.tik.Tensor(dtype, (count,), tik.scope_ubuf, self.name("t"))
        self.tensors.append((dtype, tensor))
        if self.chance(0.7):
            source = self.inputs[dtype][self.block * count if self.chance(0.7) else 0 :]
            self.tik.data_move(tensor, source, 0, 1, BLOCKS, 0, 0)
        else:
            lanes = 256 // np.dtype(dtype).itemsize
            self.tik.vec_dup(lanes, tensor, 0, BLOCKS // 8, 8)

    def move(self):
        """Move bursts into a tensor, out of it, or to another one."""
        dtype = self.pick(DTYPES)
        bursts, length, gaps = self.upto(1, 3), self.upto(1, 6), [self.upto(0, 4), self.upto(0, 4)]
        spans = [bursts * length + (bursts - 1) * gap for gap in gaps]
        held = self.operand(dtype, max(spans))
        start = self.block * elements(dtype) + self.offset(dtype, BLOCKS - max(spans))
        kind = self.upto(0, 2)
        if kind == 0:
            self.tik.data_move(held, self.inputs[dtype][start:], 0, bursts, length, *gaps)
        elif kind == 1:
            self.tik.data_move(self.outputs[dtype][start:], held, 0, bursts, length, *gaps)
        else:
            other = self.operand(dtype, max(spans), self.whole(held))
            self.tik.data_move(other, held, 0, bursts, length, *gaps)

    def through_l1(self):
        """Move global memory to L1, and a part of that to a tensor."""
        dtype = self.pick(DTYPES)
        count = elements(dtype)
        buffer = self.tik.Tensor(dtype, (count,), tik.scope_cbuf, self.name("l1_"))
        self.tik.data_move(buffer, self.inputs[dtype][self.block * count :], 0, 1, BLOCKS, 0, 0)
        length = self.upto(1, 20)
        part = buffer[self.offset(dtype, BLOCKS - length) :]
        self.tik.data_move(self.operand(dtype, length), part, 0, 1, length, 0, 0)

    def finish(self):
        """Store one tensor of every dtype."""
        for dtype in DTYPES:
            tensor = self.tensor(dtype)
            self.tik.data_move(self.outputs[dtype][self.block * elements(dtype)], tensor, 0, 1, BLOCKS, 0, 0)

    # ------------------------------------------------------------------------------------------- vector instructions
    def mask(self, lanes):
        """Set the mask: bits, or a count that may be a run-time value."""
        choice = self.upto(0, 4)
        if choice == 4 and self.integers:
            return self.pick(self.integers) % lanes + 1
        if choice == 0:
            return [int(self.rng.integers(1, 2**63)) if lanes == 128 else 0, int(self.rng.integers(1, 2**63))]
        return lanes if choice == 1 else self.upto(1, lanes)

    def strided(self, count, block_stride=1):
        """Repeat strides of ``count`` operands, repeats, and the blocks that each operand spans."""
        repeats = self.upto(1, 5)
        strides = [self.pick([8, 8, 8, 0, 1, 4, 9]) for _ in range(count)]
        if repeats > 1 and strides[0] < 8 * block_stride:
            strides[0] = 8 * block_stride  # a destination that repeats do not overwrite
        spans = [(repeats - 1) * stride + 7 * block_stride + 1 for stride in strides]
        return strides, repeats, spans

    def repeats(self, repeats):
        """Return the count as a number, or a run-time value of at most that."""
        if self.chance(0.8) or not self.integers:
            return repeats
        return self.pick(self.integers) % (repeats + 1)

    def two_source(self):
        dtype = self.pick(DTYPES)
        strides, repeats, spans = self.strided(3)
        dst = self.operand(dtype, spans[0])
        sources = [self.operand(dtype, span, self.whole(dst)) for span in spans[1:]]
        if None not in sources:
            getattr(self.tik, f"vec_{self.pick(TWO[dtype][:5])}")(
                self.mask(LANES[dtype]), dst, *sources, self.repeats(repeats), *strides
            )

    def legacy(self):
        dtype = self.pick(DTYPES)
        block_stride = self.pick([1, 1, 2])
        strides, repeats, spans = self.strided(3, block_stride)
        dst = self.operand(dtype, min(BLOCKS, spans[0]))
        sources = [self.operand(dtype, min(BLOCKS, span), self.whole(dst)) for span in spans[1:]]
        if None not in sources and max(spans) <= BLOCKS:
            getattr(self.tik, f"v{self.pick(TWO[dtype])}")(
                self.mask(LANES[dtype]), dst, *sources, repeats, *[block_stride] * 3, *strides
            )

    def with_scalar(self):
        dtype = self.pick(("float16", "float32"))
        strides, repeats, spans = self.strided(2)
        dst = self.operand(dtype, spans[0])
        in_place = self.chance(0.5)
        src = dst if in_place else self.operand(dtype, spans[1], self.whole(dst))
        scalars = [value for kind, value in self.floats if kind == dtype]
        scalar = self.pick(scalars) if scalars and self.chance(0.5) else float(self.rng.standard_normal())
        name = self.pick(("vec_adds", "vec_muls", "vec_axpy") if not in_place else ("vec_adds", "vec_muls"))
        getattr(self.tik, name)(
            self.mask(LANES[dtype]),
            dst,
            src,
            scalar,
            self.repeats(repeats),
            strides[0],
            strides[0] if in_place else strides[1],
        )

    def one_source(self):
        dtype = self.pick(DTYPES)
        if ONE[dtype]:
            strides, repeats, spans = self.strided(2)
            dst = self.operand(dtype, spans[0])
            getattr(self.tik, f"vec_{self.pick(ONE[dtype])}")(
                self.mask(LANES[dtype]), dst, self.operand(dtype, spans[1], self.whole(dst)), repeats, *strides
            )

    def convert(self):
        to, source, modes, to_blocks, source_blocks = self.pick(CONVERSIONS)
        repeats = self.upto(1, 5)
        self.tik.vec_conv(
            self.mask(64),
            self.pick(modes),
            self.operand(to, repeats * to_blocks),
            self.operand(source, repeats * source_blocks),
            repeats,
            to_blocks,
            source_blocks,
        )

    def fill(self):
        dtype = self.pick(DTYPES)
        repeats = self.upto(1, 5)
        value = self.upto(-9, 9)
        self.tik.vec_dup(self.mask(LANES[dtype]), self.operand(dtype, 8 * repeats), value, self.repeats(repeats), 8)

    def reduce(self):
        dtype = self.pick(("float16", "float32"))
        names = ("vcadd", "vcmax", "vcmin", "vcgmax", "vcgadd") if dtype == "float16" else ("vcadd",)
        repeats = self.upto(1, 4)
        dst = self.operand(dtype, 8)
        src = self.operand(dtype, 8 * repeats, self.whole(dst))
        getattr(self.tik, self.pick(names))(self.mask(LANES[dtype]), dst, src, repeats, 1, 1, 8)

    def compare(self):
        bits = self.operand("int16", 2).reinterpret_cast_to("uint16")
        dst = self.operand("float16", 8)
        one, other = (self.operand("float16", 8, self.whole(dst)) for _ in range(2))
        self.tik.vec_cmpv_lt(bits, one, other, 1, 8, 8)
        self.tik.vec_sel(128, 0, dst, bits, dst, one, 1, 8, 8, 8)

    def transpose(self):
        dst = self.operand("float16", 16)
        self.tik.vec_trans(dst, self.operand("float16", 16, self.whole(dst)), 1, 1, 1)

    # ------------------------------------------------------------------------------------------- the program
    def _body(self):
        if self.depth == 0:
            for dtype in DTYPES:
                for _ in range(2):
                    self.define(dtype)
        for _ in range(self.upto(12, 20) if self.depth == 0 else self.upto(3, 8)):
            self.budget -= 1
            if self.budget > 0:
                self._statement()
        if self.depth == 0:
            self.finish()

    def _statement(self):
        kinds = [
            *(*[self.two_source] * 4, *[self.legacy] * 2, *[self.with_scalar] * 2, self.one_source, self.convert),
            *(self.fill, self.reduce, self.move, self.move, self.element, self.arithmetic, self.signed, self.compare),
            *(self.array, *[self.element] * 3),
            *(self.transpose, self.through_l1),
        ]
        if self.depth < 3:
            kinds += [*[self._loop] * 3, *[self._branch] * 2, self._scope]
        self.pick(kinds)()

    def _nested(self):
        self.depth += 1
        with self.inside():
            self._body()
        self.depth -= 1

    def _loop(self):
        begin, count = self.upto(0, 2), self.upto(1, 4)
        end = self.n + begin if self.chance(0.3) else begin + count
        with self.tik.for_range(begin, end, thread_num=self.pick([1, 1, 2, 3])) as i, self.inside():
            self.integers.append(i)
            if self.chance(0.5):
                self.define()
            self._nested()
            if self.chance(0.3):
                with self.tik.if_scope(i == self.upto(0, 4)):
                    self.pick((self.tik.tik_break, self.tik.tik_continue))()
            self.two_source()

    def _branch(self):
        value, bound = self.integer(), self.upto(0, 20)
        condition = lambda: value > bound  # noqa: E731
        if not isinstance(value, int):
            both, one = lambda: tik.all(value > bound, self.n > 0), lambda: tik.any(value < bound, self.n == 2)
            condition = self.pick((condition, both, one, lambda: tik.negate(value <= bound), lambda: value))
        with self.tik.if_scope(condition()):
            self._nested()
        if self.chance(0.4):
            with self.tik.elif_scope(value == bound):
                self._nested()
        if self.chance(0.6):
            with self.tik.else_scope():
                self._nested()

    def _scope(self):
        with self.tik.new_stmt_scope(), self.inside():
            self.define()
            self._nested()

    def feeds(self):
        """Return the arrays for the inputs, and a number for ``n``."""
        feeds = {"n": self.upto(0, 3)}
        for dtype, tensor in self.inputs.items():
            count = int(np.prod(tensor.shape))
            if dtype.startswith("float"):
                feeds[tensor.name] = (self.rng.standard_normal(count) * self.pick([1, 30])).astype(dtype)
            else:
                feeds[tensor.name] = self.rng.integers(-99, 99, count, dtype)
        return feeds
