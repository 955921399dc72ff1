"""Scalars, views and multi-buffering, recorded by the front end and executed: the result is what C would give."""

from __future__ import annotations

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikBoundsError

from tests.emulator.support.element_kernel import tiled


class Probe:
    """A kernel that collects int64 scalars in a tensor; ``values`` runs it and returns them."""

    def __init__(self, size=64, dtype="int64"):
        self.kernel = tik.Tik()
        self.out = self.kernel.Tensor(dtype, (size,), tik.scope_gm, "out")
        self.data = self.kernel.Tensor(dtype, (size,), tik.scope_ubuf, "data")
        self.count = 0
        self.size, self.dtype = size, dtype

    def put(self, value):
        self.data[self.count].set_as(value)
        self.count += 1

    def values(self, inputs=(), options=None, **feed):
        blocks = self.size * np.dtype(self.dtype).itemsize // 32
        self.kernel.data_move(self.out, self.data, 0, 1, blocks, 0, 0)
        self.kernel.BuildCCE("probe", list(inputs), [self.out])
        return tikemu.run(self.kernel, feed, options=options).outputs["out"]


@pytest.fixture
def probe(soc):
    """Return a kernel whose run shows the values of expressions."""
    return Probe()


@pytest.mark.parametrize(
    "dtype, value, wrapped",
    [
        ("int8", 127, -128),
        ("uint8", 255, 0),
        ("int16", 32767, -32768),
        ("uint16", 65535, 0),
        ("int32", 2**31 - 1, -(2**31)),
        ("uint32", 2**32 - 1, 0),
        ("int64", 2**63 - 1, -(2**63)),
    ],
)
def test_scalars_wrap_to_their_width(probe, dtype, value, wrapped):
    start = probe.kernel.InputScalar(dtype, "start")
    s = probe.kernel.Scalar(dtype, init_value=start)
    s.set_as(s + 1)
    probe.put(s + 0 if dtype == "int64" else widened(probe.kernel, s))
    assert probe.values([start], start=value)[0] == wrapped


def widened(kernel, scalar):
    """Return a Scalar's value as int64."""
    wide = kernel.Scalar("int64")
    wide.set_as(scalar)
    return wide


def test_int32_expressions_wrap_before_they_are_widened(probe):
    n = probe.kernel.InputScalar("int32", "n")
    for value in (n * 65536 * 65536, n * 65536 * 32768, n - 1 - 2**31, (n << 30) << 2):
        probe.put(widened(probe.kernel, value))
    # The third holds an immediate that needs 64 bits.
    assert list(probe.values([n], n=1)[:4]) == [0, -(2**31), -(2**31), 0]


def test_unsigned_comparison_and_subtraction(probe):
    u, s = probe.kernel.InputScalar("uint32", "u"), probe.kernel.InputScalar("int32", "s")
    for condition in (u - 1 > 5, s - 1 > 5, u > s):
        with probe.kernel.if_scope(condition):
            probe.put(1)
        with probe.kernel.else_scope():
            probe.data[probe.count - 1].set_as(2)
    assert list(probe.values([u, s], u=0, s=0)[:3]) == [1, 2, 2]


def test_logic(probe):
    kernel = probe.kernel
    a, b = (kernel.InputScalar("int32", name) for name in "ab")
    conditions = (
        tik.all(a > 1, b > 1),
        tik.any(a > 1, b > 1),
        tik.negate(a > 1),
        tik.all(a, b),
        (a > 1) & (b > 1),
        (a > 1) | (b > 1),
        a == b,
        a != b,
        tik.negate(a),
    )
    for condition in conditions:
        with kernel.if_scope(condition):
            probe.put(1)
    assert list(probe.values([a, b], a=2, b=0)[: len(conditions)]) == [0, 1, 0, 0, 0, 1, 0, 1, 0]


def test_an_instruction_with_repeat_0_touches_nothing(soc):
    """A shipped operator ends its loop with such a call, one row behind its tensor."""
    for repeats in (0, 1):
        kernel = tik.Tik()
        n = kernel.InputScalar("int32", "n")
        data = kernel.Tensor("float32", (2, 64), tik.scope_ubuf, "data")
        with kernel.for_range(0, 2) as i:
            kernel.vec_dup(64, data[i + 1, 0], 0.0, (1 - i) + n, 8)
        kernel.BuildCCE("k", [n], [])
        if repeats == 0:
            tikemu.run(kernel, {"n": 0})
            continue
        with pytest.raises(TikBoundsError, match="'data'"):
            tikemu.run(kernel, {"n": 1})


def test_reinterpreted_and_reshaped_views_share_memory(soc):
    probe = Probe(64, "int32")
    kernel = probe.kernel
    kernel.vec_dup(64, probe.data, 0, 1, 8)
    halves = probe.data.reinterpret_cast_to("uint16")
    halves[3].set_as(1)
    grid = probe.data.reshape((8, 8))
    grid[2, 5].set_as(9)
    grid[3:4, :].reinterpret_cast_to("uint16")[0].set_as(5)
    values = probe.values()
    assert (values[1], values[21], values[24]) == (65536, 9, 5)


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 4])
def test_multi_buffering_changes_no_result(soc, threads):
    kernel = tik.Tik()
    tiled(kernel, 128, tiles=8, threads=threads, compute=lambda ub: kernel.vec_adds(128, ub, ub, 1.0, 1, 8, 8))
    values = np.arange(1024, dtype=np.float16)
    np.testing.assert_array_equal(tikemu.run(kernel, {"x": values}).outputs["y"], values + 1)
