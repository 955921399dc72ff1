"""Strict mode: undefined bytes that reach a computation or an output."""

import numpy as np
import pytest
import tikemu
from tikemu import TikParamError, TikUndefinedError, tik

from emulator.tests.support.strict_programs import STRICT, check, faulty, filled, ub

pytestmark = pytest.mark.usefixtures("quiet")


@faulty
def test_undefined_operand(kernel, fault):
    a = ub(kernel, "a")
    kernel.vector_dup(128 if not fault else 100, a, 1.0, 1, 1, 8)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    check(
        kernel,
        fault,
        TikUndefinedError,
        r"vec_adds reads 56 undefined bytes of tensor 'a' \(element 100 is the first\)(.|\n)*vec_adds",
        result=a,
    )


@faulty
def test_undefined_lanes_that_are_masked_do_not_matter(kernel, fault):
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    kernel.vec_add(17 if fault else 16, b, a, b, 1, 8, 8, 8)
    check(kernel, fault, TikUndefinedError, "vec_add reads 2 undefined bytes of tensor 'a'", result=b)


@faulty
def test_undefined_element_read_by_the_scalar_unit(kernel, fault):
    a = ub(kernel, "a")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    value = kernel.Scalar("float16")
    value.set_as(a[16 if fault else 15])
    kernel.vector_dup(128, a, value, 1, 1, 8)
    check(kernel, fault, TikUndefinedError, "the scalar unit reads 2 undefined bytes of tensor 'a'", result=a)


@faulty
def test_elements_written_by_the_scalar_unit_are_defined(kernel, target, fault):
    a = ub(kernel, "a", 16)
    with kernel.for_range(0, 15 if fault else 16) as i:
        a[i].set_as(1.0)
    with kernel.for_range(0, 8) as i:
        kernel.data_move(target[i * 16], a, 0, 1, 1, 0, 0)
    check(
        kernel,
        fault,
        TikUndefinedError,
        r"output 'target' holds 16 undefined bytes at the end \(element 15",
        [],
        [target],
    )


@faulty
def test_undefined_bytes_may_be_moved_but_not_reach_an_output(kernel, fault):
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.data_move(b, a, 0, 1, 8, 0, 0)  # half of it is undefined
    if not fault:
        kernel.vector_dup([2**64 - 1, 0], b, 2.0, 1, 1, 8)
    check(kernel, fault, TikUndefinedError, r"output 'target' holds 128 undefined bytes.*element 64", result=b)


@faulty
def test_output_that_is_not_written_completely(kernel, target, fault):
    a = filled(kernel, "a")
    kernel.data_move(target, a, 0, 1, 7 if fault else 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "never written", [], [target])


@faulty
def test_unfed_workspace(kernel, fault):
    work = kernel.Tensor("float16", (128,), tik.scope_gm, "work", is_workspace=True)
    a = ub(kernel, "a")
    if not fault:
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.data_move(work, a, 0, 1, 8, 0, 0)
    kernel.data_move(a, work, 0, 1, 8, 0, 0)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    check(kernel, fault, TikUndefinedError, "vec_adds reads 256 undefined bytes", result=a)


@faulty
def test_memory_of_a_released_tensor_is_undefined_again(kernel, fault):
    with kernel.new_stmt_scope():
        filled(kernel, "first")
    second = ub(kernel, "second")
    if not fault:
        kernel.vector_dup(128, second, 1.0, 1, 1, 8)
    kernel.vec_adds(128, second, second, 1.0, 1, 8, 8)
    check(kernel, fault, TikUndefinedError, "tensor 'second'", result=second)


@faulty
def test_a_tensor_of_a_loop_body_is_fresh_in_every_iteration(kernel, target, fault):
    with kernel.for_range(0, 4, thread_num=2) as i:
        a = ub(kernel, "a")
        with kernel.if_scope(i < (2 if fault else 4)):
            kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "tensor 'a'", [], [target])


@faulty
def test_scalar_that_nothing_has_assigned(kernel, target, fault):
    a = filled(kernel, "a")
    n = kernel.Scalar("int32", "n")
    if not fault:
        n.set_as(8)
    kernel.data_move(target, a, 0, 1, n, 0, 0)
    check(kernel, fault, TikUndefinedError, "Scalar 'n' is used before", [], [target], default=False)


@pytest.mark.parametrize("use", ["arithmetic", "condition", "loop", "element", "conversion"])
def test_every_use_of_an_unassigned_scalar_is_reported(kernel, use):
    a = filled(kernel, "a")
    n = kernel.Scalar("int32", "n")
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
    check(kernel, True, TikUndefinedError, "Scalar 'n' is used before", result=a)


@faulty
def test_padding_of_a_matrix_product(kernel, fault):
    """Rows past m of the last fractals hold nothing; they may be moved, but not used (D26b)."""
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
    check(kernel, fault, TikUndefinedError, "vec_adds reads 256 undefined bytes", [left, right], [product], **feeds)


@faulty
def test_atomic_addition_onto_undefined_memory(kernel, fault):
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target", is_atomic_add=not fault)
    a = ub(kernel, "a", 64, "float32")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.set_atomic_add(1)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.set_atomic_add(0)
    check(kernel, fault, TikUndefinedError, "undefined bytes of tensor 'target'", [], [target])


def test_contents_that_nothing_has_written(kernel, capsys):
    """Default mode shows zeros at the start of a block, strict mode 0xDEAD."""
    out = kernel.Tensor("uint16", (16,), tik.scope_gm, "out")
    a = ub(kernel, "a", 16, "uint16")
    kernel.data_move(out, a, 0, 1, 1, 0, 0)
    kernel.tikdb.debug_print("hex(a[3])")
    kernel.BuildCCE("kernel", [], [out])
    assert not tikemu.run(kernel, {}).outputs["out"].any()
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=STRICT)
    assert capsys.readouterr().out.split() == ["hex(a[3])", "=", "0x0", "hex(a[3])", "=", "0xdead"]


@pytest.mark.parametrize("copies", [1, 2])
def test_a_definition_clears_nothing_in_default_mode(kernel, copies):
    """A tensor keeps the contents of the iteration before, as on the chip; MindSpore's img2col relies on this."""
    out = kernel.Tensor("float32", (4, 8), tik.scope_gm, "out")
    with kernel.for_range(0, 4, thread_num=copies) as i:
        a = ub(kernel, "a", 64, "float32")
        kernel.vec_adds(8, a, a, 1.0, 1, 8, 8)
        kernel.data_move(out[i * 8], a, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [out])
    expected = np.arange(4) // copies + 1
    np.testing.assert_array_equal(tikemu.run(kernel, {}).outputs["out"], np.repeat(expected[:, None], 8, axis=1))
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=STRICT)


@faulty
def test_scratch_of_a_high_precision_instruction_is_undefined_afterwards(kernel, fault):
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target")
    data, out, work = (ub(kernel, name, count, "float32") for name, count in (("data", 64), ("out", 64), ("work", 128)))
    kernel.vec_dup(64, work, 0.0, 2, 8)
    kernel.vec_dup(64, data, 3.0, 1, 8)
    kernel.vec_rec_high_preci(64, out, data, work[0:], 1, 8, 8)
    if fault:
        kernel.vec_adds(64, out, work, 0.0, 1, 8, 8)
    kernel.data_move(target, out, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "undefined bytes of tensor 'work'", [], [target])
    if not fault:
        assert (tikemu.run(kernel, {}).outputs["target"] == np.float32(1 / 3)).all()


@faulty
def test_undefined_bits_of_the_compare_mask(kernel, fault):
    """A comparison of float32 leaves half of the register undefined, which no selection of float32 uses."""
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target")
    data, bits = ub(kernel, "data", 64, "float32"), ub(kernel, "bits", 32, "uint8")
    kernel.vec_dup(64, data, 1.0, 1, 8)
    if not fault:
        kernel.vec_cmpv_gt(bits, data, data, 1, 8, 8)
    mask = kernel.mov_tensor_to_cmpmask(bits)
    kernel.vsel(64, 0, data, mask, data, data, 1, 1, 1, 1, 8, 8, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "holds undefined bits among the first 64", outputs=[target])


@faulty
@pytest.mark.parametrize("name", ["vec_rec", "vec_rsqrt", "vec_ln", "vdiv"])
def test_inputs_whose_result_is_not_specified(kernel, name, fault):
    """A zero in the last lane is an error; outside the mask it is none. Default mode gives the largest number."""
    source, target = (kernel.Tensor("float32", (128,), tik.scope_gm, side) for side in ("source", "target"))
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
    check(kernel, fault, TikParamError, "not specified", [source], [target], source=values)
    largest = abs(tikemu.run(kernel, {"source": values}).outputs["target"][127])
    assert largest == (np.finfo(np.float32).max if fault else 1)
