"""What every kernel takes and gives: its arguments in order, with name, dtype, format, shape, presence and constants.

The one description that builders, registrations, the operator package, and the host side derive from. It needs no tik
module and builds nothing, so that a process which has none can prepare a call.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from flash_attention.kernels.tik import layout, packed
from flash_attention.kernels.tik.arguments import GlobalTensor, Signature
from flash_attention.kernels.tik.backward import work as backward_work
from flash_attention.kernels.tik.backward.work import BackwardChoice
from flash_attention.kernels.tik.common import score_terms
from flash_attention.kernels.tik.common.work_split import TableOfWork
from flash_attention.kernels.tik.decode import work as decode_work
from flash_attention.kernels.tik.decode.work import DecodeChoice
from flash_attention.kernels.tik.forward import work as forward_work
from flash_attention.kernels.tik.layout import nz_shape
from flash_attention.kernels.tik.plan import BlockPlan
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.request import Request

NZ = "FRACTAL_NZ"


@dataclass(frozen=True)
class Argument:
    """A tensor of an operator.

    Attributes:
        format: "FRACTAL_NZ" or "ND".
        constant: an input that follows from the problem; constants come last.
        added: see GlobalTensor.
    """

    name: str
    dtype: str
    format: str = "ND"
    constant: bool = False
    added: bool = False


@dataclass(frozen=True)
class Operator:
    """An operator type. It has neither optional inputs nor optional outputs: every set of arguments has its own type.

    Attributes:
        type: name of the type; `name` is that of its Python function and file.
        stage: one of STAGES, which kernel it is.
        inputs, outputs: in the order of the kernel's arguments.
    """

    type: str
    name: str
    stage: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


@dataclass(frozen=True)
class _Nz:
    """A tensor stored in FRACTAL_NZ, by the shape of its matrices."""

    shape: tuple[int, ...]


def _tensor(argument: Argument, stored: Any) -> GlobalTensor:
    """The tensor that is stored: by a constant array, a shape, or a shape in FRACTAL_NZ."""
    constant = stored if isinstance(stored, np.ndarray) else None
    shape = nz_shape(*stored.shape) if isinstance(stored, _Nz) else stored if constant is None else constant.shape
    assert (argument.format == NZ) == isinstance(stored, _Nz), argument.name
    assert (constant is not None) == argument.constant, argument.name
    assert constant is None or constant.dtype == argument.dtype, argument.name
    return GlobalTensor(argument.name, shape, argument.dtype, argument.format, constant, argument.added)


def _tiles(tiles: np.ndarray, plan: BlockPlan) -> np.ndarray | None:
    """Tiles of visibility, and behind them a tile of zeros, see `Core.load_operand`."""
    if not len(tiles):
        return None
    zeros = plan.rows * plan.keys // tiles[0].size
    return np.concatenate([tiles, np.zeros((zeros, *tiles.shape[1:]), tiles.dtype)])


def _work(problem: KernelProblem, plan: BlockPlan, split: TableOfWork) -> dict:
    """Work table and tiles of visibility. With packed sequences the table is data, and the tiles a ramp."""
    if problem.sequences:
        zeros = np.zeros((packed.zero_blocks(problem, plan), 16), np.float16)
        return {"work": split.words.shape, "tiles": np.concatenate([split.tiles, zeros])}
    return {"table": split.words, "tiles": _tiles(split.tiles, plan)}


def _blocks(problem: KernelProblem) -> tuple[int, int] | None:
    """Blocks of rows of packed sequences, see packed.blocks."""
    return (layout.stored_rows(problem) // packed.BLOCK, packed.BLOCK_RECORD.size) if problem.sequences else None


def _filled(array: np.ndarray) -> np.ndarray | None:
    """A constant that some problems do not have."""
    return array if len(array) else None


def _features(problem: KernelProblem) -> dict:
    """Mask, bias and keep decisions: one matrix per plane, or a row per plane where every query has the same."""
    p, masks, biases = problem, math.prod(problem.mask_planes), math.prod(problem.bias_planes)
    return {
        "mask": _Nz((masks, p.seq_q, p.seq_k)) if p.mask == "per_score" else None,
        "key_mask": (masks, padded(p.seq_k)) if p.mask == "per_key" else None,
        "bias": _Nz((biases, p.seq_q, p.seq_k)) if p.bias == "per_score" else None,
        # With which keys it hides, see layout.HIDDEN_BY_BIAS.
        "key_bias": (2 * biases, padded(p.seq_k)) if p.bias == "per_key" else None,
        "keep": layout.keep_shape(p) if p.dropout_threshold else None,
    }


def _matrices(problem: KernelProblem) -> tuple[_Nz, ...]:
    """(query, key, value, output) as stored; gradients are stored like what they belong to."""
    return tuple(_Nz(layout.placement(problem, name).shape) for name in ("query", "key", "value", "output"))


def _rows(problem: KernelProblem) -> tuple[int, ...]:
    return problem.batch, problem.heads, layout.stored_rows(problem)


def _sinks(problem: KernelProblem) -> tuple[int, ...] | None:
    return (problem.batch, problem.heads, layout.SINK_LANES) if problem.sinks else None


def _row_numbers() -> np.ndarray:
    return np.arange(128, dtype=np.float32)


def _backward_choice(request: Request) -> BackwardChoice:
    return backward_work.choose(request.problem, request.variant, request.bias_gradient)


def _forward(request: Request) -> dict:
    p, choice = request.problem, forward_work.choose(request.problem)
    plan, split = choice.plan, choice.split
    query, key, value, output = _matrices(p)
    result = {"query": query, "key": key, "value": value, **_features(p), "sinks": _sinks(p)}
    result.update(_work(p, plan, split))
    result["blocks"] = _blocks(p)
    if p.bias == "alibi":
        slopes, positions = score_terms.slope_table(p), score_terms.key_positions(p)
        result.update(slopes=slopes, positions=positions, row_numbers=_row_numbers())
        result["distances"] = _filled(split.distances)
    result.update(output=output, logsumexp=_rows(p))
    return result


def _grad_rows(request: Request) -> dict:
    p = request.problem
    *_, output = _matrices(p)
    result = {"output": output, "d_output": output, "logsumexp": _rows(p)}
    result["d_logsumexp"] = _rows(p) if request.logsumexp_gradient else None
    result["blocks"] = _blocks(p)
    result.update(sinks=_sinks(p), d_sink_rows=_rows(p) if p.sinks else None)
    if p.bias == "alibi":
        result.update(slopes=score_terms.slope_table(p), row_numbers=_row_numbers())
    result["row_lanes"] = layout.row_terms_shape(p)
    return result


def _grad(request: Request) -> dict:
    p, choice = request.problem, _backward_choice(request)
    plan, split = choice.plan, choice.split
    query, key, value, output = _matrices(p)
    result = {"query": query, "key": key, "value": value, "d_output": output, "row_lanes": layout.row_terms_shape(p)}
    result.update(**_features(p), **_work(p, plan, split))
    if p.bias == "alibi":
        result.update(positions=score_terms.key_positions(p), distances=_filled(split.distances))
        result["slopes"] = score_terms.slope_table(p) if len(split.distances) else None
    result.update(d_key=key, d_value=value, d_query_sums=layout.accumulator_shape(p, plan, split.slots))
    if plan.bias_kind == "per_score":
        result["d_bias"] = _Nz((math.prod(p.bias_planes), p.seq_q, p.seq_k))
    if plan.bias_kind == "per_key":
        # (16, 16, 16): the right operand that adds a row of the left one to one column of the result.
        result["one_hot"] = np.repeat(np.eye(16, dtype=np.float16)[:, :, None], 16, axis=2)
        result["d_bias_sums"] = p.batch * p.kv_heads, plan.bias_chunks, padded(p.seq_k), 16
    result["d_query"] = query if split.writes_d_query else None
    return result


def _grad_finish(request: Request) -> dict:
    p, choice = request.problem, _backward_choice(request)
    sums = layout.accumulator_shape(p, choice.plan, choice.split.slots)
    return {"d_query_sums": sums, "blocks": _blocks(p), "d_query": _matrices(p)[0]}


def _decode_choice(request: Request) -> DecodeChoice:
    return decode_work.choose(request.problem, request.pages is not None)


def _decode(request: Request) -> dict:
    p, choice = request.problem, _decode_choice(request)
    result = {"query": (p.batch, p.heads, p.seq_q, p.head_dim), **_lengths(request)}
    cache = (p.batch, p.kv_heads, p.seq_k)
    if request.pages is not None:
        cache = (*request.pages, p.kv_heads)
        result["block_tables"] = (padded(p.batch * (p.seq_k // request.pages[1]), 8),)
    result.update(key=(*cache, p.head_dim), value=(*cache, p.value_dim), limits=choice.split.limits, **_partial(choice))
    if p.rules.alibi:
        result["row_slopes"] = np.array(p.slopes, np.float32)[choice.split.slope_rows]
    return result


def _decode_merge(request: Request) -> dict:
    p, choice = request.problem, _decode_choice(request)
    plan = choice.plan
    pairs = p.batch * p.kv_heads * plan.row_blocks
    output = {"output": (p.batch, p.heads, p.seq_q, p.value_dim), "logsumexp": (pairs, plan.rows)}
    sinks = {"row_sinks": (p.kv_heads * plan.row_blocks, plan.row_groups, 64)} if p.sinks else {}
    return {**_partial(choice), **_lengths(request), **sinks, **output}


def _partial(choice: DecodeChoice) -> dict:
    """What the cores know of each row: per group of 16 rows, sums by column, and references and totals."""
    slots, groups = choice.split.slots, choice.plan.row_groups
    return {
        "sums": (slots, groups, choice.plan.value_dim, 16),
        "statistics": (slots, groups, 2, 64),
    }


def _lengths(request: Request) -> dict:
    """Keys of each sequence of a paged cache, padded to whole blocks of memory."""
    return {} if request.pages is None else {"context_lens": (padded(request.problem.batch, 8),)}


def _arguments(dtype: str, *names: str, **options: Any) -> tuple[Argument, ...]:
    return tuple(Argument(name, dtype, **options) for name in names)


@dataclass(frozen=True)
class _Stage:
    """A kernel of the chain with all arguments that it may have, of which a problem has some.

    Attributes:
        title: first part of the names of its operators.
        stored: what a request has by name: a constant array, a shape, a shape in FRACTAL_NZ, or None for what it lacks.
        choices: by the words that names of operators are made of: the arguments of a feature. One of each group.
    """

    title: str
    stored: Callable[[Request], dict]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    choices: tuple[dict[str, tuple[str, ...]], ...] = ()

    def operators(self, stage: str) -> list[Operator]:
        """One for every combination of choices."""
        optional = {name for group in self.choices for names in group.values() for name in names}
        result = []
        for words in itertools.product(*self.choices):
            if "packed" in words and not _NOT_PACKED.isdisjoint(words):
                continue
            chosen = {name for group, word in zip(self.choices, words) for name in group[word]}
            inputs, outputs = (
                tuple(one for one in side if one.name not in optional or one.name in chosen)
                for side in (self.inputs, self.outputs)
            )
            parts = [self.title, *filter(None, words)]
            name = "_".join(("flash_attention", *parts))
            result.append(Operator(name.title().replace("_", ""), name, stage, inputs, outputs))
        return result


_FEATURES = (
    *_arguments("float16", "mask", format=NZ),
    *_arguments("float16", "key_mask"),
    *_arguments("float16", "bias", format=NZ),
    *_arguments("float16", "key_bias"),
    *_arguments("uint8", "keep"),
)
_TABLES = (
    *_arguments("int32", "work"),
    *_arguments("int32", "table", constant=True),
    *_arguments("float16", "tiles", constant=True),
)
_MASKS = {"": (), "mask": ("mask",), "key_mask": ("key_mask",)}
_BIASES = {"": (), "bias": ("bias",), "key_bias": ("key_bias",)}
_DROPOUTS = {"": (), "dropout": ("keep",)}
_CACHES = {"": (), "paged": ("block_tables", "context_lens")}
_SINKS = {"": (), "sinks": ("sinks",)}
# Problems with tiles that are partly visible; those of packed sequences, whose work is data, may always be.
_TILES = {"": ("table",), "tiles": ("table", "tiles"), "packed": ("work", "tiles")}
_TILES_AND_BLOCKS = {**_TILES, "packed": ("work", "blocks", "tiles")}
_BLOCKS = {"": (), "packed": ("blocks",)}
_NOT_PACKED = frozenset({"mask", "key_mask", "bias", "key_bias", "bias_grad", "key_bias_grad"})

_STAGES = {
    "forward": _Stage(
        "forward",
        _forward,
        (
            *_arguments("float16", "query", "key", "value", format=NZ),
            *_FEATURES,
            *_arguments("float32", "sinks"),
            *_arguments("int32", "blocks"),
            *_TABLES,
            *_arguments("float32", "slopes", constant=True),
            *_arguments("float16", "positions", constant=True),
            *_arguments("float32", "row_numbers", constant=True),
            *_arguments("float16", "distances", constant=True),
        ),
        (*_arguments("float16", "output", format=NZ), *_arguments("float32", "logsumexp")),
        (
            _MASKS,
            {
                **_BIASES,
                "alibi": ("slopes", "positions", "row_numbers"),
                "signed_alibi": ("slopes", "positions", "row_numbers", "distances"),
            },
            _DROPOUTS,
            _SINKS,
            _TILES_AND_BLOCKS,
        ),
    ),
    "grad_rows": _Stage(
        "grad_rows",
        _grad_rows,
        (
            *_arguments("float16", "output", "d_output", format=NZ),
            *_arguments("float32", "logsumexp", "d_logsumexp", "sinks"),
            *_arguments("int32", "blocks"),
            *_arguments("float32", "slopes", "row_numbers", constant=True),
        ),
        (*_arguments("float16", "row_lanes"), *_arguments("float32", "d_sink_rows")),
        (
            {"": (), "alibi": ("slopes", "row_numbers")},
            {"": (), "logsumexp": ("d_logsumexp",)},
            {"": (), "sinks": ("sinks", "d_sink_rows")},
            _BLOCKS,
        ),
    ),
    "grad": _Stage(
        "grad",
        _grad,
        (
            *_arguments("float16", "query", "key", "value", "d_output", format=NZ),
            *_arguments("float16", "row_lanes"),
            *_FEATURES,
            *_TABLES,
            *_arguments("float16", "one_hot", "positions", "distances", constant=True),
            *_arguments("float32", "slopes", constant=True),
        ),
        (
            *_arguments("float16", "d_key", "d_value", format=NZ),
            *_arguments("float32", "d_query_sums", added=True),
            *_arguments("float32", "d_bias", format=NZ, added=True),
            *_arguments("float32", "d_bias_sums"),
            *_arguments("float16", "d_query", format=NZ),
        ),
        (
            _MASKS,
            {
                **_BIASES,
                "bias_grad": ("bias", "d_bias"),
                "key_bias_grad": ("key_bias", "one_hot", "d_bias_sums"),
                "alibi": ("positions",),
                "signed_alibi": ("positions", "distances", "slopes"),
            },
            _DROPOUTS,
            _TILES,
            {"": (), "query": ("d_query",)},
        ),
    ),
    "grad_finish": _Stage(
        "grad_finish",
        _grad_finish,
        (*_arguments("float32", "d_query_sums"), *_arguments("int32", "blocks")),
        _arguments("float16", "d_query", format=NZ),
        (_BLOCKS,),
    ),
    "decode": _Stage(
        "decode",
        _decode,
        (
            *_arguments("float16", "query", "key", "value"),
            *_arguments("int32", "block_tables", "context_lens"),
            *_arguments("float32", "limits", "row_slopes", constant=True),
        ),
        _arguments("float32", "sums", "statistics"),
        (_CACHES, {"": (), "alibi": ("row_slopes",)}),
    ),
    "decode_merge": _Stage(
        "decode_merge",
        _decode_merge,
        (
            *_arguments("float32", "sums", "statistics"),
            *_arguments("int32", "context_lens"),
            *_arguments("float32", "row_sinks"),
        ),
        (*_arguments("float16", "output"), *_arguments("float32", "logsumexp")),
        ({"": (), "paged": ("context_lens",)}, {"": (), "sinks": ("row_sinks",)}),
    ),
}
DECODE_STAGES = ("decode", "decode_merge")  # few queries against many keys, in the order in which the kernels run
STAGES = tuple(name for name in _STAGES if name not in DECODE_STAGES)  # forward, pre-pass, main backward, last pass
OPERATORS = tuple(operator for name, stage in _STAGES.items() for operator in stage.operators(name))
_BY_ARGUMENTS = {
    (one.stage, frozenset(argument.name for argument in (*one.inputs, *one.outputs))): one for one in OPERATORS
}


def describe(stage: str, request: Request) -> tuple[Operator, Signature]:
    """The operator that runs at a stage for a request, and the arguments of its kernel. Needs no tik module.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    stored = {name: what for name, what in _STAGES[stage].stored(request).items() if what is not None}
    operator = _BY_ARGUMENTS[stage, frozenset(stored)]
    inputs, outputs = (
        tuple(_tensor(one, stored[one.name]) for one in side) for side in (operator.inputs, operator.outputs)
    )
    return operator, Signature(inputs, outputs)
