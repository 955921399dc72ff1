"""Kernels that several tests run, tensors to record, and the statements that are recorded."""

import contextlib
import warnings

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikWarning, tik
from tikemu.program import nodes

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@contextlib.contextmanager
def program(instance, count=8, dtype="int32", inputs=()):
    """Give a tensor to fill element by element, and store it afterwards."""
    target = instance.Tensor(dtype, (count,), tik.scope_gm, "target")
    out = instance.Tensor(dtype, (count,), tik.scope_ubuf, "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        yield out
        instance.data_move(target, out, 0, 1, count * np.dtype(dtype).itemsize // 32, 0, 0)
        instance.BuildCCE("kernel", list(inputs), [target])


def values(instance, feeds=None, **options):
    """Return the elements of the output "target" after a run."""
    return tikemu.run(instance, feeds or {}, options=Options(**options)).outputs["target"].tolist()


def tiled(instance, count, blocks=1, tiles=1, threads=1, compute=lambda ub: None):
    """Build a kernel that moves tiles in, computes on them, and moves them out."""
    x, y = (instance.Tensor("float16", (blocks * tiles * count,), tik.scope_gm, name) for name in "xy")
    with (
        instance.for_range(0, blocks, block_num=blocks) as block,
        instance.for_range(0, tiles, thread_num=threads) as tile,
    ):
        ub = instance.Tensor("float16", (count,), tik.scope_ubuf, "ub")
        start = (block * tiles + tile) * count
        instance.data_move(ub, x[start], 0, 1, count // 16, 0, 0)
        compute(ub)
        instance.data_move(y[start], ub, 0, 1, count // 16, 0, 0)
    instance.BuildCCE("tiled", [x], [y])
    return instance


def body(kernel):
    """Return the statements that a kernel has recorded."""
    return kernel._recorder.program.body.statements


def lines(kernel):
    """Return the recorded program without its head, unindented by one level."""
    return [line[4:] for line in str(kernel).splitlines()[1:]]


@pytest.fixture
def ub(kernel):
    """Make tensors in the Unified Buffer."""
    return lambda shape, dtype="float16", name="t": kernel.Tensor(dtype, shape, tik.scope_ubuf, name)


def offset(tensor):
    """Return the offset of a view as text."""
    return nodes.describe(tensor._node.offset)
