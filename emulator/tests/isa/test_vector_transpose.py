"""Transposes and the proposal group against the naive interpreter and independent statements."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikError, TikParamError

from emulator.tests.support.bench import Bench, Runtime


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float16"])
def test_vec_trans(dtype):
    rng = np.random.default_rng(0)
    for repeats, dst_stride, src_stride in ((1, 0, 0), (1, 1, 1), (3, 1, 1), (2, 2, 0), (4, 1, 3)):
        bench = Bench()
        x = bench.ub(rng.integers(0, 1 << 16, 256 * 12).astype(np.uint16).view(dtype))
        y = bench.ub(np.zeros(256 * 12, dtype))
        bench.agree("vec_trans", y, x, repeats, dst_stride, src_stride)


def test_vtranspose_in_place(strict, bench):
    x = bench.ub(np.arange(256, dtype=np.float16))
    bench.agree("vtranspose", x, x)
    assert (x.values == np.arange(256).reshape(16, 16).T.reshape(-1)).all()
    y = bench.ub(np.zeros(272, np.float16))
    bench.refuses(TikError, "overlap partly", "vtranspose", y[16:], y)


def lists(tensor, step, count=16):
    """Return views of a tensor, ``step`` elements apart."""
    return [tensor[i * step] for i in range(count)]


@pytest.mark.parametrize("api", ["vec_trans_scatter", "vnchwconv"])
@pytest.mark.parametrize("dtype", ["int16", "uint16", "float16"])
def test_scatter_of_16_bit_rows(api, dtype):
    """A transpose of (16, n) to (n, 16) has dst_list[e][k] = src_list[k][e]; the high-half flags play no part."""
    rng = np.random.default_rng(0)
    for n in (16, 48, 160):
        for flags in ((False, False), (True, True)):
            bench = Bench()
            x = bench.ub(rng.integers(0, 1 << 16, 16 * n).astype(np.uint16).view(dtype))
            y = bench.ub(np.zeros(16 * n, dtype))
            strides = (0, 0) if n == 16 else (16, 1)
            bench.agree(api, *flags, lists(y, 16), lists(x, n), n // 16, *strides)
            assert (y.values.view(np.uint16) == x.values.view(np.uint16).reshape(16, n).T.reshape(-1)).all()


def test_scatter_through_unordered_lists(bench):
    rng = np.random.default_rng(1)
    x, y = bench.ub(rng.standard_normal(2048).astype(np.float16)), bench.ub(np.zeros(2048, np.float16))
    to, at = rng.permutation(64)[:16], rng.permutation(64)[:16]
    bench.agree("vnchwconv", False, False, [y[int(i) * 16] for i in to], [x[int(i) * 16] for i in at], 2, 64, 64)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("dst_high", "src_high"), [(False, False), (False, True), (True, False), (True, True)])
def test_scatter_of_bytes(bench, dtype, dst_high, src_high):
    """The flags pick a half of each 32-byte block; the other half of the destination keeps its content."""
    rng = np.random.default_rng(2)
    x = bench.ub(rng.integers(0, 256, 32 * 32).astype(np.uint8).view(dtype))
    y = bench.ub(np.full(32 * 32, 77, np.uint8).view(dtype))
    bench.agree("vnchwconv", dst_high, src_high, lists(y, 32), lists(x, 32), 2, 16, 16)


def test_scatter_applies_the_stride_once_with_one_repeat():
    """Documented twice: with repeat_times 1 the lists are shifted by one stride; with 2 the first repeat is not."""
    x = np.arange(32 * 16, dtype=np.float16)
    for repeats, first in ((1, 16), (2, 0)):
        bench = Bench()
        source, y = bench.ub(x), bench.ub(np.full(32 * 16, -1, np.float16))
        bench.call("vnchwconv", False, False, lists(y, 16), lists(source, 16), repeats, 16, 16)
        rows = y.values.reshape(32, 16)
        assert (rows[first : first + 16] == x.reshape(32, 16)[first : first + 16].T).all()
        assert (rows[:first] == -1).all()


def test_scatter_with_no_repeat_does_nothing(bench):
    x, y = bench.ub(np.ones(256, np.float16)), bench.ub(np.zeros(256, np.float16))
    assert bench.call("vnchwconv", False, False, lists(y, 16), lists(x, 16), 0, 0, 0) == ()
    assert bench.call("vnchwconv", False, False, lists(y, 16), lists(x, 16), Runtime(0), 0, 0) == ()


def test_blocks_of_a_scatter_are_aligned(bench):
    x, y = bench.ub(np.ones(512, np.float16)), bench.ub(np.zeros(512, np.float16))
    bench.refuses(TikAlignError, r"src_list\[1\]", "vnchwconv", False, False, lists(y, 16), lists(x, 8), 1, 0, 0)


def test_scatter_overlap():
    for strict in (False, True):
        bench = Bench(strict=strict)
        x = bench.ub(np.arange(1024, dtype=np.float16))
        bench.call("vnchwconv", False, False, lists(x, 16), lists(x, 16), 1, 0, 0)  # in place
        assert (x.values[:256] == np.arange(256).reshape(16, 16).T.reshape(-1)).all()
        call = ("vnchwconv", False, False, lists(x[256:], 16), lists(x, 16), 2, 16, 16)
        if strict:
            bench.refuses(TikParamError, "a later repeat reads from src_list", *call)
        else:
            bench.warns("a later repeat reads from src_list", *call)
            # the second repeat transposed the result of the first
            assert (x.values[512:768] == np.arange(256).reshape(16, 16).T.reshape(-1)).all()


# ------------------------------------------------------------------------------------------- proposals
def proposals(rng, count):
    """Return random region proposals of 8 elements."""
    return rng.integers(-8, 8, (count, 8)).astype(np.float16)


@pytest.mark.parametrize("field", range(6))
def test_concat_and_extract(bench, field):
    rng = np.random.default_rng(field)
    before = proposals(rng, 48)
    p, v = bench.ub(before), bench.ub(rng.standard_normal(48).astype(np.float16))
    out = bench.ub(np.zeros(48, np.float16))
    bench.call("vconcat", p, v, 3, field)
    expected = before.copy()
    expected[:, field] = v.values
    assert (p.values.reshape(48, 8) == expected).all()
    bench.call("vextract", out, p, 3, field)
    assert (out.values == v.values).all()


def test_keywords_of_a_field(bench):
    p, v = bench.ub(np.zeros(128, np.float16)), bench.ub(np.ones(16, np.float16))
    bench.call("vconcat", dst_proposals=p, src_vec=v, repeat=1, mode=4)
    assert (p.values.reshape(16, 8)[:, 4] == 1).all()


def test_sort_of_sixteen_is_stable(bench):
    rng = np.random.default_rng(3)
    data = proposals(rng, 64)
    x, y = bench.ub(data), bench.ub(np.zeros(512, np.float16))
    bench.call("vrpsort16", y, x, 4)
    expected = np.concatenate([np.array(sorted(group, key=lambda p: -p[4])) for group in data.reshape(4, 16, 8)])
    assert (y.values.reshape(64, 8) == expected).all()


def naive_merge(queues, suspend):
    """Merge queues, largest head first and the lower queue on ties. Stop when a queue runs out (suspend) or all do."""
    queues, out = [list(queue) for queue in queues], []
    while any(queues) and not (suspend and not all(queues)):
        best = max((i for i, queue in enumerate(queues) if queue), key=lambda i: (queues[i][0][4], -i))
        out.append(queues[best].pop(0))
    return out


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("valid", ["1111", "0111", "0011", 15, 7, 3])
@pytest.mark.parametrize("ordered", [True, False], ids=["descending", "unsorted"])
def test_merge(suspend, valid, ordered):
    count = {15: 4, 7: 3, 3: 2}[int(valid, 2) if isinstance(valid, str) else valid]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        lengths = [int(n) for n in rng.integers(1, 20, 4)]
        bench = Bench()
        data = [proposals(rng, n) for n in lengths]
        if ordered:
            data = [queue[np.argsort(-queue[:, 4], kind="stable")] for queue in data]
        queues = [bench.ub(queue) for queue in data]
        y = bench.ub(np.full(8 * sum(lengths), 99, np.float16))
        bench.call("vmrgsort4", y, queues, lengths, suspend, valid, 1)
        expected = naive_merge([list(queue) for queue in data[:count]], suspend)
        rows = y.values.reshape(-1, 8)
        assert (rows[: len(expected)] == np.array(expected)).all()
        assert (rows[len(expected) :] == 99).all()


def test_merge_repeated(bench):
    rng = np.random.default_rng(7)
    data = proposals(rng, 3 * 64).reshape(12, 16, 8)
    data = np.stack([queue[np.argsort(-queue[:, 4], kind="stable")] for queue in data])
    x, y = bench.ub(data), bench.ub(np.zeros(3 * 64 * 8, np.float16))
    queues = [x[i * 128] for i in range(4)]
    bench.call("vmrgsort4", y, queues, 16, False, "1111", 3)
    expected = [naive_merge([list(q) for q in data[4 * r : 4 * r + 4]], False) for r in range(3)]
    assert (y.values.reshape(3, 64, 8) == np.array(expected)).all()
    bench.refuses(TikParamError, "needs four contiguous queues", "vmrgsort4", y, queues[::-1], 16, False, "1111", 2)


def test_a_merge_stays_inside_its_queues(bench):
    x, y = bench.ub(np.zeros(512, np.float16)), bench.ub(np.zeros(512, np.float16))
    bench.refuses(TikBoundsError, "src_list", "vmrgsort4", y, [x[i * 128] for i in range(4)], 16, False, 15, 255)
