"""Read how MindSpore shards the graph being compiled."""

from __future__ import annotations

from mindspore.parallel import _utils


def place_in_stage() -> tuple[int, int] | None:
    """Return the devices of the pipeline stage and this device's place, None without shards."""
    if not _utils._is_in_auto_parallel_mode():
        return None
    devices = _utils._get_stage_device_num()
    return devices, _utils._get_global_rank() % devices
