"""The questions of docs/conventions.md. One attention function answers them by what it computes.

The function takes query, key and value as NumPy arrays (batch, heads, seq, head_dim) and returns such an array. It has,
by keyword, the ones of these arguments that its library has, and hands them on as they are: `mask` (bool), `bias`
(added), `causal`, `window`, `cap`, `sinks`, `dropout`, `lengths` (of keys), `grouped` (the flag), `lse` (returns output
and logsumexp). An answer is a few words. "refused" stands for an exception of the library, no answer for an argument
that is missing: the function's NotImplementedError without a text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HEAD_DIM = 16
#: Questions by the titles of their rows.
QUESTIONS = {}


def question(title):
    """Enter a function among the questions."""
    return lambda function: QUESTIONS.setdefault(title, function)


class RefusedError(Exception):
    """The library raised an exception."""


@dataclass
class Column:
    """Hold what a column's program says of its attention function.

    `rest` is the cell of the questions that the program cannot ask although the library could answer. `stated` are the
    cells of a function that runs on no machine here, by the titles of their rows: it is asked nothing.
    """

    attend: Callable
    gradients: Callable = None
    rotary: Callable = None
    layout: str = None
    window: object = None
    dtype: type = np.float32
    tokens: int = 513
    always_causal: bool = False
    rest: str = "—"
    stated: dict = None

    def __call__(self, query, key, value, **asked):
        """Run attention. Raise NotImplementedError if the function lacks an argument."""
        if not self.has(*asked):
            raise NotImplementedError
        return called(self.attend, query, key, value, **asked)

    def has(self, *arguments):
        """Return True if the function has these arguments."""
        return set(arguments) <= set(inspect.signature(self.attend).parameters)

    def truth(self, query, key, value):
        """Return attention in float64, causal if the function always is."""
        tokens = query.shape[2]
        return truth(query, key, value, np.where(np.tri(tokens) + (not self.always_causal), 0, -np.inf))

    def mask_of(self, visible):
        """Return a boolean mask with the polarity of the function."""
        words = polarity(self)
        if words not in ("takes part", "hides"):
            raise NotImplementedError
        return visible if words == "takes part" else ~visible


def called(function, *given, **asked):
    """Call a function of the library. Raise RefusedError if it raises."""
    if function is None:
        raise NotImplementedError
    try:
        return function(*given, **asked)
    except Exception as error:
        if isinstance(error, NotImplementedError) and not error.args:
            raise
        raise RefusedError from error


def normal(*shape):
    """Return the same normal numbers in every run."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def inputs(seq_q=7, seq_k=7, batch=1, heads=1, kv_heads=None):
    """Return query, key and value."""
    kv_shape = (batch, kv_heads or heads, seq_k, HEAD_DIM)
    return normal(batch, heads, seq_q, HEAD_DIM), normal(*kv_shape) * 0.7, normal(*kv_shape) * 1.3 + 0.2


def truth(query, key, value, bias=0.0):
    """Return attention in float64."""
    scores = query.astype(np.float64) @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def alike(one, other):
    """Return True if two results agree but for rounding."""
    return bool(np.allclose(one, other, atol=2e-2))


def seen(ask, seq_q, seq_k, batch=1, heads=1, **asked):
    """Return which keys each query sees, bool. With one item and one head it is (seq_q, seq_k)."""
    value = np.broadcast_to(np.eye(seq_k, HEAD_DIM, dtype=np.float32), (batch, heads, seq_k, HEAD_DIM)).copy()
    zeros = np.zeros((batch, heads, seq_q, HEAD_DIM), np.float32), np.zeros_like(value)
    found = np.asarray(ask(*zeros, value, **asked))[..., :seq_k] > 1e-6
    return found if batch * heads > 1 else found[0, 0]


def described(visible):
    """Return where the diagonal begins, and how many keys each query sees."""
    seq_q, seq_k = visible.shape
    counts = f"({', '.join(map(str, visible.sum(-1)))})"
    if visible.all():
        return f"all keys {counts}"
    for name, offset in (("top left", 0), ("bottom right", seq_k - seq_q)):
        distance = np.arange(seq_k) - np.arange(seq_q)[:, None] - offset
        if any(np.array_equal(visible, (distance <= 0) & (distance >= -width)) for width in (1, 2, seq_q + seq_k)):
            return f"{name} {counts}"
        if np.array_equal(visible, abs(distance) <= 2):
            return f"{name}, both sides {counts}"
    return f"other {counts}"


@question("a window, 7 queries and 7 keys")
def window_of_equal_lengths(ask):
    sees = seen(ask, 7, 7, window=ask.window)[3]
    words = "itself and {} before" if not sees[4:].any() else "itself, {} before, {} behind"
    return f"`{ask.window}`: " + words.format(sees[:3].sum(), sees[4:].sum())


@question("a window of `(-1, 0)`")
def window_without_limit(ask):
    sees = seen(ask, 7, 7, window=(-1, 0))
    return "no limit before" if np.array_equal(sees, np.tri(7, dtype=bool)) else "hides every key"


@question("True in a boolean mask")
def polarity(ask):
    mask = np.zeros((1, 1, 3, 5), bool)
    mask[..., 2] = True
    return {1: "takes part", 4: "hides", 5: "is added as 1"}[int(seen(ask, 3, 5, mask=mask)[0].sum())]


@question("a boolean mask of rank 3")
def mask_of_rank_3(ask):
    visible = np.ones((3, 5, 7), bool)
    for each in range(3):
        visible[each, :, each] = False
    sees = seen(ask, 5, 7, batch=3, heads=3, mask=ask.mask_of(visible))
    for words, expected in (("per head", visible[None]), ("per batch item", visible[:, None])):
        if np.array_equal(sees, np.broadcast_to(expected, sees.shape)):
            return words
    return "other"


@question("a mask together with causal")
def mask_with_causal(ask):
    visible = np.ones((1, 1, 7, 7), bool)
    visible[..., 1] = False
    sees = seen(ask, 7, 7, mask=ask.mask_of(visible), causal=True)
    causal = np.tri(7, dtype=bool)
    for words, expected in (("both", visible[0, 0] & causal), ("the mask is ignored", causal)):
        if np.array_equal(sees, expected):
            return words
    return "causal is ignored" if np.array_equal(sees, visible[0, 0]) else "other"


def meaning_of_row(row, unmasked, value):
    """Return the words for a row of the output whose keys are all hidden."""
    if np.isnan(row).all():
        return "NaN"
    if not row.any():
        return "0"
    if alike(row, value.mean(-2)):
        return "mean of all values"
    return "all keys, as without a mask" if alike(row, unmasked) else "other"


def row_that_sees_nothing(ask, **asked):
    """Return the words for row 1, and raise if the rows beside it are wrong."""
    query, key, value = inputs()
    output, expected = np.asarray(ask(query, key, value, **asked)), ask.truth(query, key, value)
    rest = "" if alike(np.delete(output, 1, 2), np.delete(expected, 1, 2)) else "; other rows are wrong"
    return meaning_of_row(output[0, 0, 1], expected[0, 0, 1], value[0, 0]) + rest


def mask_without_row(ask):
    """Return a mask whose row 1 hides every key."""
    visible = np.ones((1, 1, 7, 7), bool)
    visible[..., 1, :] = False
    return ask.mask_of(visible)


def bias_without_row(hidden):
    """Return a bias whose row 1 holds one number."""
    bias = np.zeros((1, 1, 7, 7), np.float32)
    bias[..., 1, :] = hidden
    return bias


@question("its gradient")
def gradient_of_hidden_row(ask):
    of_query, of_key, of_value = map(np.asarray, called(ask.gradients, *inputs(), mask=mask_without_row(ask)))
    if not all(np.isfinite(one).all() for one in (of_query, of_key, of_value)):
        return "NaN"
    return "not 0" if of_query[0, 0, 1].any() else "0"


@question("its logsumexp")
def logsumexp_of_hidden_row(ask):
    if not ask.has("lse"):
        raise NotImplementedError
    found = np.asarray(ask(*inputs(), mask=mask_without_row(ask), lse=True)[1]).reshape(-1)[1]
    return f"{found:.1e}" if np.isfinite(found) and found else str(found).replace("0.0", "0")


def nan_that_is_hidden(ask, place, **asked):
    """Return the words for NaN in the last key or value. Rows 0 to 3 do not see it."""
    tensors = inputs(5, 5)
    tensors[place][0, 0, 4, 3] = np.nan
    reached = np.isnan(np.asarray(ask(*tensors, **asked))[0, 0, :4]).any(-1).sum()
    return ("stays hidden", "reaches all rows")[reached // 4] if reached in (0, 4) else f"reaches {reached} of 4 rows"


def mask_of_the_last_key(ask):
    """Return a mask that hides the last key."""
    visible = np.ones((1, 1, 5, 5), bool)
    visible[..., 4] = False
    return ask.mask_of(visible)


@question("soft cap and bias")
def order_of_cap(ask):
    (query, key, value), bias = inputs(5, 5), 3 * normal(1, 1, 5, 5)
    output = np.asarray(ask(query, key, value, cap=0.5, bias=bias))[..., 4:, :]  # sees all keys, if causal too
    query, bias = query[..., 4:, :], bias[..., 4:, :]
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(HEAD_DIM)
    if alike(output, truth(query * 0, key, value, 0.5 * np.tanh(scores / 0.5) + bias)):
        return "cap, then bias"
    capped = truth(query * 0, key, value, 0.5 * np.tanh((scores + bias) / 0.5))
    return "bias, then cap" if alike(output, capped) else "other"


@question("a sink of logit 1 and a soft cap of 0.5")
def sink(ask):
    ones = np.ones((1, 1, 4, HEAD_DIM), np.float32)
    cap = {"cap": 0.5} if ask.has("cap") else {}
    weight = np.asarray(ask(ones * 0, ones * 0, ones, sinks=np.ones(1, np.float32), **cap)).reshape(-1)[-1]
    words = "in the denominator" if alike(weight, 4 / (4 + np.e)) else "other"
    return words + (", not capped" if cap else "")


def kept(ask, rate, seq_q=256, seq_k=64, batch=1, heads=4):
    """Return the weights behind dropout times the number of keys."""
    query, key = (np.zeros((batch, heads, seq, 64), np.float32) for seq in (seq_q, seq_k))
    value = np.broadcast_to(np.eye(seq_k, 64, dtype=np.float32), key.shape).copy()
    return np.asarray(ask(query, key, value, dropout=rate), np.float64)[..., :seq_k] * seq_k


@question("dropout of 0.001 drops")
def dropout_rate(ask):
    weights = kept(ask, 0.001)
    share = (weights == 0).mean()
    return "0.1 %" if abs(share - 0.001) < 5 * np.sqrt(0.001 / weights.size) else f"{share:.1%}".replace("%", " %")


@question("dropout of 0.5 multiplies by")
def dropout_scale(ask):
    weights = kept(ask, 0.5)
    return f"{np.median(weights[weights != 0]):.3g}"


@question("dropout of one seed and other shapes")
def dropout_decisions(ask):
    few = kept(ask, 0.5, 32, 32, 1, 1)[0, 0] == 0
    forms = {"batch": (32, 32, 2), "more queries": (64, 32, 1), "more keys": (32, 64, 1)}
    same = [name for name, form in forms.items() if np.array_equal(kept(ask, 0.5, *form, 1)[0, 0, :32, :32] == 0, few)]
    return "same decisions" if len(same) == 3 else "same for " + " and ".join(same) if same else "other decisions"


@question("a length of 3 for 5 keys")
def length(ask):
    sees = seen(ask, 5, 5, batch=2, lengths=np.array([4, 3]))
    return f"shows {sees[1, 0].sum(-1).max()} keys"


@question("rows behind the length")
def rows_behind_the_length(ask):
    output = np.asarray(ask(*inputs(5, 5, 2), lengths=np.array([4, 3])))[1, 0, 3:]
    return "0" if not output.any() else "NaN" if np.isnan(output).any() else "attention over the keys that count"


def heads(ask, kv_heads):
    """Return the words for 4 heads of query and fewer of key and value."""
    query, key, value = inputs(heads=4, kv_heads=kv_heads)
    expected = ask.truth(query, *(np.repeat(one, 4 // kv_heads, 1) for one in (key, value)))
    answer = "refused"
    for words, flag in (("by itself", {}), ("with a flag", {"grouped": True})):
        try:
            if ask.has(*flag):
                answer = "other"
                if alike(ask(query, key, value, **flag), expected):
                    return words
        except RefusedError:  # the next form may run
            answer = "refused"
    return answer


@question("scores of float16 inputs")
def dtype_of_scores(ask):
    """Return the dtype: the scaled score is 100,000, which float16 lacks."""
    tensors = [np.full((1, 1, 4, HEAD_DIM), number, np.float16) for number in (160, 160, 1)]
    tensors[1][0, 0, 1:] = 0
    output = np.asarray(ask(*tensors), np.float32)
    return "float32" if np.isfinite(output).all() else "float16: 100,000 overflows"


@question("bits of a sequence alone and in a batch of 4")
def bits(ask):
    tensors = inputs(ask.tokens, ask.tokens, 4, 2)
    together = np.asarray(ask(*tensors))
    alone = np.asarray(ask(*(one[:1] for one in tensors)))
    return "same" if np.array_equal(together[:1], alone) else "differ"


@question("rotary pairs")
def rotary_pairs(ask):
    angles = np.arange(6)[:, None] * np.arange(1, HEAD_DIM // 2 + 1) / 10
    rows = np.zeros((1, 6, 1, HEAD_DIM), np.float32)
    rows[..., 0] = 1
    turned = np.asarray(called(ask.rotary, rows, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)))
    return "neighbours" if abs(turned[0, 1, 0, 1]) > 1e-3 else "halves"


QUESTIONS.update(
    {
        "causal, 3 queries and 7 keys": lambda ask: described(seen(ask, 3, 7, causal=True)),
        "causal, 5 queries and 3 keys": lambda ask: described(seen(ask, 5, 3, causal=True)),
        "the window, 3 queries and 7 keys": lambda ask: described(seen(ask, 3, 7, window=ask.window)),
        "a row that a boolean mask hides: value": lambda ask: row_that_sees_nothing(ask, mask=mask_without_row(ask)),
        "a row of -inf in a bias": lambda ask: row_that_sees_nothing(ask, bias=bias_without_row(-np.inf)),
        "a row of `finfo.min` in a bias": lambda ask: row_that_sees_nothing(
            ask, bias=bias_without_row(np.finfo(ask.dtype).min)
        ),
        "NaN in a value that causality hides": lambda ask: nan_that_is_hidden(ask, 2, causal=True),
        "NaN in a key that causality hides": lambda ask: nan_that_is_hidden(ask, 1, causal=True),
        "NaN in a value that a mask hides": lambda ask: nan_that_is_hidden(ask, 2, mask=mask_of_the_last_key(ask)),
        "NaN in a key that a mask hides": lambda ask: nan_that_is_hidden(ask, 1, mask=mask_of_the_last_key(ask)),
        "4 heads of query, 2 of key": lambda ask: heads(ask, 2),
        "4 heads of query, 1 of key": lambda ask: heads(ask, 1),
        "layout": lambda ask: f"`{ask.layout}`",
    }
)


def answers(column):
    """Return a cell for every question. Raise AssertionError if the column's plain attention is wrong."""
    cells = dict.fromkeys(QUESTIONS, column.rest)
    if column.stated:
        return cells | column.stated
    tensors = inputs()
    assert alike(column(*tensors), column.truth(*tensors)), "the column's program computes no attention"
    for title, function in QUESTIONS.items():
        try:
            cells[title] = function(column)
        except NotImplementedError:
            continue
        except RefusedError:
            cells[title] = "refused"
    return cells


def show(versions, **columns):
    """Print the columns as JSON."""
    print(json.dumps({name: {"version": versions, "cells": answers(one)} for name, one in columns.items()}))
