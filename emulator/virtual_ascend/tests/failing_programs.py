"""Fail on the card and print the exception that reaches the program: failing_programs.py FAILURE."""

import os
import signal
import sys
import threading
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model


def custom(function):
    """Return an operator in TIK of this folder, on 256 numbers."""
    from mindspore.ops import CustomRegOp, DataType, custom_info_register

    info = (
        CustomRegOp(function.__name__)
        .input(0, "x")
        .output(0, "y")
        .dtype_format(DataType.F16_Default, DataType.F16_Default)
    )
    registered = custom_info_register(info.target("Ascend").get_op_info())(function)
    return ops.Custom(registered, out_shape=lambda x: x, out_dtype=lambda x: x, func_type="tbe")


def run(name):
    """Make an operator in TIK, by its name."""
    import tik_entries

    x = Tensor(np.arange(256, dtype=np.float16))
    print("result", custom(getattr(tik_entries, name))(x).asnumpy()[:3])


def device_process():
    """Return the id of the device process."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    (device,) = (pid for pid in children if b"virtual_ascend.device" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(device)


def endless():
    """Reach the normal end of the program while a kernel runs that never ends."""
    import tik_entries

    ms.set_context(op_timeout=3)
    custom(tik_entries.endless)(Tensor(np.ones(256, np.float16)))
    print("at the end")


def killed():
    """Remove the device process between two operators."""
    x = Tensor(np.ones(4, np.float32))
    print("first", ops.add(x, x).asnumpy()[0])
    os.kill(device_process(), signal.SIGKILL)
    print("second", ops.add(x, x).asnumpy()[0])


def killed_at_work():
    """Kill the device process while it runs an operator."""
    import tik_entries

    x, operator = Tensor(np.ones(32 * 4096, np.float16)), custom(tik_entries.many_blocks)
    print("first", operator(x).asnumpy()[0])
    threading.Timer(0.5, os.kill, (device_process(), signal.SIGKILL)).start()
    for _ in range(100):
        x = operator(x)
    print("last", x.asnumpy()[0])


def train(epochs, rows, size=None, sink_size=-1):
    """Train on a sunk dataset of ``rows``, which says that it has ``size`` of them."""
    ms.set_context(mode=ms.GRAPH_MODE)
    network = nn.Dense(4, 4)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    data = ms.dataset.GeneratorDataset(lambda: iter(rows), ["x", "y"]).batch(1)
    data.dataset_size = size
    model.train(epochs, data, dataset_sink_mode=True, sink_size=sink_size)
    print("trained")


def data_end():
    """Give a sunk dataset fewer batches than it says."""
    train(2, [(np.ones(4, np.float32), np.ones(4, np.float32))] * 2, size=4, sink_size=4)


def no_data():
    """Give an empty sunk dataset."""
    train(1, [])


def memory():
    """Take more than the card has."""
    parts = [Tensor(np.zeros((64, 2**20), np.float32)) for _ in range(2)]
    print("sum", ops.add(*parts).asnumpy()[0, 0])


def missing():
    """Run an operator that the virtual card does not have."""
    print("result", ops.cholesky(Tensor(np.eye(3, dtype=np.float32))).asnumpy()[0])


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend")
    chosen = {
        function.__name__: function
        for function in (killed, killed_at_work, memory, missing, data_end, no_data, endless)
    }
    try:
        chosen[sys.argv[1]]() if sys.argv[1] in chosen else run(sys.argv[1])
    except Exception as error:
        print(type(error).__name__, str(error))
