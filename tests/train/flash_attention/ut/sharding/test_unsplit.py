"""Lists of tiles in shards where MindSpore splits every operation: each device makes the lists of its own part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flash_attention.backends.tik.unsplit import OwnParts, Unsplit
from flash_attention.kernels.tik import describe, host_integers, operators
from flash_attention.kernels.tik.common import segments
from flash_attention.sharding.shard import Shard
from flash_attention.sharding.strategy import DeviceGrid, axes_of
from mindspore import Tensor, nn

from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.tik.test_tile_lists import problem_and_mask, visits


class OfParts(nn.Cell):
    def __init__(self, make, shapes, axes, shard):
        super().__init__()
        self.parts, self.results = OwnParts(shapes, axes, shard), Unsplit(make, shapes, shard)

    def construct(self, *tensors):
        return self.results(*self.parts(*tensors))


@pytest.mark.parametrize("stage", ("forward", "grad"))
@pytest.mark.parametrize("planes", ((1, 1), (2, 1), (1, 4), (2, 4)))
def test_a_device_lists_the_tiles_of_its_part(planes, stage):
    _, mask = problem_and_mask(64, planes, heads=4, batch=2)
    grid = DeviceGrid(2, 2, 4)
    axes = axes_of(mask.shape)
    for rank in range(4):
        shard = Shard(grid, rank, block_axes=axes)
        own = shard.part(mask, axes)
        problem, _ = problem_and_mask(64, own.shape[:2], batch=1, heads=2)
        lists = OfParts(lambda xp: operators.list_table(xp, problem, stage), (own.shape,), (axes,), shard)  # noqa: B023
        table = lists(Tensor(mask)).asnumpy()
        np.testing.assert_array_equal(table, operators.list_table(host_integers, problem, stage)(own))
        assert len(visits(problem, own, stage)) < len(visits(problem, np.ones_like(own), stage))


_PREFIX = {"prefix": True, "mask": "causal"}


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("fields", ({"segments": "documents"}, _PREFIX, {"segments": "documents", **_PREFIX}))
def test_a_device_compares_ids_and_prefixes_of_its_part(fields, masked):
    """With a block mask of each item and head, the states are of the part's heads."""
    random, planes = np.random.default_rng(1), (2, 4, 3, 3)
    case = Case(batch=2, heads=4, kv_heads=4, seq_q=140, seq_k=140, dtype="float16", **fields)
    sizes = [(2,)] * case.prefix + [(2, 140)] * 2 * case.call.segments
    whole = [random.integers(-1, 9, size).astype(np.int32) * 20 for size in sizes]
    axes = [("dp", None)[: len(size)] for size in sizes]
    more = {"block_mask_shape": planes, "block_mask_tile": 64} if masked else {}
    if masked:
        whole.append(random.integers(0, 2, planes).astype(np.uint8))
        axes.append(axes_of(planes))
    grid = DeviceGrid(2, 2, 4)
    for rank in range(4):
        shard = Shard(grid, rank)
        problem = describe.kernel_problem(grid.local(replace(case.call, **more), rank))
        own = [shard.part(array, one).astype(np.int32) for array, one in zip(whole, axes)]
        shapes = tuple(array.shape for array in own)
        found = OfParts(lambda xp: segments.numbers(xp, problem), shapes, axes, shard)(*map(Tensor, whole))  # noqa: B023
        for one, right in zip(found, segments.numbers(host_integers, problem)(*own)):
            np.testing.assert_array_equal(one.asnumpy(), right)
