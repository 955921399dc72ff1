"""The kernels as operators: which ones run for a request, how they are built, and what a registered entry does.

Every registration (MindSpore's in-process TBE compiler, an operator package) describes its tensors from
`signature.OPERATORS`; its entry calls `compile_entry` with what it was called with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.backward import kernel as backward
from flash_attention.kernels.tik.backward import packed as backward_packed
from flash_attention.kernels.tik.backward import postprocess, preprocess
from flash_attention.kernels.tik.backward import work as backward_work
from flash_attention.kernels.tik.decode import kernel as decode
from flash_attention.kernels.tik.decode import merge
from flash_attention.kernels.tik.forward import kernel as forward
from flash_attention.kernels.tik.forward import packed as forward_packed
from flash_attention.kernels.tik.forward import work as forward_work
from flash_attention.kernels.tik.hardware import check_chip
from flash_attention.kernels.tik.kernel import Kernel, Recording
from flash_attention.kernels.tik.language import TikModule
from flash_attention.kernels.tik.signature import OPERATORS, STAGES, GlobalTensor, Request, Signature, describe


def stages(request: Request) -> tuple[str, ...]:
    """Those of signature.STAGES that run for a request, in their order.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    choice = backward_work.choose(request.problem, request.variant, request.bias_gradient)
    return tuple(stage for stage in STAGES if stage != "grad_finish" or not choice.split.writes_d_query)


def work_tables(xp, request: Request, stages: tuple[str, ...]):
    """make(ends_q, ends_k, prefix) -> the work table or blocks of each of some stages, for packed sequences.

    Args:
        xp: a module of array operations, see `packed`.
        request: of packed sequences.
        stages: of "forward", "grad", and "blocks" for the two others.

    `ends_q` and `ends_k` are the cumulative lengths, int32 (problem.sequences,), without the leading 0. A sequence that
    is not there is empty: its end is that of the one before.
    """
    problem = request.problem
    described, makers = packed.sequences(xp, problem), []
    for stage in stages:
        if stage == "forward":
            makers.append(forward_packed.table(xp, problem, forward_work.choose(problem).plan))
        elif stage == "grad":
            choice = backward_work.choose(problem, request.variant, request.bias_gradient)
            makers.append(backward_packed.table(xp, problem, choice.plan, choice.split.slots))
        else:
            makers.append(packed.blocks(xp, problem))

    def make(ends_q, ends_k, prefix):
        sequences = described(ends_q, ends_k, prefix)
        return tuple([maker(sequences) for maker in makers])

    return make


_BUILDERS: dict[str, Callable[[Recording], Kernel]] = {
    "forward": forward.build,
    "grad_rows": preprocess.build,
    "grad": backward.build,
    "grad_finish": postprocess.build,
    "decode": decode.build,
    "decode_merge": merge.build,
}


def build(stage: str, request: Request, tik: TikModule, name: str, debug: bool) -> Kernel:
    """Records and builds the kernel of a stage.

    Args:
        stage: one of signature.STAGES or DECODE_STAGES.
        tik: the tik module: `from tbe import tik`.
        name: kernel name.
        debug: keep the kernel runnable by tikdb.

    Raises:
        ValueError: the request is not allowed, or no tiling strategy fits the memories of a core.
    """
    _, arguments = describe(stage, request)
    return _BUILDERS[stage](Recording(request, arguments, tik, name, debug))


@dataclass(frozen=True)
class Backward:
    """The kernels of the backward operator in the order in which they run; outputs of one are inputs of a later one.

    `finish` is None where the main kernel gives d_query itself, see BackwardSplit.writes_d_query.
    """

    rows: Kernel
    main: Kernel
    finish: Kernel | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.rows, self.main) if self.finish is None else (self.rows, self.main, self.finish)

    def run(self, execute: Callable[..., dict[str, np.ndarray]], **arrays: Any) -> dict:
        """Runs the chain.

        Args:
            execute: execute(instance, feed, output_names) gives arrays by output name.
            arrays: inputs by name, stored as `layout` says.

        Returns:
            d_query, d_key, d_value, the sums of the bias gradient and the rows of the gradient of sinks, as stored.
        """
        for kernel in self.kernels:
            feed = kernel.feed(**{name: arrays[name] for name in kernel.given if name in arrays})
            arrays.update(execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
        results = [tensor for kernel in self.kernels for tensor in kernel.outputs]
        return {t.name: arrays[t.name] for t in results if t.name not in ("row_lanes", "d_query_sums")}


def build_backward(request: Request, tik: TikModule, name: str, debug: bool) -> Backward:
    """Records and builds the kernels of the backward operator; arguments as in `build`."""
    _, *chain = stages(request)
    return Backward(*(build(stage, request, tik, f"{name}_{stage}", debug) for stage in chain))


def compile_entry(name: str, tensors: Mapping[str, Mapping | None], request: str, kernel_name: str) -> Kernel:
    """Compiles an operator for the tensors of one call.

    Args:
        name: of the operator.
        tensors: inputs and outputs by name, as dictionaries with "shape", "dtype" and, where it is known, "format";
            ones that are None count as absent.
        request: see `Request.to_text`.
        kernel_name: name of the kernel.

    Raises:
        ValueError, TypeError: the request or a tensor is not what the kernel takes, or the chip is not as planned for.
    """
    from tbe import tik
    from tbe.common.platform import get_soc_spec

    described = Request.from_text(request)
    check_chip(get_soc_spec, described.problem)
    stage = next(one.stage for one in OPERATORS if one.name == name)
    operator, signature = describe(stage, described)
    if operator.name != name:
        raise ValueError(f"request: got one for {operator.name}, allowed for this entry is {name}")
    check_tensors(signature, tensors)
    return build(stage, described, tik, kernel_name, False)


def check_tensors(signature: Signature, tensors: Mapping[str, Mapping | None]) -> None:
    """Compares the tensors of a call, by name, with a signature.

    Raises:
        ValueError, TypeError: naming the tensor, what came and what is allowed.
    """
    wanted = {tensor.name: tensor for tensor in (*signature.inputs, *signature.outputs)}
    for name in (*wanted, *(name for name in tensors if name not in wanted)):
        tensor = tensors.get(name)
        if (tensor is None) == (name in wanted):
            came, allowed = ("None", "a tensor") if name in wanted else ("a tensor", "None")
            raise ValueError(f"{name}: got {came}, allowed is {allowed}")
        if tensor is not None:
            _check_tensor(wanted[name], tensor)


def _check_tensor(wanted: GlobalTensor, tensor: Mapping) -> None:
    shape = tuple(tensor["shape"])
    first = len(shape) - len(wanted.shape) + 1  # axes that may make up the first one together
    if first < 1 or (math.prod(shape[:first]), *shape[first:]) != wanted.shape:
        raise ValueError(f"{wanted.name}: got shape {shape}, allowed is {wanted.shape}")
    if wanted.format == "FRACTAL_NZ" and tensor.get("format", wanted.format) != wanted.format:
        raise ValueError(f"{wanted.name}: got format {tensor['format']}, allowed is {wanted.format}")
    if tensor["dtype"].lower() != wanted.dtype:
        raise TypeError(f"{wanted.name}: got dtype {tensor['dtype']}, allowed is {wanted.dtype}")
