"""The compiled kernel: where it is, how it gets a call, and calls on NumPy arrays without MindSpore."""

from __future__ import annotations

import ctypes
import functools
import itertools
from pathlib import Path

import numpy as np

from flash_attention.backends.cpu.build import LIBRARY
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.optional import OPTIONAL

ISA_VARIABLE = "FLASH_ATTENTION_CPU_ISA"
DOT_PRODUCT_ISA = "avx512_bf16"  # multiplies bfloat16 by an instruction of its own
TILES_ISA = "amx"  # and by tiles
TILE_PARTS = {"bfloat16": 1, "float16": 2}  # bfloat16 numbers whose sum a number is there
BUILD_COMMAND = "python -m flash_attention.backends.cpu.build"

_VERSION = 10  # as in csrc/arguments.h
# As in csrc/custom.cpp.
# The optional inputs of the kernel in its order. Given slopes of ALiBi come in the place of the bias.
INPUTS = ("mask", "bias", "keep_bits", "seed", "sinks", "prefix", "segment_ids", "kv_segment_ids", "block_mask")
_DROPOUT_NONE, _DROPOUT_PHILOX, _DROPOUT_GIVEN = range(3)
_BIAS_KINDS = {"none": 0, "per_key": 1, "per_score": 1, "alibi": 2}
_GIVEN_SLOPES = 3
_BOTTOM_RIGHT = -1
_LAYOUTS = ("BNSD", "BSND", "BSH", "SBH")
_VARLEN_LAYOUTS = (None, None, None, None, "BSND", "BSH")
# No block window reaches further than this; it keeps products of blocks and tokens inside 64 bits.
_MOST_BLOCKS = 1 << 31
# bfloat16 travels as its bits; nothing else here is uint16.
_NUMPY_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class KernelError(RuntimeError):
    """The kernel refused a call; the message holds its reason."""


class Library:
    """A loaded kernel.

    Raises:
        FileNotFoundError: it was not built; with the command that builds it.
        OSError: it does not load here.
    """

    def __init__(self, path: Path):
        if not path.exists():
            raise FileNotFoundError(f"the native kernel {path.name} is not built; build it with: {BUILD_COMMAND}")
        self.handle = ctypes.CDLL(str(path))
        for name in ("message", "isa", "bfloat16_isa", "tiles_missing"):
            getattr(self.handle, f"flash_attention_{name}").restype = ctypes.c_char_p
        self.handle.flash_attention_bfloat16_rate.restype = ctypes.c_double

    def instruction_sets(self) -> tuple[str, ...]:
        """Return the instruction sets that can run here, best first. The variable FLASH_ATTENTION_CPU_ISA takes one of
        them.

        TILES_ISA is among them if processor and Linux have tiles, whether or not this process may use them. It
        calculates the dtypes in TILE_PARTS, and only more than 32 queries and keys. DOT_PRODUCT_ISA calculates
        bfloat16. Everything else is then as with "avx512".
        """
        names = map(self.handle.flash_attention_isa, itertools.count())
        return tuple(name.decode() for name in itertools.takewhile(lambda name: name is not None, names))

    def bfloat16_isa(self) -> str | None:
        """Return the instruction set of bfloat16 calls, None if the forced set cannot run.

        Asks Linux for the permission to use tiles, if it has not been asked, as the first such call does.
        """
        name = self.handle.flash_attention_bfloat16_isa()
        return None if name is None else name.decode()

    def tiles_missing(self) -> str | None:
        """Return why this process cannot use tiles, or None. Asks Linux like `bfloat16_isa`."""
        reason = self.handle.flash_attention_tiles_missing()
        return None if reason is None else reason.decode()

    def bfloat16_rate(self) -> float | None:
        """Return the speed of the processor's bfloat16 dot product relative to float32. It is the ratio of
        multiplications and additions in the same time, measured once in a process; None if there is no such
        instruction.

        Below 1, instruction sets without the dot product come first: they calculate bfloat16 in float32.
        """
        return self.handle.flash_attention_bfloat16_rate() or None

    def assume_bfloat16_rate(self, rate: float | None) -> None:
        """Use a rate in place of the measured rate, for tests; None ends that. Without the instruction nothing
        changes.
        """
        self.handle.flash_attention_assume_bfloat16_rate(ctypes.c_double(rate or 0.0))

    def multiply_adds(self, dtype: str, operations: int) -> None:
        """Run so many operations in registers, which takes at least their time. They are products of `dtype`.

        All threads share them, in float32 arithmetic if the processor has none of its own for `dtype`.
        """
        status = self.handle.flash_attention_multiply_adds(dtype.encode(), ctypes.c_int64(operations))
        _check(self, "flash_attention_multiply_adds", status)

    def message(self, status: int) -> str:
        """Return the meaning of a return code."""
        return self.handle.flash_attention_message(status).decode()

    def call(self, function: str, inputs: list, outputs: list) -> int:
        """Call an entry point with contiguous arrays and return its code. An absent input is None."""
        tensors = [*inputs, *outputs]
        for array in tensors:
            if array is not None and not array.flags.c_contiguous:
                raise ValueError(f"arrays: got strides {array.strides} for shape {array.shape}, allowed is C order")
        count = len(tensors)
        present = [np.empty((), np.uint8) if array is None else array for array in tensors]
        data = (ctypes.c_void_p * count)(*(None if array is None else array.ctypes.data for array in tensors))
        ranks = (ctypes.c_int * count)(*(array.ndim for array in present))
        shapes = [(ctypes.c_int64 * max(1, array.ndim))(*array.shape) for array in present]
        pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, shapes))
        dtypes = (ctypes.c_char_p * count)(*(dtype_name(array).encode() for array in tensors))
        return getattr(self.handle, function)(count, data, ranks, pointers, dtypes, None, None)


@functools.cache
def load() -> Library:
    """Return the kernel of this installation; raise errors as `Library` does."""
    return Library(LIBRARY)


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that the installed kernel can run here, best first."""
    return load().instruction_sets()


def dtype_name(array: np.ndarray | None) -> str:
    """Return MindSpore's name for the dtype of an array."""
    if array is None:
        return "none"
    return "bfloat16" if array.dtype == np.uint16 else array.dtype.name


def configuration(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel's int64 rules, and float32 rates with a slope for each head."""
    if call.dropout_threshold == 0:
        dropout = _DROPOUT_NONE
    else:
        dropout = _DROPOUT_GIVEN if call.keep_bits else _DROPOUT_PHILOX
    rules = [
        _VERSION,
        int(call.rules.causal),
        _BOTTOM_RIGHT if call.rules.causal_alignment == "bottom_right" else call.rules.first_query or 0,
        call.rules.window_left,
        call.rules.window_right,
        min(call.rules.prev_blocks, _MOST_BLOCKS),
        min(call.rules.next_blocks, _MOST_BLOCKS),
        call.rules.tile,
        dropout,
        call.dropout_threshold,
        call.batch_offset,
        call.head_offset,
        int(call.mask_shape is not None),
        _BIAS_KINDS[call.bias] if call.slopes_shape is None else _GIVEN_SLOPES,
        (_VARLEN_LAYOUTS if call.kind == "varlen" else _LAYOUTS).index(call.layout),
        call.head_dim,
        call.value_dim,
        int(call.sinks),
        int(call.prefix),
        int(call.segments),
        call.block_mask_tile,
    ]
    scale = np.float32(call.scale)
    slopes = alibi_slopes(call) if call.bias == "alibi" else [0.0] * call.heads
    rates = [scale, np.float32(call.scale - float(scale)), call.dropout_scale, call.rules.softcap, *slopes]
    return np.array(rules, np.int64), np.array(rates, np.float32)


def paged_configuration(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Return the rules and rates of a paged call. The caller's slopes follow the rates."""
    slopes_kind = int(call.bias == "alibi") if call.slopes_shape is None else len(call.slopes_shape)
    most = -1 if call.paged.max_length is None else call.paged.max_length
    rules = [_VERSION, int(call.rules.causal), call.rules.window_left, call.rules.window_right]
    rules += [slopes_kind, int(call.sinks), most, int(call.paged.left_padding)]
    scale = np.float32(call.scale)
    rates = [scale, np.float32(call.scale - float(scale)), call.rules.softcap]
    if call.slopes_shape is None:
        rates += alibi_slopes(call) if call.bias == "alibi" else [0.0] * call.heads
    return np.array(rules, np.int64), np.array(rates, np.float32)


def numbers(*values: int) -> np.ndarray:
    """Return the int64 rules of a call other than attention."""
    return np.array([_VERSION, *values], np.int64)


def places(call: Call) -> tuple[int | None, ...]:
    """Return each input's place in the call's inputs, None for an input it lacks."""
    bias = "bias" if call.slopes_shape is None else "alibi_slopes"
    return tuple(call.place(bias if name == "bias" else name) for name in INPUTS)


def gradients(call: Call) -> tuple[str, ...]:
    """Return the optional inputs that get a gradient, which follow query, key and value."""
    return tuple(one.name for one in OPTIONAL if one.has(call) and one.gradient(call))


def forward(
    call: Call, query, key, value, *, library: Library | None = None, out: tuple | None = None, **inputs
) -> tuple[np.ndarray, np.ndarray]:
    """Run the forward pass on contiguous NumPy arrays in call.layout, with `Backend.build`'s meanings.

    bfloat16 tensors come and go as their bits in uint16.

    Args:
        library: the kernel to call. Default: the installed one.
        out: arrays to write (output, logsumexp) into. Default: new ones.
        inputs: those in INPUTS, by name.

    Raises:
        KernelError: the kernel refused.
    """
    if out is None:
        output = np.empty(call.laid_out(call.shape_output()), _NUMPY_DTYPES[call.dtype])
        rows = call.shape_lse()[1:] if call.kind == "varlen" else call.shape_lse()
        out = output, np.empty(rows, np.float32)
    function, rules = _entry(call, "forward")
    _run(library, function, [query, key, value, *_optional(**inputs), *rules], out)
    return out


def backward(
    call: Call,
    query,
    key,
    value,
    output,
    logsumexp,
    d_output,
    d_logsumexp=None,
    *,
    library: Library | None = None,
    out: tuple | None = None,
    **inputs,
) -> tuple:
    """Run the backward pass, otherwise like `forward`. Returns (d_query, d_key, d_value), and behind them what
    `gradients` names.
    """
    more = gradients(call)
    if out is None:
        dtype = _NUMPY_DTYPES[call.dtype]
        out = tuple(np.empty(array.shape, dtype) for array in (query, key, value))
        out += tuple(np.empty_like(inputs[name]) for name in more)
    function, rules = _entry(call, "backward")
    given = [query, key, value, *_optional(**inputs), output, logsumexp, d_output, d_logsumexp, *rules]
    _run(library, "_".join((function, *more)), given, out)
    return out


def _optional(**inputs) -> list:
    unknown = set(inputs) - set(INPUTS)
    if unknown:
        raise TypeError(f"{unknown.pop()}: no input of the kernel, allowed are {', '.join(INPUTS)}")
    return [inputs.get(name) for name in INPUTS]


def _entry(call: Call, direction: str) -> tuple[str, list]:
    """Return the name of the entry point, and what follows a call's tensors: ends of packed sequences, and rules."""
    name = f"flash_attention_{direction}"
    if call.kind != "varlen":
        return name, [*configuration(call)]
    ends = (np.array(ends, np.int64) for ends in (call.varlen.ends_q, call.varlen.ends_k))
    return f"{name}_packed", [*ends, *configuration(call)]


def _run(library: Library | None, function: str, inputs: list, outputs: tuple) -> None:
    library = library or load()
    _check(library, function, library.call(function, inputs, list(outputs)))


def _check(library: Library, function: str, status: int) -> None:
    if status:
        raise KernelError(f"{function}: {library.message(status)} (return code {status})")
