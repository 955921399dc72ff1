"""The kernels as operators: which kernels run for a problem, how they are built, and what a registered entry does."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable, Protocol

import numpy as np

import flash_attention
from flash_attention.kernels.tik import host_integers, instruction_forms, signatures, varlen
from flash_attention.kernels.tik.backward import data_tables as backward_tables
from flash_attention.kernels.tik.backward import kernel as backward
from flash_attention.kernels.tik.backward import postprocess, preprocess
from flash_attention.kernels.tik.backward import schedule as backward_schedule
from flash_attention.kernels.tik.decode import kernel as decode
from flash_attention.kernels.tik.decode import merge
from flash_attention.kernels.tik.forward import data_tables as forward_tables
from flash_attention.kernels.tik.forward import kernel as forward
from flash_attention.kernels.tik.forward import schedule as forward_schedule
from flash_attention.kernels.tik.hardware import BYTES, Buffer, check_chip, usage
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.signatures import OPERATORS, STAGES, GlobalTensor, Operator, Signature
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, Tik, TikModule


class StageKernel(Protocol):
    """A kernel class.

    It is made from a problem. It chooses how to compute the problem, then emits the statements of every core.

    Attributes:
        units: tile steps of the busiest core, and of all cores together.
        flags: int32 numbers of the global tensor `flags`, in which a core keeps notes for itself.
    """

    plan: Any
    buffers: Any
    cores: int
    units: tuple[int, int]
    flags: int

    def emit(self, core: Any, index: Number) -> None: ...


_KERNELS: dict[str, Callable[[KernelProblem], StageKernel]] = {
    "forward": forward.Forward,
    "grad_rows": preprocess.Preprocess,
    "grad": backward.Backward,
    "grad_finish": postprocess.Postprocess,
    "decode": decode.Decode,
    "decode_merge": merge.Merge,
}


@dataclass(frozen=True)
class BuiltKernel(Signature):
    """A recorded and built TIK kernel.

    Attributes:
        tik: the Tik instance, after BuildCCE.
        buffers: on-chip allocations.
        cores: blocks the kernel is launched with.
        units: (row block, key tile) steps of the busiest core, and of all cores together.
    """

    name: str
    tik: Tik
    problem: KernelProblem
    plan: BlockPlan
    buffers: tuple[Buffer, ...]
    cores: int
    units: tuple[int, int]

    def memory(self) -> dict[str, tuple[int, int]]:
        """Return bytes used and available per memory of a core."""
        used = usage(list(self.buffers))
        return {name: (used[name], size) for name, size in self.problem.capacity.items()}


def stages(problem: KernelProblem) -> tuple[str, ...]:
    """Return the stages of training that run for a problem, in their order.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    choice = backward_schedule.choose(problem)
    return tuple(stage for stage in STAGES if stage != "grad_finish" or not choice.split.writes_d_query)


def work_tables(xp, problem: KernelProblem, stages: tuple[str, ...]):
    """Return make(ends_q, ends_k, prefix) -> some stages' work tables or blocks, for packed sequences.

    Args:
        xp: a module of array operations, see `varlen`.
        problem: of packed sequences.
        stages: of "forward", "grad", and "blocks" for the two others.

    `ends_q` and `ends_k` are the cumulative lengths, int32 (problem.sequences,), without the leading 0. A sequence that
    does not exist is empty: its end is the end of the sequence before.
    """
    described, makers = varlen.sequences(xp, problem), []
    for stage in stages:
        if stage == "forward":
            makers.append(forward_tables.packed_table(xp, problem, forward_schedule.choose(problem).plan))
        elif stage == "grad":
            choice = backward_schedule.choose(problem)
            makers.append(backward_tables.packed_table(xp, problem, choice.plan, choice.split.slots))
        else:
            makers.append(varlen.blocks(xp, problem))

    def make(ends_q, ends_k, prefix):
        sequences = described(ends_q, ends_k, prefix)
        return tuple([maker(sequences) for maker in makers])

    return make


def list_table(xp, problem: KernelProblem, stage: str):
    """Return make(block_mask) -> the work table of a stage, int32 (words,).

    Args:
        xp: a module of array operations, see `varlen`.
        stage: "forward" or "grad".

    `block_mask` is int32 of problem.block_mask_shape, not 0 = visible.
    """
    if stage == "forward":
        return forward_tables.listed_table(xp, problem, forward_schedule.choose(problem).plan)
    choice = backward_schedule.choose(problem)
    return backward_tables.listed_table(xp, problem, choice.plan, choice.split.slots)


def known_table(problem: KernelProblem, stage: str, block_mask: np.ndarray) -> np.ndarray:
    """Return the work table of a stage for a known block mask, see problem.keeps_tiles."""
    table = list_table(host_integers, problem, stage)(block_mask.astype(np.int32))
    if stage == "forward":
        plan = forward_schedule.choose(problem).plan
        return forward_tables.kept_table(problem, plan, table) if plan.ways > 1 else table
    choice = backward_schedule.choose(problem)
    return backward_tables.kept_table(problem, choice.plan, table) if choice.plan.ways > 1 else table


def build(
    stage: str,
    problem: KernelProblem,
    tik: TikModule,
    name: str,
    debug: bool,
    operator: Operator | None = None,
    config: Mapping[str, Any] | None = None,
) -> BuiltKernel:
    """Record and build the kernel of a stage.

    Args:
        stage: one of signatures.STAGES or DECODE_STAGES.
        tik: the tik module: `from tbe import tik`.
        name: kernel name.
        debug: keep the kernel runnable by tikdb.
        operator: the operator whose arguments the kernel gets, stand-ins among them. Without it, the kernel gets the
            arguments that it uses.
        config: of BuildCCE.

    Raises:
        ValueError: the problem is not allowed, or no tiling strategy fits the memories of a core.
    """
    _, arguments = signatures.arguments(stage, problem)
    kernel = _KERNELS[stage](problem)
    instance = tik.Tik(disable_debug=not debug)
    called = arguments if operator is None else operator.fill(arguments)
    # All before the loop over the cores: no public program defines a global tensor in it or behind it.
    inputs, outputs = (
        [instance.Tensor(t.dtype, t.shape, tik.scope_gm, t.name, is_atomic_add=t.added) for t in side]
        for side in (called.inputs, called.outputs)
    )
    gm = {t.name: tensor for t, tensor in zip((*called.inputs, *called.outputs), (*inputs, *outputs)) if not t.absent}
    if kernel.flags:
        gm["flags"] = instance.Tensor("int32", (kernel.flags,), tik.scope_gm, "flags", is_workspace=True)
    core = Core(tik, instance, problem, kernel.plan, gm)
    absent = [(t, tensor) for t, tensor in zip(called.outputs, outputs) if t.absent]
    with instance.for_range(0, kernel.cores, name="core", block_num=kernel.cores) as index:
        if absent and instruction_forms.current().write_absent:
            with instance.if_scope(index == 0):
                _write_absent(tik, instance, absent)
        core.allocate(kernel.buffers)
        kernel.emit(core, index)
    instance.BuildCCE(kernel_name=name, inputs=inputs, outputs=outputs, **({"config": dict(config)} if config else {}))
    shape = kernel.plan, tuple(kernel.buffers), kernel.cores, kernel.units
    return BuiltKernel(arguments.inputs, arguments.outputs, name, instance, problem, *shape)


def _write_absent(tik: TikModule, instance: Tik, absent: Sequence[tuple[GlobalTensor, Any]]) -> None:
    """Write a block of zeros to each output that a call lacks."""
    for tensor, target in absent:
        size = signatures.STAND_IN // BYTES[tensor.dtype]
        zeros = instance.Tensor(tensor.dtype, (size,), tik.scope_ubuf, f"absent_{tensor.name}")
        instance.vec_dup(size, zeros, 0.0, 1, 8)
        instance.data_move(target, zeros, 0, 1, 1, 0, 0)


def _forms(problem: str) -> instruction_forms.InstructionForms:
    """Return an operator's instruction forms. Warn if another version of this package made it."""
    made = json.loads(problem)
    if made.get("version") != flash_attention.__version__:
        version = made.get("version", "an older version")
        warnings.warn(
            f"problem: the graph was made by flash_attention {version}, and {flash_attention.__version__} compiles its "
            "operators",
            stacklevel=2,
        )
    return instruction_forms.InstructionForms.from_text(made.get("forms", ""))


def compile_entry(
    name: str,
    tensors: Mapping[str, Mapping | None],
    problem: str,
    kernel_name: str,
    config: Mapping[str, Any] | None = None,
) -> BuiltKernel:
    """Compile an operator for the tensors of one call.

    Args:
        name: of the operator.
        tensors: inputs and outputs by name, as dictionaries with "shape", "dtype" and, if it is known, "format".
        problem: see `KernelProblem.to_text`.
        kernel_name: name of the kernel.
        config: of BuildCCE.

    Raises:
        ValueError, TypeError: the problem or a tensor is not what the kernel takes, or the chip is not as planned for.
    """
    from tbe import tik
    from tbe.common.platform import get_soc_spec

    described = KernelProblem.from_text(problem)
    check_chip(get_soc_spec, described)
    stage = next(one.stage for one in OPERATORS if one.name == name)
    with instruction_forms.using(**asdict(_forms(problem))):
        operator, signature = signatures.arguments(stage, described)
        if operator.name != name:
            raise ValueError(f"problem: got one for {operator.name}, allowed for this entry is {name}")
        check_tensors(operator.fill(signature), tensors)
        return build(stage, described, tik, kernel_name, False, operator, config)


def check_tensors(signature: Signature, tensors: Mapping[str, Mapping | None]) -> None:
    """Compare the tensors of a call, by name, with a signature.

    Raises:
        ValueError, TypeError: naming the tensor, what came and what is allowed.
    """
    wanted = {tensor.name: tensor for tensor in (*signature.inputs, *signature.outputs)}
    for name in (*wanted, *(name for name in tensors if name not in wanted)):
        tensor = tensors.get(name)
        if (tensor is None) == (name in wanted):
            came, allowed = ("None", "a tensor") if name in wanted else ("a tensor", "None")
            raise ValueError(f"{name}: got {came}, allowed is {allowed}")
        if tensor is None:
            continue
        stored, shape = wanted[name], tuple(tensor["shape"])
        first = len(shape) - len(stored.shape) + 1  # axes that may make up the first one together
        if first < 1 or (math.prod(shape[:first]), *shape[first:]) != stored.shape:
            raise ValueError(
                f"{name}: got shape {shape}, allowed is {stored.shape}; in a sharded graph, give the operator that "
                "makes it a strategy like the layer's dp and mp"
            )
        if stored.format == "FRACTAL_NZ" and tensor.get("format", stored.format) != stored.format:
            raise ValueError(f"{name}: got format {tensor['format']}, allowed is {stored.format}")
        if tensor["dtype"].lower() != stored.dtype:
            raise TypeError(f"{name}: got dtype {tensor['dtype']}, allowed is {stored.dtype}")
