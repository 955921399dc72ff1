"""BuildCCE checks the program as a whole; findings are kept for strict runs."""

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import (
    TikBuildError,
    TikError,
    TikParamError,
    TikScopeError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
)


def test_building(kernel):
    x = kernel.Tensor("float16", (16,), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (16,), tik.scope_gm, "y")
    work = kernel.Tensor("float16", (16,), tik.scope_gm, "work", is_workspace=True)
    table = kernel.Tensor("float16", (2,), tik.scope_gm, "table", init_value=[1.0, 2.0])
    n, m = kernel.InputScalar("int32", "n"), kernel.InputScalar("int32", "m")
    kernel.BuildCCE("k", [x, n], (y,), None, True, {"unknown_key": 1}, [n, m], {}, None)
    program = kernel._recorder.program
    assert [getattr(node, "name", None) or node.tensor.name for node in program.inputs] == ["x", "n", "m"]
    assert [view.tensor.name for view in program.outputs] == ["y"]
    assert [info.name for info in program.workspaces] == ["work", "table"]
    assert work.size and table.size and str(kernel).startswith("kernel k(x, n, m) -> (y) on Ascend910A")


@pytest.mark.parametrize("strict", [False, True])
def test_tensors_in_the_flowtable(soc, no_warnings, strict):
    """A tensor of the flowtable is an argument, fed by its name; it may be among the inputs too (D30b)."""
    with tikemu.use_options(tikemu.Options(strict=strict)):
        for inputs, table in (([], ["sizes"]), (["sizes"], ["sizes"]), (["sizes"], []), ([], ["sizes", "n"])):
            kernel = tik.Tik()
            given = {
                "sizes": kernel.Tensor("int64", (4,), tik.scope_gm, "sizes"),
                "n": kernel.InputScalar("int64", "n"),
            }
            y = kernel.Tensor("int64", (4,), tik.scope_gm, "y")
            held = kernel.Tensor("int64", (4,), tik.scope_ubuf, "held")
            kernel.data_move(held, given["sizes"], 0, 1, 1, 0, 0)
            kernel.data_move(y, held, 0, 1, 1, 0, 0)
            kernel.BuildCCE("k", [given[name] for name in inputs], [y], flowtable=[given[name] for name in table])
            feed = {"sizes": np.arange(4), **({"n": 3} if "n" in table else {})}
            assert tikemu.run(kernel, feed).outputs["y"].tolist() == [0, 1, 2, 3]
            with pytest.raises(TikParamError, match="'sizes' of kernel 'k' is missing"):
                tikemu.run(kernel, {name: 3 for name in feed if name == "n"})


def test_evaluates_is_not_ignored_silently(kernel):
    a = kernel.Scalar("int32", "a", init_value=1)
    with pytest.warns(tikemu.TikWarning, match="evaluates of BuildCCE has no effect"):
        kernel.BuildCCE("k", [], [], evaluates={a: 2})
    with pytest.raises(TikParamError, match="evaluates"):
        tikemu.run(kernel, {}, options=tikemu.Options(strict=True))


def test_gm_tensors_must_be_arguments(kernel):
    x = kernel.Tensor("float16", (16,), tik.scope_gm, "x")
    unused = kernel.Tensor("float16", (16,), tik.scope_gm, "unused")
    with kernel.new_stmt_scope():
        ub = kernel.Tensor("float16", (16,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x, 0, 1, 1, 0, 0)
    with pytest.raises(TikBuildError, match="'x' is used but") as caught:
        kernel.BuildCCE("k", [], [])
    assert "kernel.data_move(ub, x" in str(caught.value) and unused.size
    kernel.BuildCCE("k", [x], [])


def test_input_scalars_must_be_arguments(kernel):
    n = kernel.InputScalar("int32", "n")
    with kernel.for_range(0, n + 1):
        pass
    with pytest.raises(TikBuildError, match="'n' is used but"):
        kernel.BuildCCE("k", [], [])
    kernel.BuildCCE("k", [n], [])


def test_names_of_arguments_are_unique(kernel):
    """A shipped operator defines a GM tensor twice under one name and uses the second; that is legal."""
    first, second = (kernel.Tensor("float16", (16,), tik.scope_gm, "x") for _ in range(2))
    with pytest.raises(TikParamError, match="unique"):
        kernel.BuildCCE("k", [first], [second])
    kernel.BuildCCE("k", [second], [second])


def test_nothing_follows_buildcce(kernel):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    kernel.BuildCCE("k", [], [])
    for late in (
        lambda: kernel.vec_abs(128, t, t, 1, 8, 8),
        lambda: kernel.Scalar("int32"),
        kernel.tik_return,
        lambda: kernel.for_range(0, 2).__enter__(),
        lambda: kernel.BuildCCE("k", [], []),
    ):
        with pytest.raises(TikBuildError, match="BuildCCE"):
            late()


def test_errors_of_one_kind_keep_their_bases():
    """Programs catch RuntimeError and IndexError."""
    assert issubclass(TikError, RuntimeError) and issubclass(tikemu.TikIndexError, IndexError)
    assert issubclass(TikUnsupportedArgumentError, (TikUnsupportedError, TikParamError))
    assert issubclass(tikemu.TikAlignError, TikParamError) and issubclass(TikScopeError, TikError)
