"""Lists of tiles in shards where MindSpore splits every operation: each device makes the lists of its own part."""

from __future__ import annotations

import numpy as np
import pytest
from flash_attention.backends.tik.unsplit import OwnPart, Unsplit
from flash_attention.kernels.tik import host_integers, operators
from flash_attention.sharding.shard import Shard
from flash_attention.sharding.strategy import DeviceGrid, axes_of
from mindspore import Tensor, nn

from tests.train.flash_attention.ut.tik.test_tile_lists import problem_and_mask, visits


class Lists(nn.Cell):
    def __init__(self, problem, stage, shard, axes):
        super().__init__()
        shape = problem.call.block_mask_shape
        self.part = OwnPart(shape, axes, shard)
        self.table = Unsplit(lambda xp: operators.list_table(xp, problem, stage), shape, shard)

    def construct(self, mask):
        return self.table(self.part(mask)[0])


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
        table = Lists(problem, stage, shard, axes)(Tensor(mask)).asnumpy()
        np.testing.assert_array_equal(table, operators.list_table(host_integers, problem, stage)(own))
        assert len(visits(problem, own, stage)) < len(visits(problem, np.ones_like(own), stage))
