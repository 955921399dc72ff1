"""Programs that strict mode refuses, each beside one that differs in little and is right."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import numpy as np
from tikemu import TikBoundsError, TikError, TikMemoryError, TikParamError, TikSyncError, TikUndefinedError, tik


@dataclass(frozen=True)
class Case:
    """A program in several variants.

    Attributes:
        kind: class of the finding; "" if strict mode cannot go on behind it.
        error, message: of strict mode, for variants with the fault.
        write: ``f(kernel, variant)`` writes the statements. It returns more arguments of :meth:`build`.
        faults: by variant, whether it has the fault.
    """

    kind: str
    error: type[TikError]
    message: str
    write: Callable[[Any, Any], dict[str, Any]]
    faults: Mapping[Any, bool]

    def build(self, variant, kernel=None):
        """Record a variant under the options in force. Return the kernel, its feeds, and the other arguments.

        ``result``: 128 float16 of the Unified Buffer that are moved to an output.
        """
        kernel = kernel or tik.Tik(disable_debug=False)
        more = self.write(kernel, variant)
        inputs, outputs = more.pop("inputs", []), more.pop("outputs", [])
        if "result" in more:
            outputs = [gm(kernel, "target")]
            kernel.data_move(outputs[0], more.pop("result"), 0, 1, 8, 0, 0)
        kernel.BuildCCE("kernel", inputs, outputs)
        return kernel, more.pop("feeds", {}), more


CASES = {}


def case(kind, error, message, faults=None):
    """Make a case of the decorated function. By default the variants are True, with the fault, and False."""

    def decorate(write):
        CASES[write.__name__] = Case(kind, error, message, write, faults or {True: True, False: False})
        return write

    return decorate


only_fault = {True: True}


def gm(kernel, name, count=128, dtype="float16", **more):
    """Return a vector in global memory."""
    return kernel.Tensor(dtype, (count,), tik.scope_gm, name, **more)


def ub(kernel, name, count=128, dtype="float16"):
    """Return a vector in the Unified Buffer."""
    return kernel.Tensor(dtype, (count,), tik.scope_ubuf, name)


def filled(kernel, name="data", count=128):
    """Return a vector of ones in the Unified Buffer."""
    data = ub(kernel, name, count)
    kernel.vec_dup(128, data, 1.0, count // 128, 8)
    return data


def per_block(kernel, blocks=2):
    """Return the multi-core loop."""
    return kernel.for_range(0, blocks, block_num=blocks)


DATA = np.arange(128, dtype=np.float16)


# ------------------------------------------------------------------------------------------------ undefined bytes
@case("undefined", TikUndefinedError, r"vec_adds reads 56 undefined bytes of tensor 'a' \(element 100 is the first\)")
def undefined_operand(kernel, fault):
    a = ub(kernel, "a")
    kernel.vector_dup(100 if fault else 128, a, 1.0, 1, 1, 8)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    return {"result": a}


@case("undefined", TikUndefinedError, "vec_add reads 2 undefined bytes of tensor 'a'")
def undefined_lanes_that_are_masked_do_not_matter(kernel, fault):
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    kernel.vec_add(17 if fault else 16, b, a, b, 1, 8, 8, 8)
    return {"result": b}


@case("undefined", TikUndefinedError, "the scalar unit reads 2 undefined bytes of tensor 'a'")
def undefined_element_read_by_the_scalar_unit(kernel, fault):
    a = ub(kernel, "a")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    value = kernel.Scalar("float16")
    value.set_as(a[16 if fault else 15])
    kernel.vector_dup(128, a, value, 1, 1, 8)
    return {"result": a}


@case("undefined", TikUndefinedError, r"output 'target' holds 16 undefined bytes at the end \(element 15")
def elements_written_by_the_scalar_unit_are_defined(kernel, fault):
    target, a = gm(kernel, "target"), ub(kernel, "a", 16)
    with kernel.for_range(0, 15 if fault else 16) as i:
        a[i].set_as(1.0)
    with kernel.for_range(0, 8) as i:
        kernel.data_move(target[i * 16], a, 0, 1, 1, 0, 0)
    return {"outputs": [target]}


@case("undefined", TikUndefinedError, r"output 'target' holds 128 undefined bytes.*element 64")
def undefined_bytes_may_be_moved_but_not_reach_an_output(kernel, fault):
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.data_move(b, a, 0, 1, 8, 0, 0)  # half of it is undefined
    if not fault:
        kernel.vector_dup([2**64 - 1, 0], b, 2.0, 1, 1, 8)
    return {"result": b}


@case("undefined", TikUndefinedError, "never written")
def output_that_is_not_written_completely(kernel, fault):
    target, a = gm(kernel, "target"), filled(kernel, "a")
    kernel.data_move(target, a, 0, 1, 7 if fault else 8, 0, 0)
    return {"outputs": [target]}


@case("undefined", TikUndefinedError, "vec_adds reads 256 undefined bytes")
def unfed_workspace(kernel, fault):
    work, a = gm(kernel, "work", is_workspace=True), ub(kernel, "a")
    if not fault:
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.data_move(work, a, 0, 1, 8, 0, 0)
    kernel.data_move(a, work, 0, 1, 8, 0, 0)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    return {"result": a}


@case("undefined", TikUndefinedError, "tensor 'second'")
def memory_of_a_released_tensor_is_undefined_again(kernel, fault):
    with kernel.new_stmt_scope():
        filled(kernel, "first")
    second = ub(kernel, "second")
    if not fault:
        kernel.vector_dup(128, second, 1.0, 1, 1, 8)
    kernel.vec_adds(128, second, second, 1.0, 1, 8, 8)
    return {"result": second}


@case("undefined", TikUndefinedError, "tensor 'a'")
def a_tensor_of_a_loop_body_is_fresh_in_every_iteration(kernel, fault):
    target = gm(kernel, "target")
    with kernel.for_range(0, 4, thread_num=2) as i:
        a = ub(kernel, "a")
        with kernel.if_scope(i < (2 if fault else 4)):
            kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    return {"outputs": [target]}


@case("", TikUndefinedError, "Scalar 'n' is used before")
def scalar_that_nothing_has_assigned(kernel, fault):
    target, a, n = gm(kernel, "target"), filled(kernel, "a"), kernel.Scalar("int32", "n")
    if not fault:
        n.set_as(8)
    kernel.data_move(target, a, 0, 1, n, 0, 0)
    return {"outputs": [target]}


_USES = dict.fromkeys(("arithmetic", "condition", "loop", "element", "conversion"), True)


@case("", TikUndefinedError, "Scalar 'n' is used before", _USES)
def every_use_of_an_unassigned_scalar_is_reported(kernel, use):
    a, n = filled(kernel, "a"), kernel.Scalar("int32", "n")
    other = kernel.Scalar("float32", init_value=0.0)
    if use == "arithmetic":
        n.set_as(n * 2 + 1)
    elif use == "condition":
        with kernel.if_scope(n > 0):
            other.set_as(1.0)
    elif use == "loop":
        with kernel.for_range(0, n):
            other.set_as(1.0)
    elif use == "element":
        a[n].set_as(1.0)
    else:
        other.set_as(n)
    return {"result": a}


@case("undefined", TikUndefinedError, "vec_adds reads 256 undefined bytes")
def padding_of_a_matrix_product(kernel, fault):
    # Rows past m of the last fractals hold nothing. They may be moved, but not used (D26b).
    left = kernel.Tensor("float16", (32, 16), tik.scope_gm, "left")
    right = kernel.Tensor("float16", (16, 16), tik.scope_gm, "right")
    product = kernel.Tensor("float32", (20, 16), tik.scope_gm, "product")
    l1_left = kernel.Tensor("float16", (32, 16), tik.scope_cbuf, "l1_left")
    l1_right = kernel.Tensor("float16", (16, 16), tik.scope_cbuf, "l1_right")
    l0a = kernel.Tensor("float16", (32, 16), tik.scope_ca, "l0a")
    l0b = kernel.Tensor("float16", (16, 16), tik.scope_cb, "l0b")
    l0c = kernel.Tensor("float32", (32, 16), tik.scope_cc, "l0c")
    out = ub(kernel, "out", 512, "float32")
    kernel.data_move(l1_left, left, 0, 1, 32, 0, 0)
    kernel.data_move(l1_right, right, 0, 1, 16, 0, 0)
    kernel.load2dv1(l0a, l1_left, 0, 2, 1, 0)
    kernel.load2dv1(l0b, l1_right, 0, 1, 1, 0)
    kernel.mmad(l0c, l0a, l0b, 20, 16, 16, 0)
    kernel.data_move(out, l0c, 0, 1, 2, 0, 0)
    kernel.vec_adds(64, out, out, 1.0, 6 if fault else 5, 8, 8)
    kernel.data_move(product, out, 0, 1, 40, 0, 0)
    feeds = {"left": np.ones((32, 16), np.float16), "right": np.ones((16, 16), np.float16)}
    return {"inputs": [left, right], "outputs": [product], "feeds": feeds}


@case("undefined", TikUndefinedError, "undefined bytes of tensor 'target'")
def atomic_addition_onto_undefined_memory(kernel, fault):
    target, a = gm(kernel, "target", 64, "float32", is_atomic_add=not fault), ub(kernel, "a", 64, "float32")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.set_atomic_add(1)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.set_atomic_add(0)
    return {"outputs": [target]}


@case("undefined", TikUndefinedError, "undefined bytes of tensor 'work'")
def scratch_of_a_high_precision_instruction_is_undefined_afterwards(kernel, fault):
    target = gm(kernel, "target", 64, "float32")
    data, out, work = (ub(kernel, name, count, "float32") for name, count in (("data", 64), ("out", 64), ("work", 128)))
    kernel.vec_dup(64, work, 0.0, 2, 8)
    kernel.vec_dup(64, data, 3.0, 1, 8)
    kernel.vec_rec_high_preci(64, out, data, work[0:], 1, 8, 8)
    if fault:
        kernel.vec_adds(64, out, work, 0.0, 1, 8, 8)
    kernel.data_move(target, out, 0, 1, 8, 0, 0)
    return {"outputs": [target], "holds": lambda target: fault or (target == np.float32(1 / 3)).all()}


@case(
    "undefined",
    TikUndefinedError,
    "vec_adds reads 128 undefined bytes of tensor 'b'",
    {(api, fault): fault for api in ("vec_trans", "vnchwconv") for fault in (True, False)},
)
def undefined_elements_that_a_transpose_moves(kernel, variant):
    api, fault = variant
    a, b, result = ub(kernel, "a", 256), ub(kernel, "b", 256), filled(kernel, "result")
    kernel.vec_dup(128, a, 1.0, 1, 8)  # eight of sixteen rows
    if api == "vec_trans":
        kernel.vec_trans(b, a, 1, 1, 1)
    else:
        kernel.vnchwconv(False, False, *([tensor[16 * i] for i in range(16)] for tensor in (b, a)), 1, 0, 0)
    kernel.vec_adds(128 if fault else [0x00FF00FF00FF00FF] * 2, result, b, 1.0, 1, 8, 8)
    return {"result": result}


@case(
    "undefined",
    TikUndefinedError,
    "vrpsort16: reads 64 undefined scores of tensor 'a'|vec_adds reads (128|96) undefined bytes of tensor 'result'",
    {"scores": True, "another field": True, "suspended": True, "right": False},
)
def undefined_fields_of_proposals(kernel, how):
    a, b, c = (ub(kernel, name, 512) for name in "abc")
    data, result = filled(kernel), filled(kernel, "result")
    kernel.vconcat(a, data, 4, 0)
    if how != "scores":
        kernel.vconcat(a, data, 4, 4)
    kernel.vrpsort16(b, a, 4)
    kernel.vmrgsort4(c, [b[128 * i] for i in range(4)], 16, how == "suspended", 15, 1)
    kernel.vextract(result, c, 4, 1 if how == "another field" else 0)
    kernel.vec_adds(64, result, result, 1.0, 1, 8, 8)
    return {"result": result}


@case("undefined", TikUndefinedError, "vec_sel: sel holds undefined bits among the first 128")
def undefined_lanes_of_a_comparison(kernel, fault):
    # A comparison takes no mask, so behind a tail it compares what is there.
    a, bits, result = ub(kernel, "a"), ub(kernel, "bits", 8, "uint16"), filled(kernel, "result")
    kernel.vec_dup(100, a, 2.0, 1, 8)
    kernel.vec_cmpv_gt(bits, a, result, 1, 8, 8)
    kernel.vec_sel(128 if fault else 100, 0, result, bits, result if fault else a, result, 1, 8, 8, 8)
    return {"result": result, "holds": lambda target: fault or target.sum() == 228}


@case("undefined", TikUndefinedError, "holds undefined bits among the first 64")
def undefined_bits_of_the_compare_mask(kernel, fault):
    # A comparison of float32 leaves half of the register undefined. No selection of float32 uses this half.
    target = gm(kernel, "target", 64, "float32")
    data, bits = ub(kernel, "data", 64, "float32"), ub(kernel, "bits", 32, "uint8")
    kernel.vec_dup(64, data, 1.0, 1, 8)
    if not fault:
        kernel.vec_cmpv_gt(bits, data, data, 1, 8, 8)
    mask = kernel.mov_tensor_to_cmpmask(bits)
    kernel.vsel(64, 0, data, mask, data, data, 1, 1, 1, 1, 8, 8, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    return {"outputs": [target]}


_ZEROS = {pair: pair[1] for pair in itertools.product(("vec_rec", "vec_rsqrt", "vec_ln", "vdiv"), (True, False))}


@case("unspecified", TikParamError, "not specified", _ZEROS)
def inputs_whose_result_is_not_specified(kernel, variant):
    # A zero in the last lane is an error, outside the mask it is none. Default mode gives the largest number.
    name, fault = variant
    source, target = (gm(kernel, side, dtype="float32") for side in ("source", "target"))
    data, out = ub(kernel, "data", 128, "float32"), ub(kernel, "out", 128, "float32")
    kernel.data_move(data, source, 0, 1, 16, 0, 0)
    kernel.vec_dup(64, out, 1.0, 2, 8)
    mask = 64 if fault else 63
    if name == "vdiv":
        kernel.vdiv(mask, out, out, data, 2, 1, 1, 1, 8, 8, 8)
    else:
        getattr(kernel, name)(mask, out, data, 2, 8, 8)
    kernel.data_move(target, out, 0, 1, 16, 0, 0)
    values = np.linspace(1, 2, 128).astype(np.float32)
    values[127] = 0
    last = np.finfo(np.float32).max if fault else 1
    holds = lambda target: abs(target[127]) == last  # noqa: E731
    return {"inputs": [source], "outputs": [target], "feeds": {"source": values}, "holds": holds}


# ------------------------------------------------------------------------------------------------ races of blocks
@case(
    "race",
    TikSyncError,
    r"data_move: block 1 writes bytes of GM tensor 'target' .* that block 0 wrote(.|\n)*data_move\(",
    {"different": True, "equal": False, "disjoint": False},
)
def blocks_writing_the_same_bytes(kernel, what):
    target = gm(kernel, "target", dtype="float32")
    with per_block(kernel) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        if what == "different":
            value = kernel.Scalar("int32", init_value=block)
            with kernel.if_scope(value == 1):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        # Address rollback: the second block repeats the last 32 bytes of the first.
        start = block * (64 if what == "disjoint" else 56)
        kernel.data_move(target[start], a, 0, 1, 8, 0, 0)
    return {"outputs": [target], "feeds": {"target": np.zeros(128, np.float32)}}


_ADDITIONS = {"plain": True, "atomic": False, "mixed": True, "filled by one of them": True}


@case("race", TikSyncError, "block 1 writes bytes of GM tensor 'target'", _ADDITIONS)
def blocks_adding_to_the_same_bytes(kernel, how):
    target = gm(kernel, "target", 64, "float32", is_atomic_add=True)
    with per_block(kernel, 3) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        value = kernel.Scalar("int32", init_value=block)
        if how == "plain":
            with kernel.if_scope(value > 0):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        elif how == "atomic":
            kernel.set_atomic_add(1)
        elif how == "filled by one of them":
            with kernel.if_scope(value == 0):
                kernel.data_move(target, a, 0, 1, 8, 0, 0)
            kernel.set_atomic_add(1)
        else:
            with kernel.if_scope(value > 0):
                kernel.set_atomic_add(1)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(0)
    return {"outputs": [target]}


def _one_writes_what_the_other_reads(kernel, fault, *, writer):
    board, target = gm(kernel, "board"), gm(kernel, "target", 256)
    with per_block(kernel) as block:
        a = filled(kernel, "a")
        me = kernel.Scalar("int32", init_value=block)
        for turn in range(2):
            if turn and not fault:
                kernel.block_barrier()
            with kernel.if_scope(me == turn):
                if turn == writer:
                    kernel.data_move(board, a, 0, 1, 8, 0, 0)
                else:
                    kernel.data_move(a, board, 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    return {"inputs": [board], "outputs": [target], "feeds": {"board": np.zeros(128, np.float16)}}


for _writer, _message in enumerate(("block 1 reads bytes .* block 0 wrote", "block 1 writes bytes .* block 0 read")):
    CASES[f"block {_writer} writes what the other reads"] = Case(
        "race",
        TikSyncError,
        _message,
        partial(_one_writes_what_the_other_reads, writer=_writer),
        {True: True, False: False},
    )


@case("race", TikSyncError, "block 1 reads .* block 0 wrote")
def a_block_reading_what_it_wrote_itself(kernel, fault):
    board, target = gm(kernel, "board", 256, is_workspace=True), gm(kernel, "target", 256)
    with per_block(kernel) as block:
        a = filled(kernel, "a")
        kernel.data_move(board[block * 128], a, 0, 1, 8, 0, 0)
        kernel.data_move(a, board[0 if fault else block * 128], 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    return {"outputs": [target]}


# ------------------------------------------------------------------------------------------------ races of pipes
@case(
    "race",
    TikSyncError,
    r"vec_adds on PIPE_V reads bytes .* of UB that data_move on PIPE_MTE2 writes",
    {"none": True, "other barrier": True, **dict.fromkeys(("flags", "barrier", "synchronised", "disjoint"), False)},
)
def race_between_pipes(kernel, order):
    # The vector unit uses the data of a move.
    source, a, b = gm(kernel, "source"), ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=order != "synchronised"):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if order == "flags":
            kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
            kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
        elif order == "barrier":
            kernel.pipe_barrier("PIPE_ALL")
        elif order == "other barrier":
            kernel.pipe_barrier("PIPE_V")
        kernel.vec_adds(128, b, b if order == "disjoint" else a, 1.0, 1, 8, 8)
    return {"inputs": [source], "result": b, "feeds": {"source": DATA}}


@case("race", TikSyncError, "data_move on PIPE_MTE3 reads .* vec_adds on PIPE_V writes")
def accesses_of_one_pipe_are_in_order(kernel, fault):
    target, a = gm(kernel, "target"), ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        if fault:
            kernel.data_move(target, a, 0, 1, 8, 0, 0)
    return {"outputs": [target]} if fault else {"result": a}


@case("race", TikSyncError, "vec_adds on PIPE_V")
def a_flag_for_another_event_orders_nothing(kernel, fault):
    source, a = gm(kernel, "source"), ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 1)
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
        kernel.wait_flag("PIPE_MTE2", "PIPE_V", 1 if fault else 0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    return {"inputs": [source], "result": a, "feeds": {"source": DATA}}


@case("race", TikSyncError, "the scalar access to tensor 'a' on PIPE_S reads")
def the_scalar_unit_races_too(kernel, fault):
    source, a, value = gm(kernel, "source"), ub(kernel, "a"), kernel.Scalar("float16")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if not fault:
            kernel.pipe_barrier("PIPE_ALL")
        value.set_as(a[0])
    return {"inputs": [source], "result": a, "feeds": {"source": DATA}}


@case("race", TikSyncError, "", {"right": False})
def what_the_scalar_unit_has_done_is_done_when_it_issues(kernel, _):
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        a[0].set_as(1.0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    return {"result": a}


@case("synchronisation", TikParamError, r"wait_flag.* has no set_flag before it(.|\n)*turn = 2")
def flag_that_nothing_sets(kernel, fault):
    source, a = gm(kernel, "source"), ub(kernel, "a")
    kernel.data_move(a, source, 0, 1, 8, 0, 0)
    with kernel.for_range(0, 3, name="turn") as turn:
        with kernel.if_scope(turn < (2 if fault else 3)):
            kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
        kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
    return {"inputs": [source], "result": a, "feeds": {"source": DATA}}


@case("synchronisation", TikSyncError, "33 blocks on 32 cores")
def more_blocks_at_a_barrier_than_cores(kernel, fault):
    target = gm(kernel, "target")
    with per_block(kernel, 33 if fault else 32):
        a = filled(kernel, "a")
        kernel.block_barrier()
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    return {"outputs": [target]}


# ------------------------------------------------------------------------------------------------ other classes
@case("overlap", TikParamError, "overlap inside one call")
def move_into_its_own_source(kernel, fault):
    data = filled(kernel, count=256)
    kernel.data_move(data[16 if fault else 128], data, 0, 1, 8, 0, 0)
    return {"result": data}


@case("bounds", TikBoundsError, "vec_dup.*'first'", only_fault)
def fill_beyond_the_end(kernel, _):
    first = ub(kernel, "first")
    filled(kernel)
    kernel.vec_dup(128, first, 0.0, 2, 8)
    return {"result": first, "options": {"bounds": "buffer"}}


@case("padding", TikBoundsError, "padding", only_fault)
def move_past_the_end_of_a_gm_tensor(kernel, _):
    target, data = gm(kernel, "target", 20), filled(kernel)
    kernel.data_move(target, data, 0, 1, kernel.Scalar("int32", init_value=2), 0, 0)
    return {"outputs": [target]}


@case("memory", TikMemoryError, "uses 253984 bytes .* leave 253952")
def more_than_the_planned_part_of_the_unified_buffer(kernel, fault):
    ub(kernel, "large", 253952 // 2 + (16 if fault else 0))
    return {}


@case("work-tensor", TikParamError, "work_tensor must hold at least 16 elements, got 8")
def nine_sums_need_two_blocks(kernel, fault):
    data, work = ub(kernel, "data", 64 * 9, "float32"), ub(kernel, "work", 8 if fault else 16, "float32")
    result = ub(kernel, "result", 64, "float32")
    kernel.vec_dup(64, data, 1.0, 9, 8)
    kernel.vec_reduce_add(64, result, data, work, 9, 8)
    return {}


@case("undocumented", TikParamError, "tik_continue has no documentation")
def a_call_without_documentation(kernel, fault):
    with kernel.for_range(0, 2):
        kernel.tik_continue() if fault else kernel.tik_break()
    return {}


@case("value", TikParamError, "wraps to 44")
def a_number_beyond_its_type(kernel, fault):
    kernel.Scalar("int8", init_value=300 if fault else 100)
    return {}


@case("argument", TikParamError, "enables no lane")
def a_mask_without_a_lane(kernel, fault):
    kernel.vec_dup([0, 0 if fault else 1], filled(kernel), 1.0, 1, 8)
    return {}


@case("compare-mask", TikParamError, "overwritten by a later vcmp")
def a_second_comparison_before_the_first_is_used(kernel, fault):
    data = filled(kernel)
    mask = kernel.vcmp_gt(128, data, data, 1, 1)
    if fault:
        kernel.vcmp_lt(128, data, data, 1, 1)
    kernel.vsel(128, 0, data, mask, data, data, 1, 1, 1, 1, 8, 8, 8)
    return {}


@case("block-loop", TikParamError, "once per block", only_fault)
def a_tensor_outside_of_the_multi_core_loop(kernel, _):
    data = filled(kernel)
    with per_block(kernel):
        kernel.vec_adds(128, data, data, 1.0, 1, 8, 8)
    return {}


@case("loop", TikParamError, "takes part in endt")
def the_end_of_a_loop_changes_in_its_body(kernel, fault):
    end, other = kernel.Scalar("int32", init_value=2), kernel.Scalar("int32")
    with kernel.for_range(0, end):
        (end if fault else other).set_as(2)
    return {}


def mixed(kernel):
    """Build a program with three findings, the second one found while it is recorded."""
    source, target = gm(kernel, "source"), gm(kernel, "target")
    data, other = ub(kernel, "data", 256), ub(kernel, "other", 384)
    kernel.data_move(data, source, 0, 1, 8, 0, 0)
    count = kernel.Scalar("int32", init_value=3)
    with kernel.for_range(0, count, name="step") as step:
        with kernel.if_scope(step > 0):
            kernel.vec_adds(128, other, other[128 * step], 1.0, 1, 8, 8)
        kernel.Scalar("int8", init_value=300)
        kernel.vec_ln(128, data, data, 1, 8, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    kernel.BuildCCE("mixed", [source], [target])
    return kernel, {"source": np.full(128, 0.5, np.float16)}
