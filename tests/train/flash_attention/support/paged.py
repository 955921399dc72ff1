"""Keys in pages: attention to the keys themselves in float64, and a cache that grows.

It needs no pytest, because it runs on the virtual card too.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from flash_attention import paged_attention, reference, reshape_and_cache
from flash_attention.call import AttentionRules, Call
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import bias_of_slopes

SINKS = np.array([1.0, -2.0, 0.5, 9.0], np.float32)


def expected(query: np.ndarray, keys, values, **rules) -> np.ndarray:
    """Return the output for queries at the ends of their keys, (batch, seq, heads, width).

    Args:
        keys, values: of each sequence, (length, heads, width). A sequence without keys gives zeros.
        rules: arguments of `paged_attention`, sinks and slopes as arrays.
    """
    sinks, slopes = rules.pop("sinks", None), rules.pop("alibi_slopes", None)
    rules = AttentionRules.from_arguments(**{"causal": True, "causal_alignment": "bottom_right", **rules})
    output = np.zeros((*query.shape[:3], values[0].shape[2]))
    for index, (row, key, value) in enumerate(zip(query, keys, values)):
        if not len(key):
            continue
        sizes, given = (1, row.shape[1], len(row), len(key), row.shape[2], key.shape[1]), {"sinks": sinks}
        call = Call(*sizes, value_dim=value.shape[2], dtype="float32", rules=rules, sinks=sinks is not None)
        if slopes is not None:
            own = slopes if slopes.ndim == 1 else slopes[index]
            given["bias"] = bias_of_slopes(own, len(row), len(key), len(key) - len(row))
            biased = {"bias_shape": given["bias"].shape, "bias_dtype": "float32"}
            call = Call(*sizes, value_dim=value.shape[2], dtype="float32", rules=rules, **biased)
        tensors = (array.swapaxes(0, 1)[None] for array in (row, key, value))
        output[index] = reference.truth(call, *tensors, **given).output[0].swapaxes(0, 1)
    return output


RULES: dict[str, dict] = {
    "plain": {},
    "window_softcap": {"window_size": (50, 0), "softcap": 3.0},
    "alibi": {"alibi": True, "scale": 0.4},
    "sinks": {"sinks": Tensor(SINKS)},
}


class Decoder(nn.Cell):
    """Write tokens into its caches, which hold NaN elsewhere, and attend to them."""

    def __init__(self, caches: list, backend: str, rules: dict | None = None):
        super().__init__()
        self.rules = {"backend": backend, **(rules or {})}
        self.keys, self.values = (
            Parameter(Tensor(array), name=name) for array, name in zip(caches, ("keys", "values"))
        )

    def construct(self, query, key, value, slots, tables, lengths):
        written = reshape_and_cache(key, value, self.keys, self.values, slots)
        lengths = ops.depend(lengths, written)
        return paged_attention(query, self.keys, self.values, tables, lengths, **self.rules)


def grow(backend: str, name: str) -> None:
    """Check a prompt of two parts, then tokens one by one. The first sequence has a block of keys before."""
    block, before, generator = 16, np.array([16, 0]), np.random.default_rng(0)
    tables = np.array([[4, 1, 6], [2, 5, 1 << 30]], np.int32)
    sizes = (4, 32), (2, 32), (2, 48)  # heads and width of query, key and value
    tokens = [generator.standard_normal((2, 36, *size)).astype(np.float16) for size in sizes]
    caches = [np.full((9, block, *size), np.nan, np.float16) for size in sizes[1:]]
    for cache, array in zip(caches, tokens[1:]):
        cache[tables[0, 0]] = array[0, :block]
    decoder = Decoder(caches, backend, RULES[name])
    sinks = {"sinks": SINKS} if "sinks" in RULES[name] else {}
    for start, end in [(0, 8), (8, 14), *((at, at + 1) for at in range(14, 18))]:
        positions = before[:, None] + np.arange(start, end)
        slots = np.take_along_axis(tables, positions // block, 1) * block + positions % block
        new = [np.stack([one[at + start : at + end] for one, at in zip(array, before)]) for array in tokens]
        numbers = (Tensor(array.astype(np.int32)) for array in (slots.reshape(-1), tables, before + end))
        output = decoder(*map(Tensor, new), *numbers).astype(ms.float32).asnumpy()
        kept = ([one[: at + end].astype(float) for one, at in zip(array, before)] for array in tokens[1:])
        right = expected(new[0].astype(float), *kept, **{**RULES[name], **sinks})
        np.testing.assert_allclose(output, right, atol=4e-3, err_msg=f"tokens {start} to {end}")
