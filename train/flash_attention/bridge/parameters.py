"""Pass arguments of Python programs to compiled Cells, in GRAPH mode or by `mindspore.jit`.

MindSpore 2.0 confuses Parameters that are arguments of a compiled Cell or function. The numbers of the Parameter in a
second call overwrite the numbers of the Parameter in the first
(tests/train/flash_attention/st/mindspore_faults/parameter_arguments.py). In a tuple all releases refuse a Parameter,
and take a Tensor for a constant, so that they compile anew for each other Tensor. Parameters that a graph reads from
the Cell around it have no such fault, and PYNATIVE has none.
"""

from __future__ import annotations

import functools

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from flash_attention.bridge.seeds import tracing
from flash_attention.bridge.versions import OLD, VERSION


class EntryCell(nn.Cell):
    """A Cell that Python programs call in GRAPH mode too. Inside of graphs it is a Cell as any other."""

    def __call__(self, *arguments, **named):
        # A compiled graph contains `construct` instead.
        if ms.get_context("mode") != ms.GRAPH_MODE:
            return super().__call__(*arguments, **named)
        sizes = tuple(len(one) if _holds_tensors(one) else -1 for one in arguments)
        flat = []
        for one, size in zip(arguments, sizes):
            flat.extend(one if size >= 0 else (one,))
        confused = OLD and any(isinstance(one, Parameter) for one in (*flat, *named.values()))
        # To a function that is being traced, the result of a compiled Cell is a constant.
        if (confused or tracing()) and _may_switch():
            ms.set_context(mode=ms.PYNATIVE_MODE)
            try:
                return super().__call__(*arguments, **named)
            finally:
                ms.set_context(mode=ms.GRAPH_MODE)
        if named or max(sizes, default=-1) < 0:
            return super().__call__(*arguments, **named)
        return _unpacked(self, sizes)(*flat)


class Compiled(nn.Cell):
    """Call a Cell as a `@jit` function in PYNATIVE. Only so does MindSpore run operators of a package there.

    It is compiled once for the shapes and dtypes of its tensors.
    """

    def __init__(self, run: nn.Cell):
        super().__init__()
        self.run, self.in_jit = run, _Jit(run)

    def __call__(self, *arguments):
        if VERSION < (2, 3) or ms.get_context("device_target") != "Ascend":
            return self.run(*arguments)
        return self.in_jit(*map(_own, arguments))

    def construct(self, *arguments):
        return self.run(*arguments)


def _holds_tensors(argument) -> bool:
    return isinstance(argument, tuple) and any(isinstance(one, Tensor) for one in argument)


def _may_switch() -> bool:
    """Return True if MindSpore lets a program go from GRAPH mode to PYNATIVE."""
    return ms.get_auto_parallel_context("parallel_mode") not in ("semi_auto_parallel", "hybrid_parallel")


class _Unpacked(nn.Cell):
    """Take the members of tuples one by one. `sizes` are the sizes of the tuples, -1 for an argument without tuple."""

    def __init__(self, run: nn.Cell, sizes: tuple):
        super().__init__()
        self.run, self.sizes = run, sizes

    def construct(self, *flat):
        arguments, first = (), 0
        for size in self.sizes:
            if size < 0:
                arguments = arguments + (flat[first],)
                first += 1
            else:
                arguments = arguments + (flat[first : first + size],)
                first += size
        return self.run(*arguments)


_unpacked = functools.lru_cache(maxsize=512)(_Unpacked)


def _own(argument):
    """Return the argument, or a copy of a view: MindSpore 2.6 hands GE the start of its storage, not the view."""
    if not isinstance(argument, Tensor) or (argument.is_contiguous() and argument.storage_offset() == 0):
        return argument
    return ops.deepcopy(argument.contiguous())


class _Jit(nn.Cell):
    def __init__(self, run: nn.Cell):
        super().__init__()
        self.run = run

    @ms.jit
    def construct(self, *arguments):
        return self.run(*arguments)


def results_in_graph_mode(arguments: tuple, named: dict) -> tuple[tuple, dict]:
    """Return the arguments of a call from Python. In GRAPH mode of MindSpore 2.0 none is a Parameter."""
    if not OLD or ms.get_context("mode") != ms.GRAPH_MODE:
        return arguments, named
    return tuple(map(result, arguments)), {name: result(argument) for name, argument in named.items()}


def result(argument):
    """Return the argument; of a Parameter, the result of an operation on it."""
    return ops.reshape(argument, argument.shape) if isinstance(argument, Parameter) else argument
