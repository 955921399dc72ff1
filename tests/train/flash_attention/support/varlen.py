"""Cases of packed sequences: each sequence has its own truth, whatever lies beside it.

    @pytest.mark.parametrize("case", varlen.params())
    def test_backend(case):
        actual = ...                # over all rows: (1, heads, tokens, width)
        varlen.check(case, actual)

This module needs NumPy and flash_attention.{call,reference,dropout.philox}, and no MindSpore.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from flash_attention import reference
from flash_attention.call import Call
from flash_attention.dropout import philox

from tests.train.flash_attention.support.arrays import bias_of_slopes, ends
from tests.train.flash_attention.support.case_list import covering, rules_of
from tests.train.flash_attention.support.cases import SEED, Case

# Sequences without queries, without keys, with one token, with more queries than keys, and with many of both. The last
# tile is not full.
QUERIES, KEYS = (5, 0, 130, 33, 1, 7, 270), (5, 4, 130, 40, 0, 300, 260)
OF_KEYS = ("d_key", "d_value")


@dataclass(frozen=True)
class VarlenCase(Case):
    """One call of packed sequences. Its data are the data of a call on all rows, with a prefix for each sequence."""

    queries: tuple = QUERIES
    keys: tuple = KEYS
    per_sequence: bool = False  # alibi "slopes": other slopes in each sequence
    given_bits: bool = False  # dropout by decisions that the caller gives

    def __post_init__(self):
        object.__setattr__(self, "seq_q", sum(self.queries))
        object.__setattr__(self, "seq_k", sum(self.keys))

    def __str__(self) -> str:
        return super().__str__() + "-sequences" * self.per_sequence + "-bits" * self.given_bits

    @functools.cached_property
    def call(self) -> Call:
        """Return the call on all rows as if they were one sequence."""
        fields = {} if self.bias is None else {"bias_shape": self.bias.shape, "bias_dtype": "float32"}
        return Call(
            *(1, self.heads, self.seq_q, self.seq_k, self.head_dim),
            kv_heads=self.kv_heads,
            value_dim=self.value_dim,
            dtype=self.dtype,
            rules=self.rules(),
            sinks=self.sinks,
            prefix=self.prefix,
            training=self.dropout > 0,
            **fields,
        )

    def rules(self):
        """Return the rules of the case; slopes and biases are tensors."""
        return replace(super().rules(), alibi=self.alibi == "computed")

    @functools.cached_property
    def bias(self) -> np.ndarray | None:
        """Return a bias that hides a key, per head ("given") or for all heads ("shared")."""
        if self.alibi not in ("given", "shared"):
            return None
        random = np.random.default_rng(5)
        bias = 2 * random.standard_normal((1, self.heads if self.alibi == "given" else 1, 1, self.seq_k))
        bias[..., 6] = -np.inf
        return reference.round_to(bias, "float16")

    @functools.cached_property
    def slopes(self) -> np.ndarray | None:
        """Return slopes unlike the standard ones, one of them below zero."""
        if self.alibi != "slopes":
            return None
        shape = (len(self.queries), self.heads) if self.per_sequence else (self.heads,)
        slopes = np.random.default_rng(6).uniform(0.01, 0.6, shape).astype(np.float32)
        slopes[..., 1] = -0.03
        return slopes

    @functools.cached_property
    def prefixes(self) -> np.ndarray | None:
        """Return the prefix of each sequence."""
        return np.random.default_rng(7).integers(0, np.array(self.keys) + 1).astype(np.int32) if self.prefix else None

    def keep_bits(self) -> list:
        """Return the keep decisions of each sequence with queries and keys."""
        return [philox.keep_bits(one, SEED) for one, *_ in self.sequences() if one is not None]

    def sequences(self):
        """Yield (call, rows of queries, rows of keys) of every sequence. The call is None if there is nothing to do."""
        bounds = [zip(ends(lengths), ends(lengths)[1:]) for lengths in (self.queries, self.keys)]
        for index, ((first, last), (first_key, last_key)) in enumerate(zip(*bounds)):
            one, size = None, {"seq_q": last - first, "seq_k": last_key - first_key}
            if all(size.values()):
                bias = self.call.bias_shape and (*self.call.bias_shape[:3], size["seq_k"])
                if self.slopes is not None:
                    bias = 1, self.heads, *size.values()
                dtype = "float32" if bias else None
                one = replace(self.call, **size, bias_shape=bias, bias_dtype=dtype, batch_offset=index)
            yield one, slice(first, last), slice(first_key, last_key)

    def inputs_of(self, index: int, one: Call, rows: slice, keys: slice) -> tuple[tuple, dict]:
        """Query, key and value of a sequence, and the other arguments of functions of `reference`."""
        data = self.inputs()
        given = {
            "d_output": data.d_output[:, :, rows],
            "d_logsumexp": data.d_logsumexp[:, :, rows],
            "sinks": data.sinks,
            "prefix": None if self.prefixes is None else self.prefixes[index : index + 1],
            "keep": reference.keep_mask(one, SEED) if self.dropout else None,
            "bias": None if self.bias is None else self.bias[..., keys],
        }
        if self.slopes is not None:
            slopes = self.slopes[index] if self.per_sequence else self.slopes
            given["bias"] = bias_of_slopes(slopes, one.seq_q, one.seq_k, one.offset)
        return (data.query[:, :, rows], data.key[:, :, keys], data.value[:, :, keys]), given


def check(case: VarlenCase, actual: reference.Attention, return_lse: bool = True) -> None:
    """Compare every sequence with the truth of its own call. Sequences without queries or keys have zeros."""
    data, d_sinks, allowed = case.inputs(), np.zeros(case.heads), 1e-6
    for index, (one, rows, keys) in enumerate(case.sequences()):
        own = {}
        for name, found in actual.named().items():
            if name != "d_sinks":
                own[name] = found[..., keys] if name == "d_bias" else found[:, :, keys if name in OF_KEYS else rows]
        if one is None:
            assert not any(found.any() for name, found in own.items() if name not in ("logsumexp", "d_bias")), index
            if rows.start < rows.stop:
                right = -np.inf if data.sinks is None else data.sinks[:, None]
                np.testing.assert_array_equal(own["logsumexp"][0], np.broadcast_to(right, own["logsumexp"][0].shape))
                d_sinks += data.d_logsumexp[0, :, rows].sum(1) * return_lse
            continue
        tensors, given = case.inputs_of(index, one, rows, keys)
        if not return_lse:
            given["d_logsumexp"] = None
        exact, low = (side(one, *tensors, **given) for side in (reference.truth, reference.baseline))
        errors = reference.compare(reference.Attention(**own, d_sinks=exact.d_sinks), exact, low)
        assert [str(error) for error in errors if not error.ok] == [], index
        if exact.d_sinks is not None:
            d_sinks, allowed = d_sinks + exact.d_sinks, allowed + errors[-1].allowed_max
    if actual.d_sinks is not None:
        np.testing.assert_allclose(actual.d_sinks, d_sinks, rtol=1e-6, atol=allowed)


def _cases() -> list[VarlenCase]:
    """Return the cases: rules, then inputs for each key, head or sequence, then sizes."""
    bottom = {"mask": "causal", "alignment": "bottom_right"}
    plain = {"heads": 2, "kv_heads": 1}
    wide = {"heads": 4, "kv_heads": 2, "head_dim": 24, "value_dim": 40, "dtype": "float32"}
    return [
        VarlenCase(heads=4, kv_heads=2, head_dim=64, mask="causal"),
        VarlenCase(**plain),
        *(VarlenCase(**{**wide, "dtype": dtype}, mask="causal") for dtype in ("float16", "bfloat16", "float32")),
        VarlenCase(**wide, **bottom),
        VarlenCase(**plain, window=(20, 3), alignment="bottom_right"),
        VarlenCase(**plain, window=(150, -1), mask="causal"),
        VarlenCase(**plain, window=(-1, 60)),
        VarlenCase(**plain, window=(140, 130)),
        VarlenCase(**plain, window=(0, 0)),
        VarlenCase(**wide, mask="causal", blocks=(1, 65536)),
        VarlenCase(**plain, alignment="bottom_right", alibi="computed"),
        VarlenCase(**plain, mask="causal", alibi="computed"),
        VarlenCase(**plain, window=(50, 200), alibi="computed"),
        VarlenCase(**wide, mask="causal", softcap=2.0, alibi="computed"),
        VarlenCase(**plain, **bottom, softcap=30.0),
        VarlenCase(**plain, **bottom, dropout=0.25),
        VarlenCase(**plain, window=(60, -1), dropout=0.5),
        VarlenCase(**wide, mask="causal", prefix=True, sinks=True, softcap=3.0),
        VarlenCase(**wide, **bottom, alibi="slopes"),
        VarlenCase(**wide, **bottom, alibi="slopes", per_sequence=True),
        VarlenCase(**wide, window=(4, 4), alibi="given"),
        VarlenCase(**wide, **bottom, alibi="shared"),
        VarlenCase(**wide, **bottom, dropout=0.375, given_bits=True),
        *(
            VarlenCase(**{**wide, "dtype": dtype}, **bottom, dropout=0.375, given_bits=True, alibi="given", sinks=True)
            for dtype in ("float16", "float32")
        ),
        VarlenCase(heads=1, kv_heads=1, mask="causal", head_dim=128),
        VarlenCase(**plain, **bottom, head_dim=256),
        VarlenCase(**plain, head_dim=16, alibi="computed", dropout=0.125, sinks=True, draw=2),
    ]


CASES: tuple[VarlenCase, ...] = tuple(_cases())


def params(select=None, costly: bool = False, **changes) -> list:
    """Return the cases as pytest parameters.

    Args:
        select: keeps the cases for which it is true; all by default.
        costly: marks cases slow whose rules other cases also have.
        changes: fields of every case.
    """
    import pytest

    chosen = dict.fromkeys(replace(case, **changes) for case in CASES if select is None or select(case))
    everyday = (
        covering(lambda case: {*rules_of(case), case.per_sequence, (case.dtype, case.bias is None)}, chosen)
        if costly
        else chosen
    )
    return [pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (case not in everyday)) for case in chosen]
