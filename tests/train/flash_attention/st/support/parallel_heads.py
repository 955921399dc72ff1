"""Compare heads split over processes by hand (mp) with all heads in one. A part of parallel_ring.py."""

import mindspore as ms
import numpy as np
from flash_attention.backends import registry
from flash_attention.call import AttentionRules, Call
from flash_attention.context_parallel.communication import Ring
from flash_attention.sharding import ShardPlan
from flash_attention.sharding.shard import TENSOR
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.shards import take


class _Results(nn.Cell):
    """Output and gradients of query, key and value."""

    def __init__(self, problem: Call):
        super().__init__()
        self.attention = registry.build(problem, "cpu")
        self.seed = Tensor([3, 5], ms.int64)

    def run(self, query, key, value, d_output) -> list:
        def attend(*tensors):
            return self.attention(*tensors, (self.seed,))[0]

        gradients = ops.GradOperation(get_all=True, sens_param=True)(attend)(query, key, value, d_output)
        return [attend(query, key, value), *gradients]


def check(rank: int, world: int) -> list:
    """Return the names of results that are not bitwise equal to one process's results."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    sizes = {"batch": 2, "heads": 8, "kv_heads": 4, "seq_q": 100, "seq_k": 100, "head_dim": 24, "dtype": "float32"}
    rules = AttentionRules(causal=True, alibi=True, dropout_rate=0.2)
    whole = Call(**sizes, training=True, rules=rules)
    random = np.random.default_rng(0)
    shapes = whole.shape_query(), whole.shape_key(), whole.shape_key(), whole.shape_query()
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    plan, ring = ShardPlan(1, world, world), Ring()
    parts = [Tensor(np.ascontiguousarray(take(plan, array, TENSOR, rank))) for array in arrays]
    wrong = []
    expected = _Results(whole).run(*map(Tensor, arrays))
    found = _Results(plan.local(whole, rank)).run(*parts)
    for name, part, full in zip(("output", "d_query", "d_key", "d_value"), found, expected):
        gathered = [ops.zeros_like(part) for _ in range(world)]
        ring.distributed.all_gather(gathered, part, group=ring.group)
        joined = np.concatenate([one.asnumpy() for one in gathered], axis=1)
        if not np.array_equal(joined, full.asnumpy()):
            wrong.append(name)
    return wrong
