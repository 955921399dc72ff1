"""Layouts of kernel inputs and outputs in global memory, and NumPy to make them.

FRACTAL_NZ of a matrix (R, C): element (r, c) of the padded matrix sits at (c // 16, r // 16, r % 16, c % 16). Padding
is zero. The same matrix is `(C / 16, R, 16)` when its two middle axes are read as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.tik_types import BlockPlan

SIDE = 16  # of a fractal, and its columns
BLOCK = 128  # stored rows of a packed sequence come in blocks of as many
OF_QUERIES = ("query", "output", "d_output", "scaled_d_output", "d_query")  # tensors with a row for every query
TENSORS = (*OF_QUERIES, "key", "value", "d_key", "d_value")  # all that have a placement
OF_VALUES = ("value", "d_value", "output", "d_output", "scaled_d_output")  # tensors as wide as the values


@dataclass(frozen=True)
class Placement:
    """Places of the matrices of a tensor in its stored array, one for every head.

    A block is 16 elements, 32 bytes in float16. Row r of the columns 16 c to 16 c + 15 of head h of item b is block
    number b * batch + h * head + c * column + r.

    Attributes:
        shape: shape of the tensor as the framework sees it. The array has this shape in FRACTAL_NZ.
        heads: heads of a batch item.
        batch, head, column: distances in blocks.
        columns: fractal columns of a matrix.
        rows: rows that belong to a matrix, its padding with BNSD. With TH the next item lies behind its last row.
    """

    shape: tuple[int, ...]
    heads: int
    batch: int
    head: int
    column: int
    columns: int
    rows: int

    @property
    def skew(self) -> int:
        """Return blocks by which an item lies further on than its heads. 0 if heads follow each other."""
        return self.batch - self.heads * self.head

    @property
    def padding(self) -> int:
        """Return rows behind the last one of every fractal column that belong to no matrix."""
        return self.column - self.shape[0] if len(self.shape) == 2 else 0


def placement(problem: KernelProblem, name: str) -> Placement:
    """Return the placement of a tensor by its name in the signatures."""
    p, of_queries = problem, name in OF_QUERIES
    heads, seq = (p.call.heads, p.call.seq_q) if of_queries else (p.call.kv_heads, p.call.seq_k)
    dim = p.call.value_dim if name in OF_VALUES else p.call.head_dim
    columns = padded(dim) // SIDE
    if p.layout == "BNSD":
        rows = padded(seq)
        matrix = columns * rows
        return Placement((p.call.batch, heads, seq, dim), heads, heads * matrix, matrix, rows, columns, rows)
    tokens = padded(p.call.batch * seq)
    return Placement((p.call.batch * seq, heads * dim), heads, seq, columns * tokens, tokens, columns, seq)


def nz_shape(*shape: int) -> tuple[int, ...]:
    """Return the FRACTAL_NZ shape of (..., rows, columns)."""
    *outer, rows, columns = shape
    return (*outer, padded(columns) // SIDE, padded(rows) // SIDE, SIDE, SIDE)


def to_nz(array: np.ndarray) -> np.ndarray:
    """Bring (..., rows, columns) to FRACTAL_NZ (..., columns / 16, rows / 16, 16, 16). Padding is zero."""
    array = np.asarray(array)
    *outer, rows, columns = array.shape
    wide = np.zeros((*outer, padded(rows), padded(columns)), array.dtype)
    wide[..., :rows, :columns] = array
    tiles = wide.reshape(*outer, padded(rows) // SIDE, SIDE, padded(columns) // SIDE, SIDE)
    axis = len(outer)
    order = (*range(axis), axis + 2, axis, axis + 1, axis + 3)
    return np.ascontiguousarray(tiles.transpose(order))


def from_nz(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the inverse of `to_nz`: drops the padding."""
    array = np.asarray(array)
    *outer, wide, high, _, _ = array.shape
    if rows > high * SIDE or columns > wide * SIDE:
        raise ValueError(f"array: shape {array.shape} holds no ({rows}, {columns}) matrix in FRACTAL_NZ")
    axis = len(outer)
    order = (*range(axis), axis + 1, axis + 2, axis, axis + 3)
    flat = array.transpose(order).reshape(*outer, high * SIDE, wide * SIDE)
    return np.ascontiguousarray(flat[..., :rows, :columns])


def capacity(tokens: int, sequences: int, unit: int) -> int:
    """Return the most tiles of `unit` rows in so many sequences of so many tokens."""
    return (tokens + (unit - 1) * min(sequences, tokens)) // unit


def row_term_kinds(problem: KernelProblem) -> int:
    """Return kinds of terms per query row in the backward operator: three if keys stand on both sides of the
    queries.
    """
    return 3 if problem.call.bias == "alibi" and not problem.call.rules.causal else 2


def row_terms(problem: KernelProblem) -> int:
    """Return how many of the 16 terms per query row may differ from zero: the first or all, see common.score_terms."""
    more = problem.call.bias in ("per_key", "alibi") or problem.mask == "per_key" or problem.call.rules.softcap > 0
    return 16 if more else 3


def stored_rows(problem: KernelProblem) -> int:
    """Return rows of a head in what the kernels keep per row."""
    return (
        BLOCK * capacity(problem.call.seq_q, problem.sequences, BLOCK)
        if problem.sequences
        else padded(problem.call.seq_q)
    )


def zero_blocks(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return blocks of 16 zeros behind the tiles of visibility: as many as a tile of queries, keys or values has."""
    return max(plan.rows, plan.keys) * padded(max(problem.call.head_dim, problem.call.value_dim)) // 16


def row_terms_shape(problem: KernelProblem) -> tuple[int, ...]:
    """Return row terms of the backward operator: (kinds, heads of all batches, query groups of 16, terms, 16
    queries).
    """
    heads, groups = problem.call.batch * problem.call.heads, stored_rows(problem) // 16
    return row_term_kinds(problem), heads, groups, row_terms(problem), 16


def accumulator_shape(problem: KernelProblem, plan: BlockPlan, slots: int) -> tuple[int, ...]:
    """Return sums of query gradients: (slots, heads of all batches, query tiles, head_dim / 16, rows, 16).

    Args:
        plan: the tile shapes of the backward operator.
    """
    tiles = -(-stored_rows(problem) // plan.rows)
    return slots, problem.call.batch * problem.call.heads, tiles, plan.head_dim // 16, plan.rows, 16


HIDDEN_BY_BIAS = 16.0  # more than any other term of the kernels can make up for, see score_terms.BIAS_HIDES
SINK_LANES = 128  # the kernel has a number per row of a row block
KEEP_PADDING = 32  # bytes after the keep bits: the kernel reads them twice, 16 bytes apart, in blocks of 32


def keep_shape(problem: KernelProblem) -> tuple[int, ...]:
    """Return the shape of the packed keep decisions, uint8: flat, see `store_keep_bits`.

    Decisions of packed sequences are (heads, keep_blocks, 16, 2), one sequence behind the other. Each sequence is
    (seq_k / 16, seq_q, 2), with seq_k padded to 16 and seq_q to BLOCK.
    """
    call = problem.call
    if problem.sequences:
        return (call.heads * problem.keep_blocks * 32 + KEEP_PADDING,)
    return (call.batch * call.heads * padded(call.seq_k) // 16 * padded(call.seq_q) * 2 + KEEP_PADDING,)


def store_keep_bits_of_sequences(parts: list[np.ndarray], problem: KernelProblem) -> np.ndarray:
    """Pack keep bits, uint8 (heads, queries, ceil(keys / 8)) per sequence, in the kernel's order."""
    result = np.zeros((problem.call.heads, problem.keep_blocks * 32), np.uint8)
    start = 0
    for bits in parts:
        heads, queries, wide = bits.shape
        padding = (0, 0), (0, padded(queries, BLOCK) - queries), (0, wide % 2)
        words = np.pad(bits, padding).reshape(heads, -1, (wide + 1) // 2, 2).transpose(0, 2, 1, 3).reshape(heads, -1)
        result[:, start : start + words.shape[1]] = words
        start += words.shape[1]
    return np.concatenate([result.reshape(-1), np.zeros(KEEP_PADDING, np.uint8)])


def store_keep_bits(bits: np.ndarray, problem: KernelProblem) -> np.ndarray:
    """Keep bits uint8 (batch, heads, seq_q, ceil(seq_k / 8)) to the kernel's order.

    The order is (batch, heads, seq_k / 16, seq_q, 2), with lengths padded to 16 by zeros. The two bytes (16 keys) of a
    query stand beside the bytes of the next query, like the columns of a fractal. The bytes themselves do not change.
    """
    call = problem.call
    bits = np.asarray(bits, dtype=np.uint8)
    expected = (call.batch, call.heads, call.seq_q, -(-call.seq_k // 8))
    if bits.shape != expected:
        raise ValueError(f"bits: got shape {bits.shape}, allowed is {expected}")
    wide = np.zeros((*expected[:2], padded(call.seq_q), padded(call.seq_k) // 8), np.uint8)
    wide[:, :, : expected[2], : expected[3]] = bits
    words = wide.reshape(*wide.shape[:3], -1, 2).transpose(0, 1, 3, 2, 4)
    return np.concatenate([words.reshape(-1), np.zeros(KEEP_PADDING, np.uint8)])
