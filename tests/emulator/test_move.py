"""Moves between memories against byte-by-byte loops written from the documented formulas."""

from __future__ import annotations

import numpy as np
import pytest
from tikemu.errors import (
    TikAlignError,
    TikBoundsError,
    TikParamError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
    TikWarning,
)

from tests.emulator.core_bench import CoreBench as Bench
from tests.emulator.core_bench import check, recorded, touched

RNG = np.random.default_rng(7)


def half(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def bytes_of(dtype: str, count: int) -> np.ndarray:
    """Arbitrary bit patterns, NaNs and infinities among them."""
    return RNG.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)


def documented_move(dst: np.ndarray, src: np.ndarray, nburst, burst, src_stride, dst_stride) -> None:
    """core.md 4.1: bytes, gaps end to start."""
    for b in range(nburst):
        for k in range(burst * 32):
            dst[b * (burst + dst_stride) * 32 + k] = src[b * (burst + src_stride) * 32 + k]


PLAIN_PATHS = [
    ("GM", "UB", "MTE2"),
    ("UB", "GM", "MTE3"),
    ("UB", "UB", "V"),
    ("GM", "L1", "MTE2"),
    ("UB", "L1", "MTE3"),
    ("L1", "UB", "MTE1"),
]


@pytest.mark.parametrize("source,target,pipe", PLAIN_PATHS)
@pytest.mark.parametrize(
    "nburst,burst,src_stride,dst_stride", [(1, 1, 0, 0), (3, 2, 0, 0), (4, 1, 3, 0), (5, 2, 0, 1), (2, 7, 2, 5)]
)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32", "uint64"])
def test_data_move_copies_bursts(source, target, pipe, nburst, burst, src_stride, dst_stride, dtype):
    bench = Bench()
    count = 4096 // np.dtype(dtype).itemsize
    src = bench.tensor(source, dtype, count, bytes_of(dtype, count), name="src")
    dst = bench.tensor(target, dtype, count, bytes_of(dtype, count), name="dst")
    expected = bench.read(dst).view(np.uint8)
    documented_move(expected, bench.read(src).view(np.uint8), nburst, burst, src_stride, dst_stride)
    (op,) = bench.call("data_move", dst, src, 0, nburst, burst, src_stride, dst_stride)
    np.testing.assert_array_equal(bench.read(dst).view(np.uint8), expected)
    assert op.pipe == pipe
    moved = nburst * burst * 32
    assert len(touched(op.reads[0].region)) == len(touched(op.writes[0].region)) == moved
    if "GM" in (source, target):
        assert op.transfer.bursts * op.transfer.burst_bytes == moved
        assert op.transfer.direction == ("read" if source == "GM" else "write")


def test_data_move_footprints_are_exact():
    bench = Bench()
    src, dst = bench.tensor("UB", "float16", 512), bench.tensor("UB", "float16", 512)
    (op,) = bench.bind("data_move", bench.at(dst, 16), bench.at(src, 32), 0, 3, 2, 1, 4)
    assert set(touched(op.reads[0].region)) == {64 + b * 96 + k for b in range(3) for k in range(64)}
    assert set(touched(op.writes[0].region)) == {1024 + 32 + b * 192 + k for b in range(3) for k in range(64)}


def test_global_memory_is_addressed_by_element_and_other_memories_by_block():
    bench = Bench()
    gm = bench.tensor("GM", "float16", 64, np.arange(64))
    ub = bench.tensor("UB", "float16", 64)
    bench.call("data_move", ub, bench.at(gm, 5), 0, 1, 2, 0, 0)
    np.testing.assert_array_equal(bench.read(ub)[:32], np.arange(5, 37))
    for wrong in (bench.at(ub, 5), bench.at(bench.tensor("L1", "float16", 64), 5)):
        with pytest.raises(TikAlignError, match="multiple of 32 bytes"):
            bench.call("data_move", wrong, gm, 0, 1, 1, 0, 0)


@pytest.mark.parametrize("kind", ["GM", "UB", "L1"])
def test_data_move_stays_inside_its_tensor(kind):
    bench = Bench()
    tensor = bench.tensor(kind, "float16", 256, name="small")
    bench.tensor(kind, "float16", 256)  # bytes that follow in the same memory
    other = bench.tensor("UB", "float16", 512)
    bench.call("data_move", other, tensor, 0, 1, 16, 0, 0)
    with pytest.raises(TikBoundsError, match="'small', which has 512 bytes"):
        bench.call("data_move", other, tensor, 0, 1, 17, 0, 0)
    with pytest.raises(TikBoundsError, match="'small'"):
        bench.call("data_move", tensor, other, 0, 2, 8, 0, 1)


@pytest.mark.parametrize("kind", ["GM", "UB"])
def test_last_block_of_a_tensor_is_padding(kind):
    tail = np.arange(20)
    bench = Bench()
    src, ub = bench.tensor(kind, "float16", 20, tail, name="tail"), bench.tensor("UB", "float16", 64)
    with pytest.warns(TikWarning, match="only the padding of its allocation"):
        bench.call("data_move", ub, src, 0, 1, 2, 0, 0)
    np.testing.assert_array_equal(bench.read(ub)[:20], tail)
    with pytest.raises(TikBoundsError):
        bench.call("data_move", ub, src, 0, 1, 3, 0, 0)
    with pytest.raises(TikBoundsError):
        bench.call("data_move", ub, bench.at(src, 16), 0, 1, 2, 0, 0)
    strict = Bench(strict=True)
    with pytest.raises(TikBoundsError, match="padding"):
        strict.call(
            "data_move", strict.tensor("UB", "float16", 64), strict.tensor(kind, "float16", 20, tail), 0, 1, 2, 0, 0
        )


def test_run_time_zero_moves_nothing():
    bench = Bench()
    ub, gm = bench.tensor("UB", "float16", 64), bench.tensor("GM", "float16", 64)
    assert bench.bind("data_move", ub, gm, 0, 0, 1, 0, 0) == ()
    assert bench.bind("data_move", ub, gm, 0, 1, 0, 0, 0) == ()
    assert bench.bind("tensor_mov", ub, gm, "", 1, 0, 0, 0) == ()


@pytest.mark.parametrize(
    "argument,value",
    [
        ("nburst", 0),
        ("nburst", 4096),
        ("burst", 0),
        ("burst", 65536),
        ("src_stride", -1),
        ("src_stride", 65536),
        ("dst_stride", 65536),
        ("sid", 16),
        ("burst", 1.5),
    ],
)
def test_immediates_of_data_move_are_checked_at_the_call(argument, value):
    args = dict(
        zip(("dst", "src"), call_views("float16", "float16", "UB", "GM")),
        sid=0,
        nburst=1,
        burst=1,
        src_stride=0,
        dst_stride=0,
    )
    check("data_move", **args)
    with pytest.raises(TikParamError, match=argument):
        check("data_move", **{**args, argument: value})


def call_views(dst_dtype, src_dtype, target, source):
    return recorded(dst_dtype, target, "dst"), recorded(src_dtype, source, "src")


def test_plain_moves_keep_the_dtype():
    with pytest.raises(TikParamError, match="same dtype, got src float16, dst float32"):
        check("data_move", *call_views("float32", "float16", "UB", "GM"), 0, 1, 1, 0, 0)


@pytest.mark.parametrize(
    "target,source,reason",
    [
        ("GM", "L0C", "through the Unified Buffer"),
        ("L1", "L0C", "through the Unified Buffer"),
        ("UB", "L0A", "no such data path"),
        ("GM", "GM", "no such data path"),
        ("L0A", "UB", "no such data path"),
        ("L0C", "GM", "no such data path"),
    ],
)
def test_paths_that_do_not_exist_are_refused(target, source, reason):
    for name, rest in (("data_move", (0, 1, 1, 0, 0)), ("tensor_mov", ("m", 1, 1, 0, 0))):
        with pytest.raises(TikUnsupportedError, match=reason):
            check(name, *call_views("float32", "float32", target, source), *rest)


def test_tensor_mov_does_not_move_from_the_unified_buffer_to_l0c():
    with pytest.raises(TikUnsupportedError, match="broadcast_ub_to_l0c"):
        check("tensor_mov", *call_views("float32", "float32", "L0C", "UB"), "m", 1, 1, 0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_unified_buffer_to_l0c_counts_fractals(dtype):
    """The table of core.md 4.1: burst and dst_stride in fractals, src_stride in blocks; as matmul_dds_impl calls it."""
    assert not check("data_move", *call_views(dtype, dtype, "L0C", "UB"), 0, 1, 1, 0, 0, strict=True)
    bench = Bench()
    size = np.dtype(dtype).itemsize
    values = np.arange(2000).astype(dtype)
    ub, l0c = bench.tensor("UB", dtype, 2000, values), bench.tensor("L0C", dtype, 10 * 256)
    (op,) = bench.call("data_move", l0c, ub, 0, 3, 2, 1, 1)
    expected = np.zeros((10, 256), dtype)
    pitch = 2 * 256 + 32 // size
    for burst in range(3):
        expected[3 * burst : 3 * burst + 2] = values[burst * pitch : burst * pitch + 512].reshape(2, 256)
    np.testing.assert_array_equal(bench.read(l0c).reshape(10, 256), expected)
    assert op.pipe == "V"
    assert op.cycles == 3 * 2 * 256 * size / 256


def test_l1_to_global_memory_is_questionable():
    views = call_views("float16", "float16", "GM", "L1")
    assert len(check("data_move", *views, 0, 1, 1, 0, 0)) == 1
    with pytest.raises(TikUnsupportedError, match="no move from L1 to GM"):
        check("data_move", *views, 0, 1, 1, 0, 0, strict=True)
    bench = Bench()
    gm, l1 = bench.tensor("GM", "int8", 64), bench.tensor("L1", "int8", 64, np.arange(64))
    (op,) = bench.call("data_move", gm, l1, 0, 1, 2, 0, 0)
    np.testing.assert_array_equal(bench.read(gm), np.arange(64))
    assert op.pipe == "MTE3"


def test_overlapping_bursts_run_in_ascending_order():
    bench = Bench()
    ub = bench.tensor("UB", "int32", 64, np.arange(64))
    with pytest.warns(TikWarning, match="overlap"):
        bench.call("data_move", bench.at(ub, 8), ub, 0, 7, 1, 0, 0)
    np.testing.assert_array_equal(bench.read(ub), np.tile(np.arange(8), 8))  # each burst reads what the last one wrote
    bench.store(ub, np.arange(64))
    with pytest.warns(TikWarning, match="overlap"):
        bench.call("data_move", bench.at(ub, 8), ub, 0, 1, 7, 0, 0)
    np.testing.assert_array_equal(bench.read(ub)[8:], np.arange(56))  # one burst is read before it is written
    strict = Bench(strict=True)
    ub = strict.tensor("UB", "int32", 64, np.arange(64))
    strict.call("data_move", strict.at(ub, 32), ub, 0, 1, 4, 0, 0)
    with pytest.raises(TikParamError, match="overlap"):
        strict.call("data_move", strict.at(ub, 16), ub, 0, 1, 4, 0, 0)


def test_interleaved_bursts_do_not_overlap():
    bench = Bench(strict=True)
    ub = bench.tensor("UB", "int32", 128, np.arange(128))
    bench.call("data_move", bench.at(ub, 8), ub, 0, 8, 1, 1, 1)
    result = bench.read(ub).reshape(8, 2, 8)
    np.testing.assert_array_equal(result[:, 1], result[:, 0])


def test_strict_mode_copies_the_defined_bits():
    bench = Bench(strict=True)
    src = bench.tensor("UB", "float16", 64)
    bench.store(bench.at(src, 16, (16,)), half(16))
    gm, back = bench.tensor("GM", "float16", 64), bench.tensor("UB", "float16", 64)
    bench.call("data_move", gm, src, 0, 1, 4, 0, 0)
    bench.call("data_move", back, gm, 0, 1, 4, 0, 0)
    expected = (np.arange(64) // 16) == 1
    for tensor in (gm, back):
        np.testing.assert_array_equal(bench.defined(tensor), expected)


# --------------------------------------------------------------------------------------------------------- from L0C
EDGES = np.array(
    [
        0.5 + 2.0**-12,
        0.5 + 3 * 2.0**-12,
        65504,
        65519.996,
        65520,
        -1e30,
        np.inf,
        -np.inf,
        np.nan,
        2.0**-25,
        2.0**-24,
        3 * 2.0**-25,
        -0.0,
        1 + 2.0**-11,
        1 + 3 * 2.0**-11,
        0,
    ],
    np.float32,
)
# Ties to even, saturation, NaN to 0: worked out by hand.
EDGES_AS_HALF = np.array(
    [
        0.5,
        0.5 + 2.0**-10,
        65504,
        65504,
        65504,
        -65504,
        65504,
        -65504,
        0,
        0,
        2.0**-24,
        2.0**-23,
        -0.0,
        1,
        1 + 2.0**-9,
        0,
    ],
    np.float16,
)


def documented_matrix_move(dst, src, nburst, burst, src_stride, dst_stride, convert):
    """cube.md 8.1 'm': fractals of 256 elements; src_stride in fractals, dst_stride in blocks of 32 bytes."""
    size = dst.itemsize
    for b in range(nburst):
        for j in range(burst):
            s = (b * (burst + src_stride) + j) * 256
            d = (b * (burst * 256 * size + 32 * dst_stride) + j * 256 * size) // size
            dst[d : d + 256] = convert(src[s : s + 256])


def accumulator(bench, dtype, fractals):
    values = RNG.standard_normal(fractals * 256) * 100
    if dtype == "float32":
        values[:16] = EDGES
    return bench.tensor("L0C", dtype, fractals * 256, values.astype(dtype))


@pytest.mark.parametrize(
    "nburst,burst,src_stride,dst_stride", [(1, 1, 0, 0), (1, 6, 0, 0), (3, 2, 1, 0), (2, 3, 0, 4), (2, 1, 2, 3)]
)
@pytest.mark.parametrize(
    "source,target,options",
    [
        ("float32", "float32", {}),
        ("float16", "float16", {}),
        ("int32", "int32", {}),
        ("float32", "float16", {}),
        ("int32", "float16", {"deqscale": -0.37}),
        ("float16", "float16", {"deqscale": 3.0}),
        ("float32", "float32", {"relu": True}),
        ("float32", "float16", {"relu": True}),
        ("int32", "int32", {"relu": True}),
    ],
)
def test_tensor_mov_matrix_mode(nburst, burst, src_stride, dst_stride, source, target, options):
    bench = Bench()
    src = accumulator(bench, source, 10)
    dst = bench.tensor("UB", target, 10 * 256, np.full(2560, 7))

    def convert(values):
        if "deqscale" in options:
            return np.clip(values.astype(np.float64) * options["deqscale"], -65504, 65504).astype(np.float16)
        if source != target:
            values = np.clip(np.where(np.isnan(values), np.float32(0), values), -65504, 65504).astype(np.float16)
        if options.get("relu"):  # an operation, so it saturates: NaN to 0, infinity to the largest number
            values = np.minimum(np.where(values > 0, values, 0), np.finfo(np.float32).max).astype(target)
        return values

    expected = bench.read(dst)
    documented_matrix_move(expected, bench.read(src), nburst, burst, src_stride, dst_stride, convert)
    (op,) = bench.call("tensor_mov", dst, src, "m", nburst, burst, dst_stride, src_stride, **options)
    np.testing.assert_array_equal(bench.read(dst), expected)
    assert op.pipe == "V"
    assert op.cycles == nburst * burst * 256 * np.dtype(source).itemsize / 256
    assert len(touched(op.reads[0].region)) == nburst * burst * 256 * np.dtype(source).itemsize
    assert len(touched(op.writes[0].region)) == nburst * burst * 256 * np.dtype(target).itemsize


def test_conversion_rounds_to_even_and_saturates():
    bench = Bench()
    src, dst = accumulator(bench, "float32", 1), bench.tensor("UB", "float16", 256)
    bench.call("data_move", dst, src, 0, 1, 1, 0, 0, 1)
    np.testing.assert_array_equal(bench.read(dst)[:16], EDGES_AS_HALF)
    assert np.signbit(bench.read(dst)[12])


def test_plain_move_from_l0c_keeps_bit_patterns():
    bench = Bench()
    src, dst = accumulator(bench, "float32", 1), bench.tensor("UB", "float32", 256)
    for call in (("data_move", dst, src, 0, 1, 1, 0, 0), ("tensor_mov", dst, src, "m", 1, 1, 0, 0)):
        bench.store(dst, np.zeros(256))
        bench.call(*call)
        np.testing.assert_array_equal(bench.read(dst).view(np.uint32), bench.read(src).view(np.uint32))


@pytest.mark.parametrize(
    "source,target,extra",
    [("float32", "float32", ()), ("float16", "float16", ()), ("float32", "float16", (1,)), ("int32", "int32", ())],
)
def test_data_move_from_l0c_counts_fractals_and_takes_src_stride_first(source, target, extra):
    bench = Bench()
    src, dst = accumulator(bench, source, 8), bench.tensor("UB", target, 8 * 256, np.full(2048, 7))
    expected = bench.read(dst)
    documented_matrix_move(
        expected,
        bench.read(src),
        2,
        2,
        1,
        3,
        lambda values: values if source == target else np.nan_to_num(np.clip(values, -65504, 65504)).astype(np.float16),
    )
    bench.call("data_move", dst, src, 0, 2, 2, 1, 3, *extra)
    np.testing.assert_array_equal(bench.read(dst), expected)


def test_tensor_mov_vector_mode_packs_first_rows():
    bench = Bench()
    src, dst = accumulator(bench, "float32", 6), bench.tensor("UB", "float32", 128, np.full(128, 7))
    rows = bench.read(src).reshape(6, 16, 16)[:, 0]
    bench.call("tensor_mov", dst, src, "v", 6, 1, 0, 0)
    np.testing.assert_array_equal(bench.read(dst)[:96].reshape(6, 16), rows)
    bench.store(dst, np.full(128, 7))
    bench.call("tensor_mov", dst, src, "v", 3, 1, 1, 1)
    result = bench.read(dst)
    for b in range(3):
        np.testing.assert_array_equal(result[b * 24 : b * 24 + 16], rows[2 * b])
        assert (result[b * 24 + 16 : b * 24 + 24] == 7).all()
    with pytest.raises(TikUnsupportedError, match="burst 1 only"):
        bench.call("tensor_mov", dst, src, "v", 1, 2, 0, 0)


@pytest.mark.parametrize("source,target,pipe", PLAIN_PATHS)
def test_tensor_mov_normal_mode_takes_dst_stride_first(source, target, pipe):
    bench = Bench()
    src = bench.tensor(source, "int32", 512, np.arange(512))
    dst = bench.tensor(target, "int32", 512, np.full(512, -1))
    expected = bench.read(dst).view(np.uint8)
    documented_move(expected, bench.read(src).view(np.uint8), 3, 2, 1, 5)
    (op,) = bench.call("tensor_mov", dst, src, "", 3, 2, 5, 1)
    np.testing.assert_array_equal(bench.read(dst).view(np.uint8), expected)
    assert op.pipe == pipe


@pytest.mark.parametrize(
    "views,args,kwargs,reason",
    [
        (("float16", "int32", "UB", "L0C"), ("m", 1, 1, 0, 0), {}, "needs deqscale"),
        (("float16", "float32", "UB", "L0C"), ("m", 1, 1, 0, 0), {"deqscale": 1.0}, "deqscale converts"),
        (("int8", "int32", "UB", "L0C"), ("m", 1, 1, 0, 0), {}, "does not convert int32 to int8"),
        (("float16", "float32", "UB", "L0C"), ("sc", 1, 1, 0, 0), {}, "block_mode"),
        (("float16", "float16", "UB", "L0C"), ("", 1, 1, 0, 0), {}, "use 'm'"),
        (("float16", "float16", "UB", "GM"), ("m", 1, 1, 0, 0), {}, "moves from L0C to UB"),
        (("float16", "int32", "UB", "L0C"), ("m", 1, 1, 0, 0), {"deqscale": [1.0] * 16}, "deqscale"),
        (("float16", "int32", "UB", "L0C"), ("m", 1, 1, 0, 0), {"deqscale": 1.0, "relu": True}, "relu"),
        (("float16", "float32", "UB", "L0C"), ("m", 1, 1, 0, 0), {"sid_store_mode": 1}, "sid_store_mode"),
        (("float16", "float32", "UB", "L0C"), ("m", 1, 1, 0, 0), {"onthefly": 1}, "onthefly"),
        (("float16", "float16", "UB", "GM"), ("", 1, 1, 0, 0), {"relu": True}, "from L0C only"),
        (("float32", "float32", "UB", "L0C"), ("m", 1, 65536, 0, 0), {}, "burst"),
        (("float32", "float32", "UB", "L0C"), ("v", 1, 2, 0, 0), {}, "burst 1 only"),
    ],
)
def test_tensor_mov_refuses(views, args, kwargs, reason):
    with pytest.raises(TikParamError, match=reason):
        check("tensor_mov", *call_views(*views), *args, **kwargs)


@pytest.mark.parametrize("extra,reason", [((2,), "8th"), ((1, 1), "8th"), ((1,), "the 8th argument 1 converts")])
def test_data_move_refuses_extension_arguments(extra, reason):
    with pytest.raises(TikUnsupportedArgumentError, match=reason):
        check("data_move", *call_views("float16", "float16", "UB", "L0C"), 0, 1, 1, 0, 0, *extra)
    check("data_move", *call_views("float16", "float32", "UB", "L0C"), 0, 1, 1, 0, 0, 1)
    with pytest.raises(TikUnsupportedArgumentError, match="'deqscale'"):
        check("data_move", *call_views("float16", "float16", "UB", "L0C"), 0, 1, 1, 0, 0, deqscale=1.0)
    with pytest.raises(TikParamError, match="same dtype"):
        check("data_move", *call_views("float16", "float32", "UB", "L0C"), 0, 1, 1, 0, 0)


def test_moving_padding_out_of_l0c_keeps_it_undefined():
    bench = Bench(strict=True)
    src = bench.tensor("L0C", "float32", 256)
    bench.store(bench.at(src, 0, (4, 16), (16, 1)), np.ones((4, 16)))
    dst = bench.tensor("UB", "float16", 256)
    bench.call("tensor_mov", dst, src, "m", 1, 1, 0, 0)
    np.testing.assert_array_equal(bench.defined(dst), np.arange(256) < 64)


# -------------------------------------------------------------------------------------------------------- broadcast
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("nburst,burst_len,src_gap,dst_gap", [(1, 1, 0, 0), (1, 5, 0, 0), (3, 1, 1, 2), (2, 2, 3, 1)])
def test_broadcast_ub_to_l0c(dtype, nburst, burst_len, src_gap, dst_gap):
    bench = Bench()
    values = bytes_of(dtype, 256)
    src, dst = bench.tensor("UB", dtype, 256, values), bench.tensor("L0C", dtype, 12 * 256, np.full(3072, 7))
    expected = bench.read(dst)
    per_block = 32 // np.dtype(dtype).itemsize
    for b in range(nburst):
        for j in range(burst_len):
            first = b * (burst_len * 16 + src_gap * per_block) + j * 16
            fractal = (b * (burst_len + dst_gap) + j) * 256
            for row in range(16):
                expected[fractal + row * 16 : fractal + row * 16 + 16] = values[first : first + 16]
    (op,) = bench.call("broadcast_ub_to_l0c", dst, src, nburst, burst_len, src_gap, dst_gap)
    np.testing.assert_array_equal(bench.read(dst).view(np.uint8), expected.view(np.uint8))
    assert op.pipe == "V"
    assert op.cycles == nburst * burst_len * np.dtype(dtype).itemsize


def test_broadcast_bias_pattern_fills_a_row_of_fractals():
    """cube.md 8.3: for each m1, (l0c[m1*256:], bias, N1, 1, 0, M1-1) puts bias[n] into C[:, n]."""
    m1, n1 = 2, 3
    bench = Bench()
    bias = RNG.standard_normal(n1 * 16).astype(np.float32)
    src, dst = bench.tensor("UB", "float32", n1 * 16, bias), bench.tensor("L0C", "float32", n1 * m1 * 256)
    for i in range(m1):
        bench.call("broadcast_ub_to_l0c", bench.at(dst, i * 256), src, n1, 1, 0, m1 - 1)
    c = bench.read(dst).reshape(n1, m1 * 16, 16).transpose(1, 0, 2).reshape(m1 * 16, n1 * 16)
    np.testing.assert_array_equal(c, np.tile(bias, (m1 * 16, 1)))


def test_broadcast_is_checked():
    views = call_views("float32", "float32", "L0C", "UB")
    check("broadcast_ub_to_l0c", *views, 1, 1, 0, 0)
    with pytest.raises(TikParamError, match="nburst"):
        check("broadcast_ub_to_l0c", *views, 256, 1, 0, 0)
    with pytest.raises(TikParamError, match="same dtype"):
        check("broadcast_ub_to_l0c", *call_views("float32", "float16", "L0C", "UB"), 1, 1, 0, 0)
    bench = Bench()
    dst, src = bench.tensor("L0C", "float32", 512), bench.tensor("UB", "float32", 16)
    with pytest.raises(TikAlignError, match="1024"):
        bench.call("broadcast_ub_to_l0c", bench.at(dst, 128), src, 1, 1, 0, 0)
    with pytest.raises(TikBoundsError):
        bench.call("broadcast_ub_to_l0c", dst, src, 1, 2, 0, 0)


# -------------------------------------------------------------------------------------------------------- atomic add
def test_atomic_add_accumulates_float32_with_saturation():
    bench = Bench()
    start = np.array([1, 1e8, 3.4e38, -3.4e38, 2**24, 0, 0, 0], np.float32)
    add = np.array([2, 1, 3.4e38, -3.4e38, 1, -0.5, 0, 7], np.float32)
    gm, ub = bench.tensor("GM", "float32", 8, start), bench.tensor("UB", "float32", 8, add)
    for value in (1, "float32"):
        bench.store(gm, start)
        bench.call("set_atomic_add", value)
        (op,) = bench.call("data_move", gm, ub, 0, 1, 1, 0, 0)
        assert op.transfer.direction == "atomic"
        largest = np.finfo(np.float32).max
        np.testing.assert_array_equal(
            bench.read(gm), np.array([3, 100000001, largest, -largest, 2**24, -0.5, 0, 7], np.float32)
        )
    bench.call("set_atomic_add", 0)
    bench.call("data_move", gm, ub, 0, 1, 1, 0, 0)
    np.testing.assert_array_equal(bench.read(gm), add)


def test_atomic_add_concerns_moves_from_ub_to_global_memory_only():
    bench = Bench()
    bench.call("set_atomic_add", 1)
    ub = bench.tensor("UB", "float16", 16, np.ones(16))
    gm = bench.tensor("GM", "float16", 16, np.full(16, 2))
    bench.call("data_move", ub, gm, 0, 1, 1, 0, 0)
    np.testing.assert_array_equal(bench.read(ub), np.full(16, 2))
    with pytest.raises(TikUnsupportedError, match="float32 only, got float16"):
        bench.call("data_move", gm, ub, 0, 1, 1, 0, 0)
    for dtype in ("float16", "float32"):
        l1, target = bench.tensor("L1", dtype, 16, np.full(16, 5)), bench.tensor("GM", dtype, 16, np.full(16, 2))
        bench.call("data_move", target, l1, 0, 1, 1, 0, 0)
        np.testing.assert_array_equal(bench.read(target)[:8], np.full(8, 5))
    bench.call("set_atomic_add", 0)
    bench.call("data_move", gm, ub, 0, 1, 1, 0, 0)


@pytest.mark.parametrize("value", [2, "float16", "int32", 3, True])
def test_other_atomic_types_are_refused(value):
    with pytest.raises(TikUnsupportedError):
        check("set_atomic_add", value)


def test_strict_atomic_add_needs_defined_global_memory():
    bench = Bench(strict=True)
    bench.call("set_atomic_add", 1)
    ub = bench.tensor("UB", "float32", 8, np.ones(8))
    bench.call("data_move", bench.tensor("GM", "float32", 8, np.ones(8)), ub, 0, 1, 1, 0, 0)
    with pytest.raises(AssertionError, match="undefined"):
        bench.call("data_move", bench.tensor("GM", "float32", 8), ub, 0, 1, 1, 0, 0)
