"""Split batch and heads over devices, as strategies on primitives of a sharded graph.

strategy.py     how batch and heads of every tensor are split
shard.py        how the split gets from the layer to the primitives
"""

from flash_attention.sharding.strategy import DeviceGrid

__all__ = ["DeviceGrid"]
