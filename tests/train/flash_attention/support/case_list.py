"""The shared list of attention cases: every backend runs these."""

from __future__ import annotations

import functools
import itertools
import zlib
from dataclasses import fields, replace

from flash_attention.backends.tik.limits import refuse_on_910
from flash_attention.call import ALL_BLOCKS
from flash_attention.call.tiling import tiles_of

from tests.train.flash_attention.support.cases import VALUES, Case


def _core() -> list[Case]:
    """Return a few cases that between them touch everything, in every dtype."""
    shapes = [
        Case(batch=2, heads=4, kv_heads=2, seq_q=97, seq_k=150, head_dim=64, mask="compact", dropout=0.1),
        Case(batch=2, heads=3, kv_heads=1, seq_q=150, seq_k=97, head_dim=59, mask="3d", alibi="computed"),
        Case(seq_q=300, seq_k=300, head_dim=128, mask="causal", blocks=(1, ALL_BLOCKS), alibi="shared"),
        Case(batch=2, seq_q=64, seq_k=64, head_dim=80, mask="rows", dropout=0.5, alibi="given"),
    ]
    return [replace(case, dtype=dtype) for case in shapes for dtype in ("float16", "bfloat16", "float32")]


def _head_dims() -> list[Case]:
    """Return the head dimensions at and beside the borders of registers, blocks and fractals."""
    masks = itertools.cycle(("compact", "none", "3d", "causal"))
    dims = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 48, 59, 64, 80, 96, 111, 128, 129, 160, 192, 255, 256)
    return [Case(seq_q=70, seq_k=83, head_dim=dim, mask=next(masks)) for dim in dims]


def _lengths() -> list[Case]:
    """Return the lengths at and beside the borders of tiles, as rows and as keys."""
    lengths = ((1, 1), (1, 128), (128, 1), (1, 300), (2, 3), (8, 8), (15, 17), (16, 16), (17, 15), (63, 65), (97, 113))
    lengths += ((113, 97), (127, 129), (128, 128), (129, 127), (256, 384), (384, 256), (300, 77), (77, 300))
    masks = itertools.cycle(("compact", "none", "2d", "causal", "padding"))
    cases = [Case(seq_q=q, seq_k=k, head_dim=40, mask=next(masks)) for q, k in lengths]
    cases += [
        Case(seq_q=q, seq_k=k, mask=mask, alignment="bottom_right", alibi=alibi, window=window)
        for (q, k), mask, alibi, window in zip(
            ((1, 300), (97, 113), (300, 77), (128, 256), (200, 333)),
            ("causal", "compact", "causal", "3d", "none"),
            ("none", "computed", "computed", "none", "computed"),
            ((-1, -1), (20, -1), (-1, -1), (40, 40), (10, 0)),
        )
    ]
    cases += [
        Case(heads=1, kv_heads=1, seq_q=length, seq_k=length, head_dim=64, mask="causal", slow=True)
        for length in (1025, 2048)
    ]
    return cases


def _heads() -> list[Case]:
    """Return the groups of heads that share keys."""
    counts = ((1, 1), (4, 1), (4, 2), (4, 4), (6, 3), (6, 2), (5, 1), (8, 1), (12, 4))
    masks = itertools.cycle(("compact", "heads", "none"))
    alibis = itertools.cycle(("none", "computed", "given", "bias_all"))
    return [
        Case(batch=batch, heads=heads, kv_heads=kv_heads, seq_q=45, seq_k=61, mask=next(masks), alibi=next(alibis))
        for (heads, kv_heads), batch in zip(counts, itertools.cycle((2, 1, 3)))
    ]


def _products() -> list[Case]:
    """Return the product of mask kind, window, ALiBi and dropout."""
    masks = ("none", "causal", "compact", "compact2d", "3d", "rows", "padding")
    windows = (
        {},
        {"blocks": (1, 0), "tiling": "sparse_64"},
        {"blocks": (0, 1)},
        {"window": (40, 0)},
        {"window": (-1, 25), "blocks": (1, ALL_BLOCKS), "tiling": "sparse_64"},
    )
    alibis = ("none", "computed", "given", "bias")
    return [
        Case(batch=2, seq_q=140, seq_k=140, mask=mask, alibi=alibi, dropout=dropout, **window)
        for mask, window, alibi, dropout in itertools.product(masks, windows, alibis, (0.0, 0.2))
    ]


def _data() -> list[Case]:
    """Return cases with values out of the ordinary, and with every dtype of a mask."""
    values = [
        Case(batch=2, seq_q=130, seq_k=140, head_dim=64, mask=mask, values=value, dtype=dtype)
        for value in VALUES
        if value != "normal"
        for mask, dtype in (("compact", "float16"), ("3d", "bfloat16"), ("none", "float32"))
    ]
    mask_dtypes = [
        Case(batch=2, seq_q=60, seq_k=77, mask=mask, mask_dtype=dtype)
        for mask, dtype in (
            ("3d", "bool"),
            ("3d", "float16"),
            ("4d", "float32"),
            ("compact", "float16"),
            ("2d", "bool"),
            ("3d1", "bfloat16"),
            ("heads", "bool"),
            ("compact2d", "bool"),
        )
    ]
    others = [
        Case(batch=2, mask="all"),
        Case(batch=2, mask="all", dtype="float32", alibi="computed", dropout=0.3),
        Case(seq_q=128, seq_k=128, mask="compact"),  # compact and full shape at once
        Case(seq_q=64, seq_k=64, mask="2d", tiling="sparse_64"),
        Case(seq_q=300, seq_k=40, window=(10, 10)),  # rows past the keys see nothing
        # Six of seven rows see nothing: means must be taken over what is finite on both sides of the comparison.
        Case(heads=1, kv_heads=1, seq_q=7, seq_k=1, head_dim=6, mask="causal", alignment="bottom_right"),
        Case(seq_q=7, seq_k=1, head_dim=6, mask="causal", alignment="bottom_right", dtype="float32"),
        Case(seq_q=300, seq_k=100, blocks=(0, 0), dropout=0.1),
        # The first key of a tile is the first key that the last query row, an odd row, does not see.
        Case(seq_q=33, seq_k=150, mask="causal", dtype="bfloat16"),
        Case(seq_q=65, seq_k=140, window=(40, 9), dtype="bfloat16", dropout=0.1),
        Case(seq_q=69, seq_k=131, head_dim=33, blocks=(0, 0), mask="causal", tiling="sparse_64", dtype="bfloat16"),
        Case(scale=0.5),
        Case(scale=-0.25, mask="causal"),
        Case(scale=0.0, dtype="float32"),
        Case(dropout=0.999, dtype="float32"),
        Case(dropout=1e-6, dtype="float32"),
        Case(seq_q=520, seq_k=520, heads=1, kv_heads=1, blocks=(1, 1), mask="causal", dropout=0.1, slow=True),
        Case(batch=1, heads=3, kv_heads=3, seq_q=700, seq_k=700, mask="3d", alibi="computed", slow=True),
    ]
    return values + mask_dtypes + others


def _value_dims() -> list[Case]:
    """Return cases with values narrower or wider than keys, up to latent attention's widths."""
    widths = ((64, 32), (32, 64), (192, 128), (1, 256), (256, 1), (17, 40), (40, 33), (129, 65), (3, 7), (15, 16))
    masks = itertools.cycle(("compact", "none", "3d", "causal"))
    cases = [Case(seq_q=70, seq_k=83, head_dim=dim, value_dim=width, mask=next(masks)) for dim, width in widths]
    return cases + [
        Case(heads=4, kv_heads=1, seq_q=45, seq_k=61, head_dim=576, value_dim=512, mask="causal"),
        Case(seq_q=40, seq_k=140, head_dim=300, value_dim=260),
        Case(batch=2, heads=4, seq_q=140, seq_k=300, head_dim=48, value_dim=96, mask="3d", alibi="bias", dropout=0.2),
        Case(batch=2, seq_q=300, seq_k=140, head_dim=96, value_dim=24, mask="causal", window=(90, -1), softcap=3.0),
    ]


def _modifiers() -> list[Case]:
    """Return cases that change the scores, each with every dtype and beside the others."""
    cases = [
        Case(softcap=3.0, mask="causal", seq_q=140, seq_k=140),
        Case(softcap=0.5, seq_q=33, seq_k=150, head_dim=64, values="large"),
        Case(softcap=20.0, batch=2, heads=4, mask="3d", alibi="bias", dropout=0.2, values="large"),
        Case(softcap=5.0, batch=2, heads=3, kv_heads=1, mask="rows", alibi="computed", window=(40, 9), dropout=0.1),
        Case(softcap=50.0, batch=2, kv_heads=1, seq_q=70, seq_k=83, mask="compact", alibi="given"),
        Case(softcap=1e-3, values="constant"),
        Case(sinks=True, mask="causal", seq_q=140, seq_k=140),
        Case(sinks=True, batch=2, heads=4, kv_heads=2, mask="rows", alibi="given", dropout=0.3, values="large"),
        Case(sinks=True, batch=2, heads=3, kv_heads=1, seq_q=300, seq_k=70, window=(20, 3), softcap=4.0, alibi="bias"),
        Case(sinks=True, mask="all", alibi="computed"),
        Case(prefix=True, batch=3, mask="causal", seq_q=140, seq_k=140),
        Case(prefix=True, batch=3, mask="compact", seq_q=97, seq_k=300, alignment="bottom_right", alibi="computed"),
        Case(prefix=True, batch=2, heads=4, kv_heads=2, mask="causal", seq_q=300, seq_k=140, alibi="bias", dropout=0.2),
        Case(prefix=True, batch=2, mask="causal", alignment="bottom_right", seq_q=150, seq_k=40, sinks=True),
        Case(segments="documents", batch=2, mask="causal", seq_q=300, seq_k=300),
        Case(segments="documents", batch=2, heads=4, kv_heads=2, seq_q=140, seq_k=300, alibi="bias", dropout=0.2),
        Case(segments="documents", batch=2, seq_q=260, seq_k=260, window=(30, 5), alibi="computed", sinks=True),
        Case(segments="documents", batch=2, mask="causal", prefix=True, seq_q=140, seq_k=140, softcap=3.0),
        Case(
            segments="padding",
            batch=2,
            heads=4,
            kv_heads=2,
            mask="causal",
            prefix=True,
            seq_q=300,
            seq_k=140,
            dropout=0.2,
        ),
        Case(sinks=True, prefix=True, batch=2, mask="causal", seq_q=3, seq_k=300, value_dim=48, softcap=3.0),
        Case(segments="documents", batch=2, heads=4, kv_heads=2, seq_q=2, seq_k=300, sinks=True),
        Case(segments="shuffled", batch=2, mask="3d", seq_q=70, seq_k=140),
        Case(segments="padding", batch=2, seq_q=70, seq_k=140, value_dim=48),
        Case(softcap=1e4, values="outlier", head_dim=59),
    ]
    return [replace(case, dtype=dtype) for case in cases for dtype in ("float16", "bfloat16", "float32")]


def _slopes_and_hiding() -> list[Case]:
    """Return cases with the caller's slopes, and with biases that hide keys, in every dtype."""
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 37, "seq_k": 70, "head_dim": 24}
    end = {"alignment": "bottom_right"}
    cases = [
        Case(**sizes, alibi="slopes"),
        Case(**sizes, alibi="slopes_all", mask="causal", **end),
        Case(**sizes, alibi="slopes_all", window=(30, 9), softcap=4.0, **end),
        Case(batch=2, heads=4, kv_heads=2, seq_q=2, seq_k=150, alibi="slopes_all", mask="causal", **end),
        Case(seq_q=40, seq_k=50, alibi="hiding", mask="causal"),
        Case(seq_q=40, seq_k=50, alibi="bias_hiding", mask="3d"),
    ]
    return [replace(case, dtype=dtype) for case in cases for dtype in ("float16", "bfloat16", "float32")]


def _block_masks() -> list[Case]:
    """Return cases with block masks, in every dtype."""
    groups = {"batch": 2, "heads": 4, "kv_heads": 2}
    cases = [
        Case(block_mask="heads", **groups, mask="causal", seq_q=300, seq_k=300, density=0.3),
        Case(block_mask="items", tile=128, batch=2, seq_q=300, seq_k=140, dropout=0.2, alibi="bias"),
        Case(block_mask="all", **groups, seq_q=140, seq_k=333, alignment="bottom_right", alibi="computed", sinks=True),
        Case(block_mask="shared", tile=256, seq_q=300, seq_k=300, window=(100, 9), softcap=4.0),
        Case(block_mask="heads", seq_q=450, seq_k=450, density=0.05, head_dim=59),
        Case(block_mask="heads", tile=128, seq_q=260, seq_k=520, density=0.95, value_dim=48),
        Case(block_mask="all", batch=2, seq_q=200, seq_k=200, segments="documents"),
        Case(block_mask="heads", **groups, seq_q=300, seq_k=260, segments="shuffled", density=0.6),
        Case(block_mask="shared", batch=2, seq_q=200, seq_k=150, mask="3d", alibi="given"),
        Case(block_mask="shared", batch=2, seq_q=150, seq_k=200, mask="causal", prefix=True),
        Case(block_mask="all", **groups, seq_q=300, seq_k=260, mask="causal", prefix=True, segments="documents"),
        Case(block_mask="heads", **groups, seq_q=2, seq_k=400, sinks=True, draw=1),
        Case(block_mask="shared", tile=256, batch=2, seq_q=300, seq_k=64, density=0.95, alibi="given"),
    ]
    return [replace(case, dtype=dtype) for case in cases for dtype in ("float16", "bfloat16", "float32")]


def _rotated(cases: list[Case]) -> list[Case]:
    """Change the dtype from case to case, so that each axis meets each dtype."""
    dtypes = itertools.cycle(("float16", "float32", "bfloat16", "float32", "float16"))
    return [replace(case, dtype=next(dtypes)) for case in cases]


CASES: tuple[Case, ...] = tuple(
    dict.fromkeys(
        _core()
        + _rotated(_head_dims())
        + _rotated(_lengths())
        + _rotated(_heads())
        + _data()
        + _rotated(_products())
        + _rotated(_value_dims())
        + _modifiers()
        + _slopes_and_hiding()
        + _block_masks()
    )
)


_SIZES = {"batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "value_dim", "tile", "density", "draw"}
_NUMBERS = {"blocks", "window", "dropout", "scale", "softcap"}
_PLAIN = Case()


def rules_of(case: Case) -> set:
    """Return the rules and optional inputs that a case has."""
    found = {name for name in _NUMBERS | {"sinks", "prefix"} if getattr(case, name) != getattr(_PLAIN, name)}
    found |= {("mask", case.mask if case.mask in ("none", "causal") else "given"), ("alignment", case.alignment)}
    found |= {("alibi", word) for word in case.alibi.replace("_all", "").split("_")}
    found |= {("segments", case.segments != "none"), ("block_mask", case.block_mask != "none")}
    return found | {("groups", case.kv_heads != case.heads), ("value_dim", case.value_dim != 0)}


def values_of(case: Case) -> set:
    """Return the rules, the kind of every input, and the sizes' sides of their borders."""
    kinds = {field.name for field in fields(Case)} - _SIZES - _NUMBERS - {"dtype", "slow"}

    def length(name: str, tile: int, tiles: int) -> tuple:
        size = getattr(case, name)
        return name, "one" if size == 1 else size % 16 == 0, min(tiles, tiles_of(size, tile))

    found = {(name, getattr(case, name)) for name in kinds}
    return rules_of(case) | found | {length("seq_q", 128, 3), length("seq_k", 128, 3), length("head_dim", 64, 4)}


@functools.cache
def on_a_card(case: Case) -> bool:
    """Return True if a 910 takes the case."""
    return refuse_on_910(case.call) is None


def work_of(case: Case) -> int:
    """Return about how much work a case is."""
    return case.batch * case.heads * case.seq_q * case.seq_k * case.head_dim


def covering(features, cases, size=work_of) -> list:
    """Return cases that together have every feature of all cases: the smallest one of those with most that is new.

    A test in which a case takes seconds runs these every day. `features` is `rules_of` or a function like it.
    """
    left = {case: features(case) for case in cases}
    missing, chosen = set().union(*left.values()), []
    while missing:
        new = {case: len(found & missing) for case, found in left.items()}
        most = max(new.values())
        chosen.append(min((case for case in left if new[case] == most), key=size))
        missing -= left.pop(chosen[-1])
    return chosen


def in_float16(select=None) -> list[Case]:
    """Return the selected cases in float16, but for the long ones."""
    cases = dict.fromkeys(replace(case, dtype="float16") for case in CASES if not case.slow)
    return [case for case in cases if select is None or select(case)]


def rules_by_dtype(case: Case) -> set:
    """Return the rules of a case, each with its dtype. Kinds of mask and bias count as rules."""
    return {(case.dtype, rule) for rule in rules_of(case)} | {case.mask, case.mask_dtype, case.alibi, case.values}


def values_by_dtype(case: Case) -> set:
    """Return the values of a case, and its rules with its dtype."""
    return values_of(case) | rules_by_dtype(case)


def pairs_of(case: Case) -> set:
    """Return every pair of a case's values. Its dtype is one of them."""
    return set(itertools.combinations(sorted(map(str, values_of(case) | {case.dtype})), 2))


@functools.lru_cache
def chosen_by(features) -> frozenset:
    """Return cases that together have every feature of all cases but the slow ones."""
    return frozenset(covering(features, (case for case in CASES if not case.slow)))


def sample(case: Case, one_in: int) -> bool:
    """Return True for a fixed, evenly spread share of all cases."""
    return zlib.crc32(str(case).encode()) % one_in == 0


def params(select=None, dtype: str | None = None, everyday=None, asynchronous: int = 0) -> list:
    """Return the cases as pytest parameters with readable ids.

    Args:
        select: keeps the cases for which it is true; all by default.
        dtype: gives every case this dtype, for backends that have but one.
        everyday: cases for which it is false are marked slow; by default only long cases are slow.
        asynchronous: one case in so many is marked asynchronous; by default none.
    """
    import pytest

    chosen = [case if dtype is None else replace(case, dtype=dtype) for case in CASES]
    chosen = [case for case in dict.fromkeys(chosen) if select is None or select(case)]

    def marks(case: Case) -> list:
        slow = case.slow or not (everyday is None or everyday(case))
        background = asynchronous > 0 and sample(case, asynchronous)
        return [pytest.mark.slow] * slow + [pytest.mark.asynchronous] * background

    return [pytest.param(case, id=str(case), marks=marks(case)) for case in chosen]
