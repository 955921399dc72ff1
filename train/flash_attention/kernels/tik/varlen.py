"""Work tables of packed sequences. The lengths are data, so every call makes its tables, of a size fixed before.

Each function takes `xp`, a module of array operations: `host_integers` for NumPy, or `backends.tik.graph_integers` for
tensors in a graph. It returns a function that runs on the arrays of `xp`. By the rules of a graph, the returned
function uses only arithmetic on whole arrays, has no branches, and captures only integers and arrays.

Rows of queries have two addresses. In the tensors of the caller they follow each other. In the tensors that the kernels
keep per row (logsumexp, terms of the backward operator, accumulators), every sequence begins at a multiple of BLOCK
rows. So row blocks of any size are whole there. These tensors have `stored_rows` rows in all.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik.layout import BLOCK, capacity, stored_rows
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.row_layout import RowLayout

# A block of rows: first row among all tokens, rows that exist, position of the first one, number of the sequence.
BLOCK_ROW = RowLayout({"first_row": 1, "rows": 1, "position": 1, "sequence": 1, "padding": 4})
FAR = 1 << 30  # stands for no limit

Array = Any


def keep_blocks(queries: int, keys: int, sequences: int, lengths: list[tuple[int, int]] | None) -> int:
    """Return the most blocks of 32 bytes for a head's keep decisions.

    Args:
        queries, keys: of all sequences.
        lengths: (queries, keys) of every sequence, or None if any may come. The number of blocks is rounded up to a
            power of two, so that kernels for other lengths are few.
    """
    if lengths is None:
        return capacity(queries, sequences, BLOCK) * (BLOCK // 16) * capacity(keys, sequences, 16)
    wanted = sum(-(-columns // 16) * -(-rows // BLOCK) * (BLOCK // 16) for rows, columns in lengths)
    return 1 << max(wanted - 1, 0).bit_length()


class Sequences(NamedTuple):
    """Places of the sequences, int32 (sequences,) each. Words of work tables, in this order.

    Attributes:
        query_row, key_row: first row among the tokens of queries and of keys.
        stored_row: first row in the tensors that are stored per row.
        keys, queries: lengths.
        offset: position of query 0 among the keys.
        prefix: keys before it are visible besides the causal ones.
        keep: first block of 32 bytes of the keep decisions of a head, see layout.keep_shape.
    """

    query_row: Array
    key_row: Array
    stored_row: Array
    keys: Array
    offset: Array
    prefix: Array
    queries: Array
    keep: Array


SEQUENCE_ROW = RowLayout(dict.fromkeys(Sequences._fields, 1))


def sequences(xp, problem: KernelProblem) -> Callable[[Array, Array, Array], tuple]:
    """Return make(ends_q, ends_k, prefix) -> Sequences, from cumulative lengths int32 (sequences,) without the leading
    0.

    Ends that are out of order or range give other lengths, but never an address outside the tensors.
    """
    call = problem.call
    bottom, most_q, most_k = call.rules.causal_alignment == "bottom_right", call.seq_q, call.seq_k
    dropped = call.dropout_threshold > 0

    def make(ends_q, ends_k, prefix):
        ends_q, ends_k = xp.minimum(xp.maximum(ends_q, 0), most_q), xp.minimum(xp.maximum(ends_k, 0), most_k)
        query_row = xp.concatenate((ends_q[:1] * 0, ends_q[:-1]))
        key_row = xp.concatenate((ends_k[:1] * 0, ends_k[:-1]))
        queries, keys = xp.maximum(ends_q - query_row, 0), xp.maximum(ends_k - key_row, 0)
        blocks = (queries + (BLOCK - 1)) // BLOCK
        offset = keys - queries if bottom else keys * 0
        stored_row, keep = (xp.cumsum(blocks, 0) - blocks) * BLOCK, keys * 0
        if dropped:
            area = (keys + 15) // 16 * (blocks * (BLOCK // 16))
            keep = xp.cumsum(area, 0) - area
        return query_row, key_row, stored_row, keys, offset, prefix, queries, keep

    return make


def tiles(xp, problem: KernelProblem, count: int):
    """Return make(counts) -> (sequence, number inside, existence) of `count` tiles, counts[s] of sequence s."""
    index, sequences = xp.array(np.arange(count)), problem.sequences

    def make(counts):
        ends = xp.cumsum(counts, 0)
        owner = xp.count_true(xp.reshape(index, (-1, 1)) >= xp.reshape(ends, (1, -1)))
        active = owner < sequences
        owner = xp.minimum(owner, sequences - 1)
        return owner, index - xp.take(ends - counts, owner, 0), active

    return make


def blocks(xp, problem: KernelProblem) -> Callable[[tuple], Array]:
    """Return make(sequences) -> int32 (blocks, BLOCK_ROW.size): the rows of every block of BLOCK stored rows."""
    numbered, unused = tiles(xp, problem, stored_rows(problem) // BLOCK), BLOCK_ROW.size - 4

    def make(described):
        query_row, _, _, _, offset, _, queries, _ = described
        owner, inside, active = numbered((queries + (BLOCK - 1)) // BLOCK)
        exists, start = xp.as_int(active), inside * BLOCK
        first, position = xp.take(query_row, owner, 0) + start, xp.take(offset, owner, 0) + start
        rows = xp.minimum(xp.take(queries, owner, 0) - start, BLOCK)
        nothing = exists * 0
        return xp.stack((first * exists, rows * exists, position * exists, owner) + (nothing,) * unused)

    return make


def stored_rows_of_tokens(xp, problem: KernelProblem) -> Callable[[tuple], Array]:
    """Return make(sequences) -> int32 (tokens,): the stored row of every row of queries."""
    token, last = xp.array(np.arange(problem.call.seq_q)), problem.sequences - 1

    def make(described):
        query_row, _, stored_row, _, _, _, queries, _ = described
        ends = xp.reshape(query_row + queries, (1, -1))
        owner = xp.minimum(xp.count_true(xp.reshape(token, (-1, 1)) >= ends), last)
        return token + xp.take(stored_row - query_row, owner, 0)

    return make


class Limits(NamedTuple):
    """Keys that queries see before and after their position, FAR without a limit. prefixed: there is a prefix."""

    left: int
    right: int
    prefixed: bool

    @staticmethod
    def of(problem: KernelProblem) -> Limits:
        rules = problem.call.rules
        left = FAR if rules.window_left < 0 else rules.window_left
        right = FAR if rules.window_right < 0 else rules.window_right
        return Limits(left, 0 if rules.causal else right, problem.call.prefix)

    @property
    def bounded(self) -> bool:
        """Return True if some query may not see some key of its sequence."""
        return min(self.left, self.right) < FAR


def by_cost(xp: Any, count: int) -> Callable[[Array], Array]:
    """Return make(cost) -> int32 (count,): the numbers of items by falling cost. Equal items keep their order."""
    row, column = (xp.array(np.arange(count).reshape(axes)) for axes in ((-1, 1), (1, -1)))
    numbers = xp.array(np.arange(count))

    def make(cost: Array) -> Array:
        mine, other = xp.reshape(cost, (-1, 1)), xp.reshape(cost, (1, -1))
        earlier = xp.logical_and(other == mine, column < row)
        return xp.scatter(xp.count_true(xp.logical_or(other > mine, earlier)), numbers, count)

    return make


def dealt(xp: Any, words: list[int], places: np.ndarray, added: np.ndarray) -> Callable[[tuple, Array], Array]:
    """Return make(values, order) -> int32 work table (cores, items, words): items in an order, dealt to places.

    Args:
        words: which word each of `values` is, a vector with a number per item; other words are 0.
        places: (cores, items): for every place in the table the rank of its item in the order.
        added: (cores, items, words): numbers that the place itself adds to the words.
    """
    shape = added.shape
    ranks, own = xp.array(places.reshape(-1)), xp.array(added)
    columns = np.full(shape[2], len(words))
    columns[words] = np.arange(len(words))
    columns = xp.array(columns)

    def make(values: tuple, order: Array) -> Array:
        nothing = order * 0
        chosen = xp.take(xp.stack(values + (nothing,)), xp.take(order, ranks, 0), 0)
        return xp.reshape(xp.take(chosen, columns, 1), shape) + own

    return make
