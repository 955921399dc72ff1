"""Parts of the device process, without MindSpore."""

import csv
import json
import struct

import numpy as np
import pytest
from tikemu.soc import ASCEND_910A
from virtual_ascend.device import aicpu, by_name, channels, collectives, formats
from virtual_ascend.device.errors import KernelError, QueueEmpty, QueueFull
from virtual_ascend.device.memory import PAGE, Address, Memory
from virtual_ascend.device.numerics import STATUS, convert, notice_overflow
from virtual_ascend.device.report import AI_CORE, Report
from virtual_ascend.operator_call import OperatorCall


def described(shape, stored, kind, dtype="float16"):
    """Return a description as the compiler hands it on."""
    return {"ori_shape": shape, "shape": stored, "format": kind, "dtype": dtype}


@pytest.mark.parametrize(
    "shape, stored, kind",
    [
        ((20, 40), (3, 2, 16, 16), "FRACTAL_NZ"),
        ((16, 16), (1, 1, 16, 16), "FRACTAL_NZ"),
        ((2, 3, 17, 5), (2, 3, 1, 2, 16, 16), "FRACTAL_NZ"),
        ((2, 20, 3, 4), (2, 20, 3, 4), "NCHW"),
    ],
)
def test_formats_there_and_back(shape, stored, kind):
    plain = np.arange(np.prod(shape), dtype=np.float16).reshape(shape) + 1
    target = np.full(stored, np.nan, np.float16)
    formats.store(plain, target, described(shape, stored, kind))
    np.testing.assert_array_equal(formats.to_plain(target, described(shape, stored, kind)), plain)
    assert target.sum(dtype=np.float64) == plain.sum(dtype=np.float64)  # zero fills it up


def test_place_in_fractals():
    """Row 17, column 35 of a matrix lies in fractal column 2 and fractal row 1, there in row 1 and column 3."""
    plain = np.zeros((20, 40), np.float16)
    plain[17, 35] = 1
    target = np.empty((3, 2, 16, 16), np.float16)
    formats.store(plain, target, described((20, 40), target.shape, "FRACTAL_NZ"))
    assert np.argwhere(target).tolist() == [[2, 1, 1, 3]]


def test_an_unknown_format_is_refused():
    with pytest.raises(KernelError, match="FRACTAL_Z_3D"):
        formats.to_plain(np.zeros(4), described((4,), (4,), "FRACTAL_Z_3D"))


@pytest.mark.parametrize(
    "value, stored, overflow",
    [(65504, 65504, False), (65519, 65504, False), (65520, 65504, True), (-1e9, -65504, True), (np.nan, 0, False)],
)
def test_float16_saturates_and_sets_the_status(value, stored, overflow):
    STATUS.is_set = False
    assert convert(np.array([value], np.float32), np.dtype(np.float16))[0] == stored
    assert STATUS.is_set == overflow
    STATUS.is_set = False


@pytest.mark.parametrize("result, given, overflow", [(np.inf, 1, True), (np.inf, np.inf, False), (3, 1, False)])
def test_only_new_infinities_set_the_status(result, given, overflow):
    STATUS.is_set = False
    notice_overflow([np.array([1, result], np.float32)], [np.array([given], np.float32), np.array([7])])
    assert STATUS.is_set == overflow
    STATUS.is_set = False


def test_memory_is_fresh_by_page_and_bounded(tmp_path):
    with open(tmp_path / "memory", "w+b") as file:
        file.truncate(4 * PAGE + 4)
        memory = Memory(file.fileno(), 4 * PAGE, 4)
        array = memory.view(Address(PAGE, 400), np.dtype(np.float32), (100,), "kernel k, x")
        assert np.isnan(array).all()
        array[...] = 1
        again = memory.view(Address(PAGE + 200, 400), np.dtype(np.float32), (100,), "kernel k, x")
        assert (again[:50] == 1).all() and np.isnan(again[50:]).all()
        for address, reason in ((Address(PAGE, 396), "the block has 396"), (Address(0, 0), "there is none")):
            with pytest.raises(KernelError, match=f"kernel k, x: 400 bytes are outside .*{reason}"):
                memory.view(address, np.dtype(np.float32), (100,), "kernel k, x")


def field(number, value):
    """Return a field of a protocol buffer, shorter than 128 bytes."""
    if isinstance(value, int):
        return bytes([number * 8, value])
    return bytes([number * 8 + 2, len(value)]) + value


def test_definition_of_an_ai_cpu_kernel():
    shape = field(1, field(2, field(1, 3)) + field(2, field(1, 5)))
    rate = field(1, b"rate") + field(2, bytes([4 * 8 + 5]) + struct.pack("<f", 0.5))
    axis = field(1, b"dim") + field(2, bytes([3 * 8]) + b"\xff" * 9 + b"\x01")
    node = field(2, b"GatherD") + field(3, rate) + field(3, axis) + field(4, shape + field(2, 3)) + field(5, shape)
    kernel = aicpu.parse(node)
    assert (kernel.type, kernel.attributes) == ("GatherD", {"rate": 0.5, "dim": -1})
    assert [(one["shape"], one["dtype"]) for one in (*kernel.inputs, *kernel.outputs)] == [
        ([3, 5], "int32"),
        ([3, 5], "float32"),
    ]


def test_a_channel_gives_batches_in_order_and_is_bounded():
    described = b'{"channel": "data", "capacity": 2, "tensors": [{"dtype": 3, "shape": [2], "size": 8}]}\n'
    for first in (1, 3):
        channels.send(described + np.array([first, first + 1], np.int32).tobytes())
    with pytest.raises(QueueFull):
        channels.send(described + bytes(8))
    kernel = OperatorCall("next", "GetNext", "GetNext", [], [], {"channel_name": "data"})
    for first in (1, 3):
        assert [array.tolist() for array in channels.AICPU["GetNext"](kernel)] == [[first, first + 1]]
    with pytest.raises(QueueEmpty):
        channels.AICPU["GetNext"](kernel)


def test_a_report_is_a_table_and_a_trace(tmp_path, monkeypatch):
    """A product takes the Cube's peak or the bandwidth, whichever is longer; a TIK operator takes tikemu's time."""
    monkeypatch.setenv("VIRTUAL_ASCEND_SOC", "Ascend910A")
    sides = [described((1024, 1024), (1024, 1024), "ND")] * 2, [described((1024, 1024), (1024, 1024), "ND")]
    report = Report(tmp_path)
    report.note(OperatorCall("mat_mul_1", "MatMul", "mat_mul", *sides, {}), AI_CORE, 32)
    report.note(OperatorCall("ours_1", "Ours", "ours", *sides, {}), AI_CORE, 16, 2e-6)
    with open(tmp_path / "op_summary.csv") as file:
        first, second = csv.DictReader(file)
    assert (first["OP Type"], first["Block Dim"], first["Duration From"]) == ("MatMul", "32", "roofline")
    assert first["Input Shapes"] == "1024,1024;1024,1024" and first["Output Data Types"] == "FLOAT16"
    peak = ASCEND_910A.peak_f16_flops
    assert float(first["Task Duration(us)"]) == pytest.approx(1e6 * 2 * 1024**3 / peak, abs=1e-3)
    assert (second["Task Duration(us)"], second["Duration From"]) == ("2.000", "tikemu")
    assert second["Task Start Time(us)"] == first["Task Duration(us)"]
    row, one, two = json.loads((tmp_path / "trace.json").read_text().rstrip(",\n") + "]")
    assert (row["ph"], row["tid"], row["args"]["name"]) == ("M", 0, AI_CORE)
    assert [(event["name"], event["tid"]) for event in (one, two)] == [("MatMul", 0), ("Ours", 0)]
    assert two["ts"] == one["ts"] + one["dur"] and two["dur"] == pytest.approx(2)


@pytest.mark.parametrize(
    "kind, entry",
    [
        *(("GeluGrad", "gelu_grad"), ("TransposeD", "transpose_d"), ("Add", "add"), ("GatherV2", "gather_v2")),
        *(("L2Loss", "l2_loss"), ("GatherV2D", "gather_v2_d"), ("Relu6Grad", "relu6_grad")),
        ("LayerNormXBackpropV2", "layer_norm_x_backprop_v2"),
    ],
)
def test_entry_of_an_operator(kind, entry):
    assert by_name.entry_of(kind) == entry


def test_a_collective_without_room_for_what_it_gives_says_so(tmp_path):
    (tmp_path / "call.unfinished").symlink_to("/dev/full")
    call = collectives.Call("HcomBroadcast", 4, 4, 0, 0, 1, [0, 1], [], [], [], [], str(tmp_path / "call"), [])
    with pytest.raises(KernelError, match=rf"HcomBroadcast of 4 float32.* in {tmp_path}: No space left on device"):
        collectives.give(call, collectives.given(None, call, None))
