"""Batch and heads split over devices, as strategies on the primitives of a graph that MindSpore shards.

strategy.py     how batch and heads of every tensor are split
shard.py        the way of that from the layer to the primitives
"""

from flash_attention.sharding.strategy import ShardPlan

__all__ = ["ShardPlan"]
