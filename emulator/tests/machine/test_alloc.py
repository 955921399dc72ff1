"""Test scopes, copies and capacities of on-chip tensors (D1, D3)."""

import warnings

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikAlignError, TikBoundsError, TikMemoryError, TikWarning, tik, use_options
from tikemu.machine import alloc
from tikemu.program import ir

KIB = 1024


def placed(kernel):
    """Return the placements by tensor name, and the peaks."""
    program = kernel._recorder.program
    plan = alloc.plan(program)
    defined = [statement.tensor for statement in ir.statements(program.body) if isinstance(statement, ir.Define)]
    return {tensor.name: plan.placements[tensor.uid] for tensor in defined if tensor.uid in plan.placements}, plan.peak


def ub(kernel, name, size, dtype="uint8"):
    """Return a vector in the Unified Buffer."""
    return kernel.Tensor(dtype, (size,), tik.scope_ubuf, name)


def test_tensors_follow_each_other_on_their_alignment(kernel):
    ub(kernel, "a", 100)
    ub(kernel, "b", 32)
    kernel.Tensor("float16", (3,), tik.scope_cbuf, "l1_a")
    kernel.Tensor("float16", (300,), tik.scope_cbuf, "l1_b")
    kernel.Tensor("float16", (16,), tik.scope_cc, "half")
    kernel.Tensor("float32", (16,), tik.scope_cc, "single")
    at, peak = placed(kernel)
    assert (at["a"].address, at["b"].address) == (0, 128)
    assert (at["l1_a"].address, at["l1_b"].address) == (0, 512)
    assert (at["half"].address, at["single"].address) == (0, 1024)
    assert (peak["UB"], peak["L1"], peak["L0C"], peak["L0A"]) == (160, 512 + 1024, 2048, 0)


def test_memory_is_released_at_the_end_of_a_scope(kernel):
    ub(kernel, "outer", 64)
    with kernel.new_stmt_scope():
        ub(kernel, "first", 1024)
        with kernel.for_range(0, 2):
            ub(kernel, "inner", 256)
    with kernel.if_scope(kernel.Scalar("int32", init_value=1) > 0):
        ub(kernel, "then", 512)
    with kernel.else_scope():
        ub(kernel, "otherwise", 128)
    ub(kernel, "last", 32)
    at, peak = placed(kernel)
    addresses = {name: placement.address for name, placement in at.items()}
    assert addresses == {"outer": 0, "first": 64, "inner": 1088, "then": 64, "otherwise": 64, "last": 64}
    assert peak["UB"] == 64 + 1024 + 256


def test_multi_buffering_copies_what_the_loop_defines(kernel):
    ub(kernel, "outside", 64)
    with kernel.for_range(0, 8, thread_num=2):
        ub(kernel, "inside", 100)
        with kernel.for_range(0, 4):
            ub(kernel, "inherits", 32)
        with kernel.for_range(0, 4, thread_num=3):
            ub(kernel, "both", 32)
        with kernel.for_range(0, 4, thread_num=0):
            ub(kernel, "single", 32)
    at, peak = placed(kernel)
    copies = {name: placement.copies for name, placement in at.items()}
    assert copies == {"outside": 1, "inside": 2, "inherits": 2, "both": 6, "single": 1}
    assert at["inside"].stride == 128
    assert at["inherits"].address == 64 + 2 * 128
    assert peak["UB"] == 64 + 2 * 128 + 6 * 32


def test_a_loop_with_tik_break_is_not_multi_buffered(kernel):
    with kernel.for_range(0, 8, thread_num=2) as i:
        ub(kernel, "broken", 64)
        with kernel.if_scope(i == 3):
            kernel.tik_break()
    with kernel.for_range(0, 8, thread_num=2):
        ub(kernel, "kept", 64)
        with kernel.for_range(0, 2) as j, kernel.if_scope(j == 1):
            kernel.tik_break()
    at, _ = placed(kernel)
    assert (at["broken"].copies, at["kept"].copies) == (1, 2)


def test_inner_loops_inherit_copies_only_if_memory_suffices(kernel):
    with kernel.for_range(0, 8, thread_num=2):
        ub(kernel, "outer", 40 * KIB)
        with kernel.for_range(0, 4):
            ub(kernel, "inner", 100 * KIB)
    at, peak = placed(kernel)
    assert (at["outer"].copies, at["inner"].copies) == (2, 1)
    assert peak["UB"] == 180 * KIB


def test_l1out_and_l0c_are_one_pool(kernel):
    kernel.Tensor("float32", (40 * KIB,), tik.scope_cbuf_out, "result")
    kernel.Tensor("float32", (20 * KIB,), tik.scope_cc, "accumulator")
    at, peak = placed(kernel)
    assert at["accumulator"].address == 160 * KIB
    assert peak["L0C"] == 240 * KIB
    kernel.Tensor("float32", (5 * KIB,), tik.scope_cc, "more")
    with pytest.raises(TikMemoryError, match=r"scope_cc and scope_cbuf_out need 266240 bytes.*262144"):
        placed(kernel)


CAPACITIES = {tik.scope_cbuf: 1024, tik.scope_ca: 64, tik.scope_cb: 64, tik.scope_cc: 256, tik.scope_ubuf: 256}


@pytest.mark.parametrize("scope, capacity", [(scope, size * KIB) for scope, size in CAPACITIES.items()])
def test_capacities(kernel, scope, capacity):
    kernel.Tensor("float16", (capacity // 2,), scope, "full")
    placed(kernel)
    kernel.Tensor("float16", (1,), scope, "one_more")
    with pytest.raises(TikMemoryError, match="exceeds the total size of the corresponding buffer") as error:
        placed(kernel)
    assert "one_more 2" in str(error.value) and f"full {capacity}" in str(error.value)
    assert 'scope, "one_more"' in str(error.value)  # the user's line


def build(kernel, size):
    """Record a kernel that uses ``size`` bytes of the Unified Buffer."""
    source = kernel.Tensor("uint8", (32,), tik.scope_gm, "source")
    buffer = ub(kernel, "buffer", size)
    kernel.data_move(buffer, source, 0, 1, 1, 0, 0)
    kernel.data_move(source, buffer, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source], [source])


def test_the_whole_unified_buffer_can_be_used_with_a_warning(kernel):
    with pytest.warns(TikWarning, match="256000 bytes of the Unified Buffer"):
        build(kernel, 256000)


@pytest.mark.parametrize("strict", [False, True])
def test_the_planned_part_of_the_unified_buffer_needs_no_warning(soc, strict, no_warnings):
    with use_options(Options(strict=strict)):
        build(tik.Tik(), 253952)


def test_start_addr_is_honoured(kernel):
    kernel.Tensor("float16", (16,), tik.scope_ubuf, "fixed", start_addr=4096)
    ub(kernel, "next", 32)
    at, peak = placed(kernel)
    assert (at["fixed"].address, at["next"].address) == (4096, 4128)
    assert peak["UB"] == 4160


def test_start_addr_must_be_aligned(kernel):
    with pytest.raises(TikAlignError, match="multiple of 512"):
        kernel.Tensor("float16", (16,), tik.scope_cbuf, "fixed", start_addr=32)
        placed(kernel)


def test_run_time_shapes_take_max_mem_size(kernel):
    extent = kernel.Scalar("int32", init_value=3)
    kernel.Tensor("float16", (extent, 16), tik.scope_ubuf, "dynamic", max_mem_size=1000)
    ub(kernel, "next", 32)
    at, _ = placed(kernel)
    assert (at["dynamic"].size, at["next"].address) == (1000, 1024)


@pytest.mark.parametrize(
    "held,strict", [(249856, True), (249888, True), (249888, False), (258048, False), (258080, False)]
)
def test_fixpipe_needs_a_column_of_the_unified_buffer(soc, held, strict):
    """D28b: a column of 64 rows takes 4096 bytes; strict mode plans with 253952 bytes in all."""
    instance = tik.Tik(disable_debug=False)
    out = instance.Tensor("float32", (1, 64, 16), tik.scope_gm, "out")
    dst = instance.Tensor("float32", (1, 64, 16), tik.scope_cc, "dst")
    l1 = instance.Tensor("float16", (1, 64, 16), tik.scope_cbuf, "l1")
    gm = instance.Tensor("float16", (1, 64, 16), tik.scope_gm, "gm")
    instance.data_move(l1, gm, 0, 1, 64, 0, 0)
    instance.matmul(dst, l1, l1, 64, 16, 16)
    instance.Tensor("int8", (held,), tik.scope_ubuf, "held")
    instance.fixpipe(out, dst, 1, 128, 0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)  # more than the planned part of the Unified Buffer
        instance.BuildCCE("full", [gm], [out])
    feeds = {"gm": np.ones((1, 64, 16), np.float16)}
    told = "needs 4096 bytes of UB for itself, but the live tensors leave 4064"
    if (held, strict) == (249888, True):
        with pytest.raises(TikMemoryError, match=told):
            tikemu.run(instance, feeds, options=Options(strict=True))
    elif held == 258080:
        with pytest.warns(TikWarning, match=told):
            tikemu.run(instance, feeds)
    else:
        tikemu.run(instance, feeds, options=Options(strict=strict))


# ------------------------------------------------------------------------------------------------ options
def _leaves_its_tensor(kernel, offset=0):
    """Read 128 floats of ``first``, which has 64; ``second`` is used before it."""
    source = kernel.Tensor("float32", (256,), tik.scope_gm, "source")
    target = kernel.Tensor("float32", (128,), tik.scope_gm, "target")
    first = kernel.Tensor("float32", (64,), tik.scope_ubuf, "first")
    second = kernel.Tensor("float32", (64,), tik.scope_ubuf, "second")
    kernel.data_move(second, source[64], 0, 1, 8, 0, 0)
    kernel.data_move(first, source, 0, 1, 8, 0, 0)
    with kernel.for_range(offset, offset + 1) as i:
        kernel.data_move(target, first[i], 0, 1, 16, 0, 0)
    kernel.BuildCCE("leaves", [source], [target])
    return kernel


SOURCE = np.arange(256, dtype=np.float32)


def test_bounds_are_those_of_the_tensor(kernel):
    with pytest.raises(TikBoundsError, match="'first', which has 256 bytes"):
        tikemu.run(_leaves_its_tensor(kernel), {"source": SOURCE})


@pytest.mark.parametrize("offset", [0, 8, 72])
def test_bounds_of_the_buffer_on_request(kernel, offset):
    with pytest.warns(TikWarning, match="it stays inside UB"):
        result = tikemu.run(_leaves_its_tensor(kernel, offset), {"source": SOURCE}, options=Options(bounds="buffer"))
    memory = np.concatenate([SOURCE[:128], np.zeros(128, np.float32)])
    np.testing.assert_array_equal(result.outputs["target"], memory[offset : offset + 128])


def test_bounds_of_the_buffer_are_kept(kernel):
    with pytest.raises(TikBoundsError):
        tikemu.run(_leaves_its_tensor(kernel, 65496), {"source": SOURCE}, options=Options(bounds="buffer"))


def test_placement_in_the_order_of_first_use(kernel):
    with pytest.warns(TikWarning):
        result = tikemu.run(
            _leaves_its_tensor(kernel), {"source": SOURCE}, options=Options(bounds="buffer", placement="first use")
        )
    np.testing.assert_array_equal(result.outputs["target"], [*SOURCE[:64], *[0] * 64])


@pytest.mark.parametrize("option", ["bounds", "placement", "sync"])
def test_unknown_choices_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be one of .*got 'elsewhere'"):
        Options(**{option: "elsewhere"})
