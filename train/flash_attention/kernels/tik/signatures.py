"""The operators, and the arguments of each kernel for a problem.

Builders, registrations, the operator package and the host side all derive from this one description. It needs no tik
module and builds nothing, so that a process without tik can prepare a call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np

from flash_attention.kernels.tik import layout, varlen
from flash_attention.kernels.tik.backward import data_tables as backward_tables
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.common import score_terms, segments
from flash_attention.kernels.tik.common.work_split import TableOfWork
from flash_attention.kernels.tik.decode import schedule as decode
from flash_attention.kernels.tik.forward import data_tables as forward_tables
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.kernels.tik.layout import nz_shape
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.tik_types import BlockPlan

NZ = "FRACTAL_NZ"
STAND_IN = 32  # bytes of a tensor that stands for a tensor that the problem lacks


@dataclass(frozen=True)
class GlobalTensor:
    """Describe an input or output of a kernel or an operator. An operator knows no shapes and values.

    Attributes:
        format: "FRACTAL_NZ" or "ND".
        added: an output that the kernel adds to; it must be zero at the start.
        shape: shape of the stored array.
        constant: the value, if it follows from the problem and the caller has nothing to say.
        absent: a stand-in for what the problem lacks; the kernel leaves it alone.
    """

    name: str
    dtype: str
    format: str = "ND"
    added: bool = False
    shape: tuple[int, ...] = ()
    constant: np.ndarray | None = None
    absent: bool = False


@dataclass(frozen=True)
class Signature:
    """The arguments of one kernel, in order."""

    inputs: tuple[GlobalTensor, ...]
    outputs: tuple[GlobalTensor, ...]

    @property
    def given(self) -> list[str]:
        """Return names of the inputs that the caller provides."""
        return [tensor.name for tensor in self.inputs if tensor.constant is None]

    def as_entries_get(self) -> dict[str, dict[str, Any]]:
        """Return the tensors by name, as an entry gets them from CANN."""
        return {
            one.name: {"shape": one.shape, "dtype": one.dtype, "format": one.format}
            for one in (*self.inputs, *self.outputs)
        }

    def feed(self, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of all inputs by name, the constants included.

        Raises:
            ValueError, TypeError: an input is missing, unknown, or not of the stored shape and dtype.
        """
        result = {}
        for tensor in self.inputs:
            if tensor.constant is not None:
                result[tensor.name] = tensor.constant
                continue
            if tensor.name not in arrays:
                raise ValueError(f"{tensor.name}: missing, the kernel takes {', '.join(self.given)}")
            array = np.ascontiguousarray(arrays.pop(tensor.name))
            if array.shape != tensor.shape:
                raise ValueError(f"{tensor.name}: got shape {array.shape}, allowed is {tensor.shape} ({tensor.format})")
            if array.dtype != tensor.dtype:
                raise TypeError(f"{tensor.name}: got dtype {array.dtype}, allowed is {tensor.dtype}")
            result[tensor.name] = array
        if arrays:
            raise ValueError(f"{', '.join(arrays)}: not an input, the kernel takes {', '.join(self.given)}")
        return result


@dataclass(frozen=True)
class Operator:
    """An operator type. Every tensor is required: if a problem lacks one, a stand-in takes its place.

    Attributes:
        type: name of the type. Tools of the platform find attention by the letters "flashattention" in it.
        name: of its function and file in the operator package.
        stage: one of STAGES or DECODE_STAGES, which kernel it is.
        inputs, outputs: in the order of the kernel's arguments.
    """

    type: str
    name: str
    stage: str
    inputs: tuple[GlobalTensor, ...]
    outputs: tuple[GlobalTensor, ...]

    def fill(self, signature: Signature) -> Signature:
        """Return the signature with stand-ins for the arguments that it lacks."""
        has = {tensor.name: tensor for tensor in (*signature.inputs, *signature.outputs)}
        return Signature(
            tuple(has.get(one.name) or _stand_in(one, False) for one in self.inputs),
            tuple(has.get(one.name) or _stand_in(one, True) for one in self.outputs),
        )


def _stand_in(argument: GlobalTensor, is_output: bool) -> GlobalTensor:
    shape = nz_shape(1, 1) if argument.format == NZ else (STAND_IN // np.dtype(argument.dtype).itemsize,)
    # Outputs that no kernel writes are cleared, like outputs to which a kernel adds.
    return replace(argument, shape=shape, added=is_output, absent=True)


@dataclass(frozen=True)
class _Nz:
    """A tensor stored in FRACTAL_NZ, by the shape of its matrices."""

    shape: tuple[int, ...]


def _shared(p: KernelProblem) -> dict:
    """Return the tensors that several kernels share, by name: a constant array, a shape, or a shape in FRACTAL_NZ."""
    call = p.call
    masks, biases = math.prod(p.mask_planes), math.prod(p.bias_planes)
    keys, rows = padded(call.seq_k), layout.stored_rows(p)
    result: dict = {}
    for name in layout.TENSORS:
        result[name] = _Nz(layout.placement(p, name).shape)
    result["logsumexp"] = call.batch, call.heads, rows
    # One matrix per plane, or a row per plane if every query has the same.
    if p.mask == "per_score":
        result["mask"] = _Nz((masks, call.seq_q, call.seq_k))
    if p.mask == "per_key":
        result["key_mask"] = masks, keys
    if call.bias == "per_score":
        result["bias"] = _Nz((biases, call.seq_q, call.seq_k))
    if call.bias == "per_key":  # with which keys it hides, see layout.HIDDEN_BY_BIAS
        result["key_bias"] = 2 * biases, keys
    if call.dropout_threshold:
        result["keep"] = layout.keep_shape(p)
    if call.sinks:
        result["sinks"] = call.batch, call.heads, layout.SINK_LANES
    if p.compares:
        result.update(segments.shapes(p))
    if p.sequences:
        result["blocks"] = rows // layout.BLOCK, varlen.BLOCK_ROW.size
    if call.bias == "alibi":
        result.update(slopes=score_terms.slope_table(p), positions=score_terms.key_positions(p))
        result["row_numbers"] = np.arange(128, dtype=np.float32)
    return result


def _tables(problem: KernelProblem, plan: BlockPlan, split: TableOfWork, list_words: int) -> dict:
    """Return work table and tiles. With packed sequences the table is data, and the tiles are a ramp.

    Under a block mask the table is data too, with `list_words` of lists behind it.
    """
    result: dict = {} if not len(split.distances) else {"distances": split.distances}
    if problem.sequences:
        zeros = np.zeros((layout.zero_blocks(problem, plan), 16), np.float16)
        return {**result, "work": split.words.shape, "tiles": np.concatenate([split.tiles, zeros])}
    if problem.listed:
        result["work"] = (split.words.size + list_words,)
    else:
        result["table"] = split.words
    if len(split.tiles):  # and behind them a tile of zeros, see `Core.load_operand`
        zeros = np.zeros((plan.rows * plan.keys // split.tiles[0].size, *split.tiles.shape[1:]), np.float16)
        result["tiles"] = np.concatenate([split.tiles, zeros])
    return result


def _forward(problem: KernelProblem) -> dict:
    choice = forward.choose(problem)
    words = forward_tables.list_words(problem, choice.plan) if problem.listed else 0
    return {**_shared(problem), **_tables(problem, choice.plan, choice.split, words)}


def _grad_rows(problem: KernelProblem) -> dict:
    result = {**_shared(problem), "row_lanes": layout.row_terms_shape(problem)}
    if problem.call.return_lse:
        result["d_logsumexp"] = result["logsumexp"]
    if problem.call.sinks:
        result["d_sink_rows"] = result["logsumexp"]
    return result


def _grad(p: KernelProblem) -> dict:
    call = p.call
    choice = backward.choose(p)
    plan, split = choice.plan, choice.split
    words = backward_tables.list_words(p, plan) if p.listed else 0
    result = {**_shared(p), **_tables(p, plan, split, words), "row_lanes": layout.row_terms_shape(p)}
    result["d_query_sums"] = layout.accumulator_shape(p, plan, split.slots)
    if not len(split.distances):
        result.pop("slopes", None)
    if plan.bias_kind == "per_score":
        result["d_bias"] = result["bias"]
    if plan.bias_kind == "per_key":
        # (16, 16, 16): the right operand that adds a row of the left one to one column of the result.
        result["one_hot"] = np.repeat(np.eye(16, dtype=np.float16)[:, :, None], 16, axis=2)
        result["d_bias_sums"] = call.batch * call.kv_heads, plan.bias_chunks, padded(call.seq_k), 16
    if not split.writes_d_query:
        del result["d_query"]
    return result


def _grad_finish(p: KernelProblem) -> dict:
    choice = backward.choose(p)
    return {**_shared(p), "d_query_sums": layout.accumulator_shape(p, choice.plan, choice.split.slots)}


def _decode(p: KernelProblem) -> dict:
    """Return the tensors of both decoding kernels: per slot and group of 16 rows, sums by column and statistics."""
    call = p.call
    pages, choice = p.pages, decode.choose(p)
    plan, slots, groups = choice.plan, choice.split.slots, choice.plan.row_groups
    cache, blocks = (call.batch, call.kv_heads, call.seq_k), call.kv_heads * plan.row_blocks
    result: dict = {}
    if pages is not None:
        cache = (*pages, call.kv_heads)
        # Padded to whole blocks of memory.
        result.update(
            block_tables=(padded(call.batch * (call.seq_k // pages[1]), 8),), context_lens=(padded(call.batch, 8),)
        )
    result.update(
        query=(call.batch, call.heads, call.seq_q, call.head_dim),
        key=(*cache, call.head_dim),
        value=(*cache, call.value_dim),
    )
    result.update(limits=choice.split.limits)
    result.update(sums=(slots, groups, plan.value_dim, 16), statistics=(slots, groups, 2, 64))
    result.update(
        output=(call.batch, call.heads, call.seq_q, call.value_dim), logsumexp=(call.batch * blocks, plan.rows)
    )
    if call.rules.alibi:
        result["row_slopes"] = np.array(p.slopes, np.float32)[choice.split.slope_rows]
    if call.sinks:
        result["row_sinks"] = blocks, groups, 64
    return result


# Formats of stored tensors; tensors of the decoding kernels are ND.
_KINDS = {
    ("float16", NZ): "query key value output d_output scaled_d_output d_key d_value d_query mask bias",
    ("float16", "ND"): "key_mask key_bias segment_queries segment_keys row_lanes tiles positions distances one_hot",
    ("float32", NZ): "d_bias",
    ("float32", "ND"): "logsumexp d_logsumexp sinks d_sink_rows slopes row_numbers d_query_sums d_bias_sums limits "
    "row_slopes sums statistics row_sinks",
    ("int32", "ND"): "blocks work table block_tables context_lens",
    ("uint8", "ND"): "keep",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# Inputs that follow from the problem; they come last.
CONSTANTS = ["table", "tiles", "one_hot", "slopes", "positions", "row_numbers", "distances", "limits", "row_slopes"]
_ADDED = ["d_query_sums", "d_bias"]
# For each kernel: the function that describes its tensors for a problem, its inputs, and its outputs. These are all it
# may have; a problem has some.
_STAGES: dict[str, tuple[Callable[[KernelProblem], dict], str, str]] = {
    "forward": (
        _forward,
        "query key value mask key_mask bias key_bias keep sinks segment_queries segment_keys blocks work table tiles "
        "slopes positions row_numbers distances",
        "output logsumexp",
    ),
    "grad_rows": (
        _grad_rows,
        "output d_output logsumexp d_logsumexp sinks blocks slopes row_numbers",
        "row_lanes scaled_d_output d_sink_rows",
    ),
    "grad": (
        _grad,
        "query key value scaled_d_output row_lanes mask key_mask bias key_bias keep segment_queries segment_keys work "
        "table tiles one_hot positions distances slopes",
        "d_key d_value d_query_sums d_bias d_bias_sums d_query",
    ),
    "grad_finish": (_grad_finish, "d_query_sums blocks", "d_query"),
    "decode": (_decode, "query key value block_tables context_lens limits row_slopes", "sums statistics"),
    "decode_merge": (_decode, "sums statistics context_lens row_sinks", "output logsumexp"),
}
DECODE_STAGES = ("decode", "decode_merge")  # few queries against many keys, in the order in which the kernels run
STAGES = tuple(name for name in _STAGES if name not in DECODE_STAGES)  # forward, pre-pass, main backward, last pass
# A kernel has types with and without these arguments, from few to many. Stand-ins cost time: in FRACTAL_NZ they are
# brought to that format in every call. For an output a launch clears them, unless another output is cleared too.
_EXTRAS: dict[str, tuple[tuple[str, ...], ...]] = {
    "forward": ((), ("mask",), ("mask", "bias")),
    "grad_rows": ((), ("d_sink_rows", "sinks")),
    "grad": ((), ("mask",), ("mask", "d_bias", "bias")),
}


def _operators(stage: str) -> list[Operator]:
    def argument(name: str, added: bool) -> GlobalTensor:
        dtype, stored = _KIND_OF[name]
        return GlobalTensor(name, dtype, "ND" if stage in DECODE_STAGES else stored, added)

    _, inputs, outputs = _STAGES[stage]
    result, extras = [], _EXTRAS.get(stage, ((),))
    for extra in extras:
        lacks = set(extras[-1]) - set(extra)
        name = "_".join(("flash_attention", stage, *extra[-1:]))
        given = tuple(argument(one, False) for one in inputs.split() if one not in lacks)
        made = tuple(argument(one, one in _ADDED) for one in outputs.split() if one not in lacks)
        result.append(Operator(name.title().replace("_", ""), name, stage, given, made))
    return result


OPERATORS = tuple(operator for stage in _STAGES for operator in _operators(stage))


def arguments(stage: str, problem: KernelProblem) -> tuple[Operator, Signature]:
    """Return the operator of a stage for a problem, and the arguments of its kernel. Needs no tik module.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    has = _STAGES[stage][0](problem)
    for operator in (one for one in OPERATORS if one.stage == stage):
        sides = operator.inputs, operator.outputs
        inputs, outputs = (tuple(_tensor(one, has[one.name]) for one in side if one.name in has) for side in sides)
        missing = {name for extra in _EXTRAS.get(stage, ()) for name in extra} & set(has)
        if missing <= {tensor.name for tensor in (*inputs, *outputs)}:
            break
    return operator, Signature(inputs, outputs)


def _tensor(argument: GlobalTensor, stored: Any) -> GlobalTensor:
    """Return the tensor that is stored: by a constant array, a shape, or a shape in FRACTAL_NZ."""
    constant = stored if isinstance(stored, np.ndarray) else None
    assert (argument.format == NZ) == isinstance(stored, _Nz), argument.name
    assert (constant is not None) == (argument.name in CONSTANTS), argument.name
    assert constant is None or constant.dtype == argument.dtype, argument.name
    shape = nz_shape(*stored.shape) if isinstance(stored, _Nz) else stored if constant is None else constant.shape
    return replace(argument, shape=shape, constant=constant)
