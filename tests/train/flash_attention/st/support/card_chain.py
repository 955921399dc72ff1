"""MindSpore's inference operators on the virtual card, against float64: card_chain.py MODE NAME...

A network of the four operators has a prompt and steps, as the models of MindFormers call them. The result of each
operator is compared. The output has the form of card_cases.py.
"""

import functools
import sys

import flash_attention
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from tests.train.flash_attention.st.support.card_program import on_the_card, report
from tests.train.flash_attention.support.mindspore_operators import ERRORS, attention, causal, numbers

HEADS, KV_HEADS, DIM, BLOCK, SCALE = 4, 2, 16, 16, 0.3
LENGTHS, TABLES = (21, 7), np.array([[3, 1, -1], [5, 2, -1]], np.int32)
ANGLES = np.tile(np.arange(64)[:, None] / 50 ** (np.arange(DIM // 2) / (DIM // 2)), 2)


def half(*arrays):
    """Return float16 Tensors."""
    return [Tensor(one.astype(np.float16)) for one in arrays]


class Layer(nn.Cell):
    """Call the four operators as a layer does. Attention is to the prompt or to the cache."""

    def __init__(self, layout: str, caches: list):
        super().__init__()
        made = ops.auto_generate
        self.rotary, self.write = made.ApplyRotaryPosEmb(2), made.ReshapeAndCache()
        self.score = made.FlashAttentionScore(HEADS, scale_value=SCALE, next_tokens=0, input_layout=layout)
        self.paged, self.packed, self.prefill = made.PagedAttention(HEADS, SCALE, KV_HEADS), layout == "TH", True
        self.key_cache, self.value_cache = (
            Parameter(Tensor(one), name=name, requires_grad=False) for name, one in zip(("keys", "values"), caches)
        )

    def construct(self, query, key, value, cos, sin, lengths, slots, tables, mask):
        query, key = self.rotary(query, key, cos, sin, lengths)
        written = self.write(key, value, self.key_cache, self.value_cache, slots)
        query = ops.depend(query, written)
        if not self.prefill:
            output = self.paged(query, self.key_cache, self.value_cache, tables, lengths)
        elif self.packed:
            rows = [ops.reshape(one, (-1, one.shape[-1])) for one in (query, key, value)]
            output = self.score(*rows, None, None, None, mask, None, lengths, lengths)[3]
        else:
            output = self.score(query, key, value)[3]
        return query, key, output


def near(found, right, name):
    """Compare with the truth."""
    allowed = ERRORS["float16"] * max(1, np.abs(right).max())
    np.testing.assert_allclose(found, right, atol=allowed, err_msg=name)


def turned(tokens, positions):
    """Return tokens of (..., heads, D) turned by their positions."""
    angles = ANGLES[positions][:, None]
    swapped = np.concatenate((-tokens[..., DIM // 2 :], tokens[..., : DIM // 2]), -1)
    return tokens * np.cos(angles) + swapped * np.sin(angles)


def chain(layout):
    """Compare a prompt of two sequences and three steps."""
    generator = np.random.default_rng(0)
    caches = [np.full((9, BLOCK, KV_HEADS, DIM), np.nan, np.float16) for _ in range(2)]
    layer = Layer(layout.upper(), caches)
    tables = np.cos(ANGLES), np.sin(ANGLES)
    mask = half(np.triu(np.ones((128, 128)), 1) * -10000)[0]
    kept: list = [[np.zeros((0, KV_HEADS, DIM))] * 2 for _ in range(2)]
    for step in range(4):
        layer.prefill = step == 0
        layer.phase = "prefill" if step == 0 else "increment"
        counts = LENGTHS if step == 0 else (1, 1)
        lengths = np.array(LENGTHS) + step
        positions = [np.arange(end - count, end) for count, end in zip(counts, lengths)]
        new = [[generator.standard_normal((n, heads, DIM)).astype(np.float16) for n in counts] for heads in (4, 2, 2)]
        slots = [table[at // BLOCK] * BLOCK + at % BLOCK for table, at in zip(TABLES, positions)]
        longest = max(counts)
        if layout == "bsh" or step > 0:
            rows = [np.stack([np.resize(one, (longest, *one.shape[1:])) for one in of_kind]) for of_kind in new]
            slots = [np.concatenate((one, np.full(longest - len(one), -1))) for one in slots]
        else:
            rows = [np.concatenate(of_kind)[None] for of_kind in new]
        if step > 0:
            given = half(*(one[lengths - 1] for one in tables))
        else:
            given = half(*tables)
        tensors = [Tensor(one.reshape(*one.shape[:2], -1)) for one in rows]
        found = layer(*tensors, *given, numbers(lengths), numbers(np.concatenate(slots)), numbers(TABLES), mask)
        found = [one.astype(mstype.float32).asnumpy().reshape(-1, one.shape[-1]) for one in found]
        start = 0
        for sequence, (count, at) in enumerate(zip(counts, positions)):
            query, key, value = (one[sequence].astype(np.float64) for one in new)
            query, key = turned(query, at), turned(key, at)
            place = slice(start, start + count)
            start += longest if layout == "bsh" or step > 0 else count
            kept[0][sequence] = np.concatenate((kept[0][sequence], key))
            kept[1][sequence] = np.concatenate((kept[1][sequence], value))
            keys, values = (one[sequence].swapaxes(0, 1) for one in kept)
            right, _ = attention(query.swapaxes(0, 1), keys, values, SCALE, causal(count, len(keys[0])))
            for name, one, expected in zip(("query", "key", "output"), found, (query, key, right.swapaxes(0, 1))):
                near(one[place], expected.reshape(count, -1), f"{name} of step {step}, sequence {sequence}")
    for cache, of_sequences in zip((layer.key_cache, layer.value_cache), kept):
        rows = cache.asnumpy().astype(np.float64).reshape(-1, KV_HEADS, DIM)
        seen = np.zeros(len(rows), bool)
        for table, expected in zip(TABLES, of_sequences):
            slots = table[np.arange(len(expected)) // BLOCK] * BLOCK + np.arange(len(expected)) % BLOCK
            near(rows[slots], expected, "cache")
            seen[slots] = True
        assert np.isnan(rows[~seen]).all(), "a slot was written that no token has"


CHECKS = {layout: functools.partial(chain, layout) for layout in ("th", "bsh")}


if __name__ == "__main__":
    on_the_card(sys.argv[1])
    flash_attention.patch_mindspore(inference=True)
    report(sys.argv[2:] or CHECKS, lambda name: CHECKS[name]())
