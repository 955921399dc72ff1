"""Collectives on several cards: collective_programs.py MODE NAME...

It prints a line for each name: card, name, "right" or what is wrong. Each card knows the tensors of all cards, and
checks its own result with NumPy.
"""

import os
import sys
import time
import traceback
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init

try:
    from mindspore.ops.operations._inner_ops import Receive, Send
except ImportError:  # MindSpore 2.6
    from mindspore.ops import Receive, Send


class Net(nn.Cell):
    """A function of a collective and a tensor, as a network."""

    def __init__(self, operator, function):
        super().__init__()
        self.operator, self.function = operator, function

    def construct(self, x):
        return self.function(self.operator, x)


def between(operator, x):
    """Put a collective between two operators, so that its place in the order counts."""
    return operator(x + x) + 1


def at_the_end(operator, x):
    """Return a collective as the graph's result: only its end waits."""
    return operator(x + 0.5)


def of_a_tuple(operator, x):
    """Broadcast: the operator takes and gives a tuple."""
    return operator((x + x,))[0] + 1


def beside(operator, x):
    """Send; the output depends on it."""
    return ops.depend(x + 1, operator(x + x))


def before(operator, x):
    """Receive."""
    return operator(x) + 1


def tensors(shape, dtype):
    """Return the tensor of each card."""
    count = int(np.prod(shape))
    return [(np.arange(count).reshape(shape) % 7 + card + 1).astype(dtype) for card in range(get_group_size())]


def check(net, expected, shape=(6, 4), dtype=np.float32):
    """Run a collective twice, with other data, and compare it with `expected`. `expected` takes the tensors of all
    cards.
    """
    for call in range(2):
        given = [x + np.array(call, dtype) for x in tensors(shape, dtype)]
        result = net(Tensor(given[get_rank()])).asnumpy()
        np.testing.assert_array_equal(result, expected([x + x for x in given]) + np.array(1, dtype))


def all_reduce(operation, reduction, dtype):
    """Reduce over all cards."""
    check(Net(ops.AllReduce(operation), between), lambda given: reduction(given, axis=0).astype(dtype), dtype=dtype)


def all_gather():
    """Gather parts of all cards behind each other."""
    check(Net(ops.AllGather(), between), np.concatenate)


def reduce_scatter():
    """Scatter the sum: each card gets a part."""
    net = Net(ops.ReduceScatter(), between)
    check(net, lambda given: np.split(sum(given), len(given))[get_rank()], (12, 4), np.float16)


def broadcast():
    """Broadcast the tensor of the last card."""
    last = get_group_size() - 1
    check(Net(ops.Broadcast(last), of_a_tuple), lambda given: given[last])


def all_to_all():
    """Exchange columns of all cards: they stand below each other."""
    size = get_group_size()
    net = Net(ops.AlltoAll(size, 1, 0), between)
    check(net, lambda given: np.concatenate([np.split(x, size, 1)[get_rank()] for x in given]))


def send_receive():
    """Send from card 0 to the last one."""
    last, (first, *_) = get_group_size() - 1, tensors((6, 4), np.float32)
    if get_rank() == 0:
        sender = Net(Send(sr_tag=0, dest_rank=last), beside)
        np.testing.assert_array_equal(sender(Tensor(first)).asnumpy(), first + 1)
    if get_rank() == last:
        receiver = Net(Receive(sr_tag=0, src_rank=0, shape=[6, 4], dtype=ms.float32), before)
        result = receiver(Tensor(np.ones(1, np.float32))).asnumpy()
        np.testing.assert_array_equal(result, first + first + 1)


def last():
    """Sum, with nothing behind it."""
    check(Net(ops.AllReduce(), at_the_end), lambda given: sum(given) / 2 + 0.5 * len(given) - 1)


def group():
    """Group the even cards alone, and the odd ones."""
    members = list(range(get_rank() % 2, get_group_size(), 2))
    create_group(f"parity{get_rank() % 2}", members)
    name = f"parity{get_rank() % 2}"
    assert get_rank(name) == members.index(get_rank()) and get_group_size(name) == len(members)
    check(Net(ops.AllReduce(group=name), between), lambda given: sum(given[member] for member in members))


def ends():
    """End the last card while the others wait for it."""
    if get_rank() == get_group_size() - 1:
        os._exit(7)
    check(Net(ops.AllReduce(), between), sum)


def never():
    """Let the last card miss a call and wait until the others give up."""
    if get_rank() == get_group_size() - 1:
        patience = time.monotonic() + 60
        while time.monotonic() < patience and not Path(os.environ["VIRTUAL_ASCEND_EXCHANGE"], "ended-0").exists():
            time.sleep(0.1)
        return
    check(Net(ops.AllReduce(), between), sum)


def other():
    """Call something else on the last card."""
    last = get_rank() == get_group_size() - 1
    check(Net(ops.AllReduce(ops.ReduceOp.MAX if last else ops.ReduceOp.SUM), between), sum)


CASES = {
    "sum": lambda: all_reduce(ops.ReduceOp.SUM, np.sum, np.float32),
    "sum16": lambda: all_reduce(ops.ReduceOp.SUM, np.sum, np.float16),
    "max": lambda: all_reduce(ops.ReduceOp.MAX, np.max, np.float32),
    "min": lambda: all_reduce(ops.ReduceOp.MIN, np.min, np.int32),
    "prod": lambda: all_reduce(ops.ReduceOp.PROD, np.prod, np.float32),
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "send_receive": send_receive,
    "last": last,
    "group": group,
}
FAILURES = {"ends": ends, "never": never, "other": other}


if __name__ == "__main__":
    mode, *names = sys.argv[1:]
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, device_target="Ascend")
    init()
    assert (get_rank(), get_group_size()) == (int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"]))
    for name in names:
        try:
            {**CASES, **FAILURES}[name]()
            verdict = "right"
        except Exception as error:
            traceback.print_exc()
            verdict = " ".join(f"{type(error).__name__}: {error}".split())[:2000]
        print(get_rank(), name, verdict, sep="\t", flush=True)
