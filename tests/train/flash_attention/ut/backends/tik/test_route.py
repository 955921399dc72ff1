"""Backend tik off a device: its route, its messages about missing parts, and its primitives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from flash_attention.backends import registry
from flash_attention.backends.tik import entries, environment, limits, registration
from flash_attention.backends.tik.cell import OperatorAttention, _KeepOrder
from flash_attention.backends.tik.keep_bits import GeneratedKeepBits
from flash_attention.bridge import releases
from flash_attention.kernels.tik import describe, layout, signatures
from flash_attention.kernels.tik.problem import CAPACITY, Chip, KernelProblem
from flash_attention.kernels.tik.signatures import STAGES
from mindspore import Tensor, ops
from mindspore._c_expression import Oplib

from tests.train.flash_attention.support.calls import make_call, make_kernel_problem

tikemu = pytest.importorskip("tikemu")

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 33, "seq_k": 50, "head_dim": 24}
DROPPED = {"dropout_rate": 0.1, "training": True}
CALLS = {
    "plain": {},
    "causal-alibi": {"causal": True, "alibi": True},
    "mask-alibi-dropout": {
        "mask_shape": (2, 1, 33, 50),
        "mask_dtype": "uint8",
        "bias_shape": (1, 4, 1, 50),
        "bias_dtype": "float16",
        **DROPPED,
    },
    "bias": {"bias_shape": (2, 4, 33, 50), "bias_dtype": "float16"},
}


@pytest.mark.parametrize(
    "version, graph, level, said",
    [
        ("2.2.14", False, "", None),
        ("2.3.1", True, "O2", None),
        ("2.3.1", False, "", "runs in GRAPH mode with MindSpore 2.3.1"),
        ("2.5.0", False, "O2", "runs in GRAPH mode with MindSpore 2.5.0"),
        ("2.5.0", True, "O0", "got jit_level O0, allowed is O2"),
        ("2.6.0", True, "O1", "got jit_level O1, allowed is O2"),
        ("2.6.0", False, "", None),
        ("2.6.0.dev20250323", True, "", None),
    ],
)
def test_modes_in_which_ge_compiles(version, graph, level, said):
    assert releases.needs_package(version) == (version != "2.2.14")
    reason = releases.refuse_mode(version, graph, level)
    assert reason == said or said in reason


def test_what_is_missing_comes_in_the_order_to_mend_it(monkeypatch, tmp_path):
    for name in (*environment._CANN_VARIABLES, "ASCEND_CUSTOM_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    tbe = ["tbe cannot be imported"]
    monkeypatch.setattr(environment, "tbe_missing", lambda: tbe[-1])
    monkeypatch.setattr(environment, "_DRIVER", tmp_path / "version.info")

    assert "the device target is CPU" in environment.missing("2.2.0", "CPU")
    assert "driver is not installed" in environment.missing("2.2.0", "Ascend")
    environment._DRIVER.touch()
    assert "CANN is not set up" in environment.missing("2.2.0", "Ascend")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert "tbe cannot be imported" in environment.missing("2.2.0", "Ascend")
    tbe.append(None)
    assert environment.missing("2.2.0", "Ascend") is None
    assert "flash-attention opp --soc ascend910" in environment.missing("2.10.0", "Ascend")
    vendor = tmp_path / "vendor"
    (vendor / "op_impl/ai_core/tbe/flash_attention_impl").mkdir(parents=True)
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"/nowhere:{vendor}")
    assert environment.missing("2.10.0", "Ascend") is None
    assert environment.package_folder() == vendor
    monkeypatch.delenv("ASCEND_CUSTOM_OPP_PATH")
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path))
    assert environment.package_folder() is None
    vendor.rename(tmp_path / "v")
    (tmp_path / "vendors").mkdir()
    (tmp_path / "v").rename(tmp_path / "vendors" / environment.VENDOR)
    assert environment.package_folder() == tmp_path / "vendors" / environment.VENDOR


MODULES = {"attrs": "attr", "protobuf==3.20.3": "google", "pyyaml": "yaml", "absl-py": "absl", "cython": "Cython"}


@pytest.mark.parametrize("lacks", (*environment.TBE_PACKAGES.split(), "nothing", "tbe"))
def test_a_package_that_the_compiler_lacks_is_named(monkeypatch, tmp_path, lacks):
    modules = [MODULES.get(name, name) for name in environment.TBE_PACKAGES.split()]
    lost = MODULES.get(lacks, lacks)
    for module in (*modules, "tbe"):
        (tmp_path / module).mkdir()
        gone = f"raise ModuleNotFoundError(\"No module named '{module}'\")\n" if module == lost else ""
        (tmp_path / module / "__init__.py").write_text(gone)
    (tmp_path / "tbe/tik.py").write_text("\n".join(f"import {module}" for module in modules))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment.tbe_missing.cache_clear()
    said = environment.tbe_missing()
    environment.tbe_missing.cache_clear()
    if lacks == "nothing":
        assert said is None
    else:
        assert f"tbe cannot be imported: ModuleNotFoundError: No module named '{lost}' (source" in said
        assert (f'pip install "numpy<2" {environment.TBE_PACKAGES}' in said) == (lacks != "tbe")


def test_the_page_installs_what_the_compiler_needs():
    page = (Path(__file__).parents[6] / "docs/ascend.md").read_text(encoding="utf-8")
    assert f'pip install "numpy<2" {environment.TBE_PACKAGES} tqdm\n' in page


CHIP = """
import tikemu
tikemu.install(soc="Ascend910A")

def get_soc_name():
    return "Ascend910{}"
"""


@pytest.fixture
def ask_again():
    """Ask for the chip anew in the test, and after it."""
    environment.specifications.cache_clear()
    yield
    environment.specifications.cache_clear()


@pytest.mark.parametrize(("chip", "cores"), [("A", 32), ("ProB", 30)])
def test_cores_are_those_of_the_chip(ask_again, monkeypatch, tmp_path, chip, cores):
    """A stand-in for AscendCL names the chip; the emulator's platform knows its cores."""
    (tmp_path / "acl.py").write_text(CHIP.format(chip))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(tikemu.__file__).parents[1]}")
    monkeypatch.delenv("FLASH_ATTENTION_CORES", raising=False)
    assert environment.chip() == Chip(cores)


def test_memories_are_those_of_the_chip_where_they_are_smaller(monkeypatch):
    sizes = dict(CAPACITY, UB=131072, L1=2 * CAPACITY["L1"])
    answers = {"CORE_NUM": "30", **{f"{memory}_SIZE": str(size) for memory, size in sizes.items()}}
    monkeypatch.delenv("FLASH_ATTENTION_CORES", raising=False)
    monkeypatch.setattr(environment, "specifications", lambda: answers)
    assert environment.chip() == Chip(30, tuple(dict(CAPACITY, UB=131072).values()))


def test_cores_can_be_said(ask_again, monkeypatch):
    monkeypatch.setenv("FLASH_ATTENTION_CORES", "16")
    assert environment.chip() == Chip(16)
    environment.specifications.cache_clear()
    monkeypatch.setenv("FLASH_ATTENTION_CORES", "many")
    with pytest.raises(ValueError, match="FLASH_ATTENTION_CORES: got 'many'"):
        environment.chip()
    monkeypatch.delenv("FLASH_ATTENTION_CORES")
    with pytest.raises(RuntimeError, match="set FLASH_ATTENTION_CORES(.|\n)*No module named 'acl'"):
        environment.chip()


def test_the_backend_explains_itself():
    reason = registry.refusal("tik", make_call(**SIZES))
    assert "the device target is CPU" in reason


@pytest.mark.parametrize(
    "change, said",
    [
        ({"dtype": "bfloat16"}, "multiplies float16 only, got bfloat16"),
        ({"dtype": "float16", "bias_shape": (1, 4, 1, 50), "bias_dtype": "float32"}, "float16 bias"),
        ({"alibi": True, "seq_k": 1 << 19}, "ALiBi for 262144 tokens at most, got 524288"),
        ({"seq_q": 1 << 17, "seq_k": 1 << 17, **DROPPED}, "keep decisions packed"),
        ({"value_dim": 300}, "head_dim up to 256 for query, key and value, got 24 and 300 of value"),
        ({"head_dim": 576, "value_dim": 512}, "head_dim up to 256 for query, key and value, got 576 and 512 of value"),
        ({"segments": True, "batch": 1 << 15, "seq_q": 8192, "seq_k": 16}, "8589934592 bytes for this call"),
        ({"scale": 9e-4}, "a scale from 0.0009765625 to 1024.0, of either sign, or 0, got 0.0009"),
        ({"scale": -1025.0}, "of either sign, or 0, got -1025.0"),
        ({"softcap": 30000.0}, "softcap from 0.0001220703125 to 16384.0, got 30000.0"),
    ],
)
def test_what_the_chip_cannot_do(change, said):
    assert said in limits.refuse_on_910(make_call(**{**SIZES, **change}))
    assert limits.refuse_on_910(make_call(**SIZES)) is None


@pytest.fixture
def no_tik(monkeypatch, tmp_path):
    """Hide the tik modules from a process that prepares primitives. On a device it imports none, because no chip is
    chosen.
    """
    for name in ("tbe", "tbe.tik", "te", "te.tik"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path))
    entries.entry.cache_clear()
    yield
    entries.entry.cache_clear()


def primitives(**rules):
    """Return the primitives for a call."""
    call = make_call(**SIZES, **rules)
    draw = GeneratedKeepBits(describe.kernel_problem(call))
    core = OperatorAttention(call, registration.primitive, draw, Chip(30)).core
    backward = core.whole.backward().run.run
    primitives = core.forward.run.forward, backward.rows, backward.main, backward.finish
    return tuple(getattr(one, "primitive", one) for one in primitives if one is not None)


@pytest.mark.parametrize("name", CALLS)
def test_the_primitives_can_be_made(no_tik, name):
    for primitive in primitives(**CALLS[name]):
        assert primitive.func_type == "tbe"
        assert '"seq_q":33' in primitive.attrs["problem"] and '"cores":30' in primitive.attrs["problem"]
        # MindSpore hands all attributes to GE, which takes no lists of lists. MindSpore adds its own attributes later.
        for name, value in primitive.attrs.items():
            members = value if isinstance(value, (list, tuple)) else [value]
            assert all(isinstance(one, (str, bool, int, float)) for one in members), name
        assert "output_shapes" not in primitive.attrs


def test_any_sequence_of_calls_in_one_process(no_tik, monkeypatch):
    """MindSpore keeps the first registration of a name, so different calls need different names."""
    registered = {}

    def register(self, text, path):
        information = json.loads(text)
        assert information["op_name"] not in registered
        registered[information["op_name"]] = information
        return True

    monkeypatch.setattr(Oplib, "reg_op", register)
    for kept in ("registered_func", "attr_dict"):
        monkeypatch.setattr(ops.Custom, kept, {})
    sequence = ("causal", "plain", "causal-alibi", "mask-alibi-dropout", "plain", "dropout", "bias", "causal")
    sequence = [CALLS.get(name, {"causal": {"causal": True}, "dropout": DROPPED}.get(name)) for name in sequence]
    for stage, made in ((stage, made) for rules in sequence for stage, made in zip(STAGES, primitives(**rules))):
        operator, _ = signatures.arguments(stage, KernelProblem.from_text(made.attrs["problem"]))
        information = registered[made.uniq_name]
        inputs = [argument.name for argument in operator.inputs]
        assert [one["name"] for one in information["inputs"]] == inputs
        assert [one["name"] for one in information["outputs"]] == [argument.name for argument in operator.outputs]
        assert made.attrs["output_names"] == [argument.name for argument in operator.outputs]
        if "pure_input_names" in made.attrs:  # not in MindSpore 2.0
            assert list(made.attrs["pure_input_names"]) == inputs
        assert made.attrs["func_name"] == Path(made.attrs["imply_path"]).stem == operator.type


def test_an_entry_is_written_once_and_again_when_it_differs(no_tik):
    operator, _ = signatures.arguments("forward", make_kernel_problem(1, 1, 16, 16, 16))
    entries.entry.cache_clear()
    function = entries.entry(operator)
    path = Path(function.__code__.co_filename)
    assert path.is_relative_to(entries.folder()) and path.name == f"{operator.type}.py"
    written = path.stat().st_mtime_ns
    entries.entry.cache_clear()
    assert entries.entry(operator).__code__ == function.__code__
    assert path.stat().st_mtime_ns == written
    path.write_text("raise ImportError('of another version')")
    entries.entry.cache_clear()
    assert entries.entry(operator).__code__ == function.__code__
    assert not list(path.parent.glob("*.part"))


@pytest.mark.parametrize("seq_q, seq_k", [(16, 16), (33, 50), (7, 129)])
def test_keep_bits_in_graph_are_those_packed_on_the_host(seq_q, seq_k):
    problem = make_kernel_problem(2, 3, seq_q, seq_k, 16, dropout_rate=100 / 65536)
    bits = np.random.default_rng(0).integers(0, 256, (2, 3, seq_q, -(-seq_k // 8))).astype(np.uint8)
    packed = _KeepOrder(problem)(Tensor(bits)).asnumpy()
    np.testing.assert_array_equal(packed, layout.store_keep_bits(bits, problem))
