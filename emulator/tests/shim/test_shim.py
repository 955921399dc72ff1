"""install and uninstall: what TIK programs import is there, a real CANN is left alone, the TBE DSL is out of scope."""

import importlib
import subprocess
import sys
import textwrap

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikParamError, TikUnsupportedError


@pytest.fixture
def shim():
    """Put tikemu's modules in the place of CANN's."""
    assert tikemu.install(soc="Ascend910A") is True


def ours():
    """Return the names of the imported modules that CANN would have."""
    return [name for name in sys.modules if name.split(".")[0] in ("tbe", "te", "topi", "impl")]


def load(text, **names):
    """Run import statements as a program would, and return what they bound."""
    exec(textwrap.dedent(text), names)
    return names


@pytest.mark.parametrize(
    "statement",
    [
        "from tbe import tik",
        "from te import tik",
        "import tbe.tik as tik",
        "import te.tik",
        "from tbe.tik.api import Tik",
        "from te import platform as tbe_platform",
        "from tbe.common import platform as tbe_platform",
        "from tbe.common.platform import set_current_compile_soc_info, api_check_support, get_soc_spec",
        "from tbe.common.platform.platform_info import get_soc_spec",
        "from te.platform import cce_conf",
        "from te.platform.cce_conf import api_check_support, intrinsic_check_support",
        "from te.platform import te_set_version",
        "from te.platform.cce_build import build_config",
        "import te.platform.cce_params as cce",
        "from te.platform.fusion_manager import fusion_manager",
        "from te.platform import CORE_NUM, UB_SIZE, L1_SIZE",
        "from tbe.common.utils import para_check, shape_util",
        "from te.utils import para_check",
        "from te.utils.para_check import check_op_params",
        "from te.utils.op_utils import *",
        "from te.utils import op_utils",
        "from tbe.common.utils.shape_util import shape_to_list",
        "from tbe.common.utils import shape_to_list",
        "from tbe.common.register import register_op_compute, register_operator",
        "from tbe.common.buildcfg import build_config",
        "from tbe.common.context import get_context",
        "from topi.cce import util",
        "from tbe.tvm.topi.cce import util",
        "from te.utils.error_manager import error_manager_vector",
        "from tbe.common.utils.errormgr import error_manager_vector",
        "from impl.util.platform_adapter import tik, tbe_platform, para_check, register_operator, error_manager_vector",
        "from impl.util.platform_adapter import tbe_context",
        "from impl import constant_util, common_util",
    ],
)
def test_programs_can_import(shim, statement):
    load(statement)


def test_the_modules_are_one(shim):
    names = load("""
        from tbe import tik
        from te import tik as old
        from impl.util.platform_adapter import tik as adapted
    """)
    assert names["tik"].Tik is names["old"].Tik is names["adapted"].Tik is tik.Tik
    assert names["tik"].scope_ubuf == tik.scope_ubuf


def test_packages_load_their_parts_on_demand(shim):
    te, tbe = load("import te")["te"], load("import tbe")["tbe"]
    assert te.platform.cce_conf.get_soc_spec("UB_SIZE") == 262144 and tbe.common.platform.get_soc_spec("CORE_NUM") == 32
    with pytest.raises(AttributeError, match="no_such_part"):
        _ = te.no_such_part
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("te.no_such_part")


def test_constants_are_their_own_keys(shim):
    platform = load("from te import platform")["platform"]
    for key in ("CORE_NUM", "UB_SIZE", "L1_SIZE", "L0A_SIZE", "SOC_VERSION", "CUBE_SIZE"):
        assert platform.get_soc_spec(getattr(platform, key)) == platform.get_soc_spec(key)
    assert (platform.get_bit_len("float16"), platform.get_block_size()) == (16, 32)


def test_install_selects_the_soc():
    tikemu.install(soc="Ascend910B")
    assert load("from te import platform")["platform"].get_soc_spec("CORE_NUM") == 30
    with pytest.raises(TikParamError, match="Ascend910PremiumA"):
        tikemu.install(soc="Ascend310")


def test_uninstall_leaves_nothing(shim):
    load("from tbe import tik; import te.platform.cce_params; from impl.util import platform_adapter")
    assert ours()
    tikemu.uninstall()
    assert not ours()
    for name in ("tbe", "te.tik", "impl"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    tikemu.uninstall()
    assert tikemu.install() and load("from te import tik")


def test_installing_twice_is_installing_once(shim):
    tikemu.install("Ascend910A")
    assert sum(type(finder).__module__ == "tikemu.shim" for finder in sys.meta_path) == 1


# ------------------------------------------------------------------------------------------------ beside others
@pytest.fixture
def cann(tmp_path):
    """Provide a package tree that looks like CANN."""
    for package in ("tbe", "tbe/common", "te"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("real = True\n")
    (tmp_path / "te" / "tik.py").write_text("Tik = 'real'\n")
    sys.path.insert(0, str(tmp_path))
    yield
    for name in ours():
        del sys.modules[name]


def test_a_real_cann_is_left_alone(cann):
    assert tikemu.install("Ascend910A") is False
    assert load("import te.tik")["te"].tik.Tik == "real"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tbe.tik")


@pytest.mark.parametrize("loaded", [False, True])
def test_force_hides_a_real_cann_until_uninstall(cann, loaded):
    real = importlib.import_module("te.tik") if loaded else None
    assert tikemu.install("Ascend910A", force=True) is True
    assert load("from te import tik")["tik"].Tik is tik.Tik
    tikemu.uninstall()
    after = importlib.import_module("te.tik")
    assert after.Tik == "real" and (real is None or after is real)


def test_a_stand_in_for_cann_is_completed(cann):
    """The package's own modules come first, then the given modules, then tikemu's."""
    tikemu.shim.complete({"te.version": {"version": "6.3"}, "te.platform.cce_policy": {"set_L1_info": len}})
    assert load("import te.tik")["te"].tik.Tik == "real"
    assert load("from tbe import tik")["tik"].Tik is tik.Tik
    assert load("import te.version, te.platform.cce_policy as policy")["te"].version.version == "6.3"
    assert load("from te.platform.cce_policy import set_L1_info")["set_L1_info"] is len
    tikemu.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("te.version")


def test_a_project_of_the_user_may_be_called_impl(tmp_path):
    (tmp_path / "impl").mkdir()
    (tmp_path / "impl" / "__init__.py").write_text("mine = True\n")
    (tmp_path / "impl" / "my_operator.py").write_text("from impl.util.platform_adapter import tik\n")
    sys.path.insert(0, str(tmp_path))
    tikemu.install("Ascend910A", force=True)
    try:
        module = importlib.import_module("impl.my_operator")
        assert module.tik.Tik is tik.Tik and sys.modules["impl"].mine
    finally:
        sys.modules.pop("impl.my_operator", None)
        tikemu.uninstall()
        sys.modules.pop("impl", None)


# ------------------------------------------------------------------------------------------------ the DSL
@pytest.mark.parametrize(
    "module", ["te.lang.cce", "tbe.dsl", "te.tvm", "te.lang.dynamic", "tbe.tvm.topi.generic", "topi.generic"]
)
def test_importing_the_dsl_says_that_it_is_out_of_scope(shim, module):
    with pytest.warns(tikemu.TikWarning, match="out of tikemu's scope"):
        imported = importlib.import_module(module)
    with pytest.raises(TikUnsupportedError, match=f"{module}.vadd.*out of tikemu's scope") as caught:
        imported.vadd(1, 2)
    assert caught.value.location.file == __file__


def test_the_warning_points_at_the_import(shim):
    with pytest.warns(tikemu.TikWarning) as record:
        load("\nimport te.lang.cce")
    assert [(warning.filename, warning.lineno) for warning in record] == [("<string>", 2)]


def test_names_of_the_dsl_raise_only_when_used(shim):
    with pytest.warns(tikemu.TikWarning):
        tvm = load("from te import tvm")["tvm"]
    assert tvm.placeholder((16, 16), name="x", dtype="float16").shape == (16, 16)
    assert not isinstance(3, tvm.expr.Var) and "out of scope" in repr(tvm.target)
    for use in (lambda: tvm.const(1), lambda: tvm.target.cce().__enter__(), lambda: bool(tvm.x), lambda: tvm.x[0]):
        with pytest.raises(TikUnsupportedError):
            use()


def test_programs_without_the_dsl_get_no_warning(shim, no_warnings):
    load("from tbe.tvm.topi.cce import util; from topi.cce import util; from te import tik, platform")


def test_parents_of_modules_in_scope_speak_when_used(shim):
    tvm = load("import tbe.tvm.topi.cce.util; from tbe import tvm")["tvm"]
    with pytest.warns(tikemu.TikWarning, match="tbe.tvm belongs"), pytest.raises(TikUnsupportedError):
        tvm.const(1)


# ------------------------------------------------------------------------------------------------ small modules
def test_register_decorators_return_the_function(shim):
    register = load("from tbe.common import register")["register"]

    def operator():
        pass

    assert register.register_operator("MyOp", pattern="x")(operator) is operator
    assert register.register_op_compute("MyOp", op_mode="dynamic", support_fusion=False)(operator) is operator
    assert register.get_operator("MyOp") is operator and register.get_op_compute("MyOp") is operator
    with pytest.raises(RuntimeError, match="type"):
        register.register_operator(operator)


def test_compile_info_of_dynamic_operators(shim):
    context = load("from impl.util.platform_adapter import tbe_context")["tbe_context"]
    with context.OpContext("dynamic"):
        context.get_context().add_compile_info("vars", {"core_num": 32})
        assert context.get_context().get_compile_info() == {"vars": {"core_num": 32}}
    assert "vars" not in context.get_context().get_compile_info()


def test_error_managers_raise_runtime_errors(shim):
    names = load("from tbe.common.utils.errormgr import error_manager_vector as vector, error_manager_util as util")
    with pytest.raises(RuntimeError, match="input_value_invalid: op, x, 3, 4"):
        names["vector"].raise_err_input_value_invalid("op", "x", 3, 4)
    with pytest.raises(AttributeError):
        _ = names["vector"].something_else
    assert names["util"].get_error_message({"errCode": "E1"}) == "errCode: E1"


def test_the_product_is_a_cloud_chip(shim):
    util = load("from topi.cce import util")["util"]
    assert util.get_product_version() == util.VERSION_CLOUD != util.VERSION_MINI


def test_build_config_is_a_context(shim):
    build_config = load("from tbe.common.buildcfg import build_config")["build_config"]
    with build_config(double_buffer_non_reuse=True) as config:
        assert config.switches == {"double_buffer_non_reuse": True}


def test_operators_of_mindspore_import_beside_mindspore():
    """In a process of its own: the package of the wheel imports all its operators, DSL ones included."""
    pytest.importorskip("mindspore")
    program = """
        import tikemu
        tikemu.install("Ascend910A")
        from mindspore.ops._op_impl._custom_op import dsd_impl, matmul_dds_impl
        from mindspore.ops._op_impl._custom_op.matrix_combine_impl import cus_matrix_combine
        shapes = [{"shape": (2, 128, 128)}, {"shape": (256, 256)}]
        kernel = cus_matrix_combine(*shapes)
        print(str(kernel).splitlines()[0])
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        timeout=120,
    )
    assert done.stdout.strip() == "kernel cus_matrix_combine(input_x) -> (res) on Ascend910A", done.stderr[-2000:]
