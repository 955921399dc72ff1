"""real_shift, added to the scores before they are scaled: as a bias, or as slopes out of the last rows of ALiBi."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.fused import LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL
from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.compat.mindspore_ops.call import FusedCall

COMPRESSED_ROWS = 1024  # rows of a real_shift that follows the ALiBi rule and is given for the last rows only


def read_shift(shift: TensorSpec | None, call: FusedCall) -> FusedCall:
    """Add the kind of real_shift to a call.

    Raises:
        ValueError: its shape is not allowed.
    """
    if shift is None:
        return call
    batch, heads, seq_q, seq_k = call.sizes.scores

    def has_rows(rows):
        fitting = len(shift.shape) == 4 and all(map(fits, shift.shape[1:], (heads, rows, seq_k)))
        return fitting and (shift.shape[0] == 1 or fits(shift.shape[0], batch))

    if has_rows(seq_q):
        return call._replace(shift="full")
    causal = call.settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL)
    if seq_q > COMPRESSED_ROWS and has_rows(COMPRESSED_ROWS) and causal:
        return call._replace(shift="alibi")
    raise ValueError(
        f"real_shift: got shape {shift.shape}, allowed is (batch or 1, heads, S1, S2) = ({batch} or 1, {heads}, "
        f"{seq_q}, {seq_k}); with sparse_mode 2 or 3 and S1 > {COMPRESSED_ROWS} also {COMPRESSED_ROWS} rows"
    )


def read_packed_shift(shift: TensorSpec | None, call: FusedCall) -> FusedCall:
    """Read the shift of packed sequences, which have the last rows of ALiBi alone.

    Raises:
        ValueError: its shape is not allowed.
    """
    if shift is None:
        return call
    heads = call.sizes.heads
    causal = call.settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL)
    if not causal or len(shift.shape) != 4 or shift.shape[1:3] != (heads, COMPRESSED_ROWS):
        raise ValueError(
            f"real_shift: got shape {shift.shape} with sparse_mode {call.settings.sparse_mode} and input_layout "
            f"{call.settings.input_layout!r}; allowed with sparse_mode 2 or 3 are the last rows of ALiBi, "
            f"(sequences or 1, {heads}, {COMPRESSED_ROWS}, longest S2)"
        )
    return call._replace(shift="slopes")


class Float32(nn.Cell):
    """The bias that stands for a full real_shift."""

    def construct(self, real_shift):
        return ops.cast(real_shift, mstype.float32)


class Alibi(nn.Cell):
    """Make a bias for each key from rows that follow the ALiBi rule. It is (B or 1, N, 1, S2).

    shift[i, j] = slope * (j - position of query i). The softmax does not see a constant that is added to a whole row,
    so the row of the last query serves all queries. Its slope is fitted over all its keys. The float16 values of far
    distances alone would be too coarse for the near keys of other queries.
    """

    def __init__(self, call: FusedCall):
        super().__init__()
        seq_q, seq_k = call.sizes.seq_q, call.sizes.seq_k
        last = seq_q - 1 + call.offset
        distance = np.arange(seq_k) - last
        self.slope = _LastRow(distance)
        self.distance = Tensor(distance.astype(np.float32).reshape(1, 1, 1, -1))
        rows = last - (np.arange(seq_q) + call.offset)
        self.rows = Tensor(rows.astype(np.float32).reshape(1, 1, -1))

    def construct(self, real_shift):
        return self.slope(real_shift) * self.distance

    def left_out(self, real_shift):
        """Return the bias each query's scores lack, (B or 1, N, S1)."""
        return ops.squeeze(self.slope(real_shift), -1) * self.rows


class Slopes(nn.Cell):
    """Make alibi_slopes of packed sequences, (sequences, N) or (N,), without a gradient. They come from the last rows
    of the longest sequence.
    """

    def __init__(self, shape: tuple):
        super().__init__()
        sequences, heads, _, seq_k = shape
        self.slope = _LastRow(np.arange(seq_k) - (seq_k - 1))
        self.shape = (heads,) if sequences == 1 else (sequences, heads)

    def construct(self, real_shift):
        return ops.stop_gradient(ops.reshape(self.slope(real_shift), self.shape))


class _LastRow(nn.Cell):
    """Fit the slopes of a real_shift's last row, whose keys stand at `distance`. They are (B or 1, N, 1, 1)."""

    def __init__(self, distance: np.ndarray):
        super().__init__()
        seen = distance <= 0
        self.weights = Tensor((seen / distance[seen].sum()).astype(np.float32).reshape(1, 1, 1, -1))

    def construct(self, real_shift):
        row = ops.cast(real_shift[:, :, -1:], mstype.float32)
        return ops.ReduceSum(keep_dims=True)(row * self.weights, -1)
