"""Read calls as MindSpore's inference operators do: causal without a mask, packed sequences by their lengths."""

from __future__ import annotations

import operator
from itertools import accumulate

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.tensors import as_int32, compile_time, spec, tensor_spec
from flash_attention.bridge.versions import infers
from flash_attention.call.checks import check_bool
from flash_attention.call.inputs import fits
from flash_attention.compat.mindspore_ops.call import PACKED, TRIANGLE

_NAMES = "actual_seq_qlen", "actual_seq_kvlen"
_said: list[tuple[object, bool]] = []  # by patches that last, the newest behind


def say(owner: object, inference: bool | None) -> None:
    """Set the meaning of undecided calls while the owner's patch lasts; None ends it."""
    _said[:] = [one for one in _said if one[0] is not owner]
    if inference is not None:
        _said.append((owner, inference))


def decided() -> bool | None:
    """Return the meaning that patches or the global jit config say; None if neither does."""
    if _said:
        return _said[-1][1]
    return infers() or None


def meaning_of(inference: bool | None) -> bool | None:
    """Return the meaning of a call that says `inference`."""
    if inference is None:
        return decided()
    check_bool("inference", inference)
    return inference


meaning = compile_time(meaning_of)


@compile_time
def constant_ends(name: str, numbers: tuple, rows, layout: str) -> tuple:
    """Return the ends of packed sequences, from their lengths or ends and their tensor."""
    if layout not in PACKED:
        return numbers  # it takes no ends, and is refused later
    shape = tensor_spec("query" if name == _NAMES[0] else "key", rows).shape
    if len(shape) not in (2, 3):
        return numbers
    return tuple(_ends(name, np.array(numbers, np.int64), shape[0]).tolist())


def _ends(name: str, numbers: np.ndarray, rows: int) -> np.ndarray:
    if numbers.ndim == 1 and (numbers >= 0).all():
        if numbers.size and numbers[-1] == rows and (np.diff(numbers) >= 0).all():
            return numbers
        if numbers.sum() == rows:
            return np.array([0, *accumulate(numbers.tolist())], np.int64)
    raise ValueError(
        f"{name}: got {numbers.tolist()}, allowed are lengths of the sequences, whose sum is the number of rows, or "
        f"their ends, which ascend to it, here {rows}"
    )


class Ends(nn.Cell):
    """Give where sequences end, from Tensors of their lengths or of their ends: by sum or last entry.

    In a compiled graph they are data. Lengths and ends that do not fit become ends that do not fit, which give NaN.

    Args:
        alike: the sequences of keys must be as long as the sequences of queries.
    """

    def __init__(self, alike: bool):
        super().__init__()
        self.alike = alike
        self.sum = ops.ReduceSum()
        self.mask = None
        self.passed: list[tuple] = [
            ()
        ]  # ends as they came, as NumberCheck remembers: reading them waits for all operators

    def __call__(self, query, key, lengths_q, lengths_k, mask):
        given, ends = (lengths_q, lengths_k), []
        if any(all(map(operator.is_, (*given, mask), earlier)) for earlier in self.passed[0]):
            return given
        for name, rows, one in zip(_NAMES, (query.shape[0], key.shape[0]), given):
            ends.append(_ends(name, one.asnumpy(), rows) if isinstance(one, Tensor) else one)
        if self.alike:
            self._check(mask, *ends)
        if all(len(one) == len(end) for one, end in zip(given, ends)):
            self.passed[0] = (*self.passed[0][-15:], (*given, mask))
            return given
        return tuple(Tensor(end, mstype.int64) if len(one) != len(end) else one for one, end in zip(given, ends))

    def _check(self, mask, ends_q, ends_k):
        lengths = [np.diff(ends, prepend=0) for ends in (ends_q, ends_k)]
        counts = [one[one > 0].tolist() for one in lengths]
        if counts[0] != counts[1]:
            _refuse(*counts)
        if mask is not self.mask:
            hidden = mask.astype(mstype.float32).asnumpy() != 0
            if not np.array_equal(hidden, np.triu(np.ones(TRIANGLE, bool), 1)):
                raise ValueError(
                    f"attn_mask: a floating mask of shape {TRIANGLE} stands for causal, which is not 0 strictly above "
                    "the diagonal and 0 elsewhere, but the contents are different"
                )
            self.mask = mask

    def construct(self, query, key, lengths_q, lengths_k, mask):
        ends_q, ends_k = self.of(lengths_q, query.shape[0]), self.of(lengths_k, key.shape[0])
        if self.alike:
            ends_k = alike(ends_q, ends_k)
        return ends_q, ends_k

    def of(self, given, rows):
        if not isinstance(given, Tensor):
            return given
        numbers = ops.cast(as_int32(given), mstype.float32)
        lengths = ops.cast(ops.equal(self.sum(numbers), rows), mstype.float32)
        ends = ops.cumsum(numbers, 0) * lengths + numbers * (1 - lengths)
        return ops.cast(ends, mstype.int32)


def alike(ends_q, ends_k):
    """Return ends_k; ends that do not fit if they differ from ends_q."""
    if not isinstance(ends_q, Tensor) and not isinstance(ends_k, Tensor):
        _check_alike(ends_q, ends_k)
        return ends_k
    _check_counts(spec(ends_q), spec(ends_k))
    return ops.select(ops.equal(ends_q, ends_k), ends_k, ends_k * 0 - 1)


@compile_time
def _check_alike(ends_q, ends_k):
    if ends_q != ends_k:
        _refuse(ends_q, ends_k)


@compile_time
def _check_counts(*lengths):
    shapes = [tensor_spec(name, one).shape for name, one in zip(_NAMES, lengths)]
    if not fits(shapes[0][0], shapes[1][0]):
        _refuse(*shapes)


def _refuse(lengths_q, lengths_k):
    raise ValueError(
        f"actual_seq_kvlen: got {lengths_k} beside actual_seq_qlen {lengths_q} with a causal attn_mask of shape "
        f"{TRIANGLE}; allowed are sequences of keys as long as the sequences of queries, because no source says how "
        "others are aligned"
    )
