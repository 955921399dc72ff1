"""Run every TIK kernel in MindSpore's wheel, unmodified, and compare it with NumPy."""

import warnings
from pathlib import Path

import pytest
import tikemu
from tikemu import TikError

from emulator.tests.support import mindspore_kernels
from emulator.tests.support.mindspore_kernels import CASES, available, run

pytestmark = pytest.mark.skipif(not available(), reason="the kernels are part of MindSpore, which is not installed")


def marked(slow):
    """Return all cases, those slow that take long or that ``slow`` tells."""
    return [pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (case.slow or slow(case))) for case in CASES]


# Strict mode computes and compares as well, unless it refuses a kernel.
@pytest.mark.parametrize("case", marked(slow=lambda case: not (case.strict or case.default)))
def test_default_mode(case):
    if case.default:
        with pytest.raises(TikError) as raised:
            run(case, options={})
        assert case.default in str(raised.value)
        assert f"{case.kernel}_impl.py:" in str(raised.value)
    assert run(case) <= 1


@pytest.mark.parametrize("case", marked(slow=lambda case: False))
def test_strict_mode(case):
    if not case.strict:
        assert run(case, strict=True) <= 1
        return
    with pytest.raises(TikError) as raised:
        run(case, strict=True)
    assert case.strict in str(raised.value)


def test_every_kernel_file_is_covered():
    import mindspore

    folder = Path(mindspore.__file__).parent / "ops" / "_op_impl" / "_custom_op"
    files = {
        path.name[: -len("_impl.py")]
        for path in folder.glob("*_impl.py")
        if "from te import tik" in path.read_text(encoding="utf-8")
    }
    assert files == {case.kernel for case in CASES}
    assert len(files) == 14


def test_a_kernel_of_the_dsl_says_that_it_is_out_of_scope():
    tikemu.install(soc="Ascend910A")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tikemu.TikWarning)
        from mindspore.ops._op_impl._custom_op.matmul_cube_impl import cus_matmul_cube

        operand = {"ori_shape": (64, 64), "shape": (4, 4, 16, 16), "format": "FRACTAL_NZ", "dtype": "float16"}
        with pytest.raises(tikemu.TikUnsupportedError, match="TBE DSL"):
            cus_matmul_cube(operand, operand, None, dict(operand, dtype="float32"))


def test_a_wrong_statement_fails():
    """The comparison itself can fail: the same kernel against a result that is off by two of its bounds."""
    case = next(case for case in CASES if case.kernel == "dsd")

    def wrong(generator):
        problem = case.problem(generator)
        truth, bound = problem.expected["output_gm"]
        problem.expected["output_gm"] = truth + 2.1 * bound, bound
        return problem

    changed = mindspore_kernels.Case(case.kernel, case.function, case.shape, wrong)
    assert run(changed) > 1
