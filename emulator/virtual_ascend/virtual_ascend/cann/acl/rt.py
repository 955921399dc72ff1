"""Provide memory, streams and events of pyACL. Work is done when it is given; times are this computer's."""

import ctypes
import os
import time

from virtual_ascend.client import Card
from virtual_ascend.device.errors import KernelError
from virtual_ascend.operator_call import OperatorCall

import acl

_STATUS_BYTES = 64
_TO_DEVICE, _TO_HOST = 1, 2
_card = None
_kernels: dict[str, int] = {}


def card() -> Card:
    """Return the card of this process."""
    assert _card is not None, "acl.rt.set_device comes first"
    return _card


def set_device(device_id: int) -> int:
    """Stand in for aclrtSetDevice; a file that VIRTUAL_ASCEND_NODE names stands for /dev/davinci0."""
    global _card
    try:
        os.close(os.open(os.environ.get("VIRTUAL_ASCEND_NODE", os.devnull), os.O_RDWR))
    except OSError as error:
        return acl.fail(acl.DRIVER_ERROR, f"open of {error.filename} failed: {error.strerror}")
    _card = _card or Card()
    return acl.SUCCESS


def reset_device(device_id: int) -> int:
    """Stand in for aclrtResetDevice."""
    return acl.SUCCESS


def malloc(size: int, policy: int) -> tuple:
    """Stand in for aclrtMalloc."""
    address = card().allocate(size)
    if address is None:
        return 0, acl.fail(acl.OUT_OF_MEMORY, f"no room for {size} bytes")
    return address, acl.SUCCESS


def free(address: int) -> int:
    """Stand in for aclrtFree."""
    return acl.SUCCESS if card().free(address) else acl.fail(acl.INVALID_PARAMETER, "no block begins there")


def get_mem_info(attr: int) -> tuple:
    """Stand in for aclrtGetMemInfo."""
    total = card().size
    return total - sum(card().blocks.values()), total, acl.SUCCESS


def get_device_sat_mode() -> tuple:
    """Stand in for aclrtGetDeviceSatMode: the chip saturates."""
    return 0, acl.SUCCESS


def memcpy(dst: int, dest_max: int, src: int, count: int, kind: int) -> int:
    """Stand in for aclrtMemcpy, between the card and this process."""
    if count > dest_max or kind not in (_TO_DEVICE, _TO_HOST):
        return acl.fail(acl.INVALID_PARAMETER, f"memcpy: {count} bytes to {dest_max}, kind {kind}")
    try:
        there = card().view(dst if kind == _TO_DEVICE else src, count)
    except KernelError as error:
        return acl.fail(acl.INVALID_PARAMETER, str(error))
    if kind == _TO_DEVICE:
        ctypes.memmove(there.ctypes.data, src, count)
    else:
        ctypes.memmove(dst, there.ctypes.data, count)
    return acl.SUCCESS


def memset(dst: int, dest_max: int, value: int, count: int) -> int:
    """Stand in for aclrtMemset."""
    try:
        card().view(dst, count)[...] = value
    except KernelError as error:
        return acl.fail(acl.INVALID_PARAMETER, str(error))
    return acl.SUCCESS


def create_stream() -> tuple:
    """Stand in for aclrtCreateStream."""
    return acl.keep("stream"), acl.SUCCESS


def synchronize_stream(stream: int) -> int:
    """Stand in for aclrtSynchronizeStream."""
    return acl.SUCCESS


def create_event() -> tuple:
    """Stand in for aclrtCreateEvent."""
    return acl.keep([0.0]), acl.SUCCESS


def record_event(event: int, stream: int) -> int:
    """Stand in for aclrtRecordEvent."""
    acl.of(event)[0] = time.perf_counter()
    return acl.SUCCESS


def event_elapsed_time(start: int, end: int) -> tuple:
    """Stand in for aclrtEventElapsedTime, in milliseconds."""
    return (acl.of(end)[0] - acl.of(start)[0]) * 1e3, acl.SUCCESS


def get_overflow_status(address: int, size: int, stream: int) -> int:
    """Stand in for aclrtGetOverflowStatus."""
    shape = [_STATUS_BYTES // 4]
    output = {"shape": shape, "ori_shape": shape, "dtype": "float32", "format": "ND"}
    return _status("n_p_u_get_float_status_v2", [output], [address])


def reset_overflow_status(stream: int) -> int:
    """Stand in for aclrtResetOverflowStatus."""
    return _status("n_p_u_clear_float_status_v2", [], [])


def _status(function: str, outputs: list, addresses: list) -> int:
    if function not in _kernels:
        _kernels[function] = card().register(OperatorCall(function, function, function, [], outputs, {}))
    code, text = card().launch(_kernels[function], 1, addresses)
    return acl.fail(code, text) if code else acl.SUCCESS


destroy_event = destroy_stream = acl.drop
