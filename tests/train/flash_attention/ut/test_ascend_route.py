"""Backend tik off a device: which route it takes, what it says is missing, and that its primitives can be made."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
import pytest
from flash_attention.backends import registry
from flash_attention.backends.ascend import environment, limits, registration
from flash_attention.backends.ascend.cell import OperatorAttention, _KeepOrder
from flash_attention.backends.ascend.keep_bits import GeneratedKeepBits
from flash_attention.kernels.tik import KernelProblem, layout
from flash_attention.problem import AttentionProblem
from mindspore import Tensor

tikemu = pytest.importorskip("tikemu")

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 33, "seq_k": 50, "head_dim": 24}
DROPPED = {"dropout_rate": 0.1, "training": True}
PROBLEMS = {
    "plain": {},
    "causal-alibi": {"causal": True, "alibi": "computed"},
    "mask-alibi-dropout": {
        "mask_shape": (2, 1, 33, 50),
        "mask_dtype": "uint8",
        "alibi": "given",
        "bias_shape": (1, 4, 1, 50),
        "bias_dtype": "float16",
        **DROPPED,
    },
    "bias": {"alibi": "given", "bias_shape": (2, 4, 33, 50), "bias_dtype": "float16"},
}


@pytest.mark.parametrize(
    "version, route", [("2.0.0", "tbe"), ("2.2.14", "tbe"), ("2.3.0", "opp"), ("2.7.1", "opp"), ("2.10.0", "opp")]
)
def test_route(version, route):
    assert environment.route(version) == route


def test_what_is_missing_comes_in_the_order_to_mend_it(monkeypatch, tmp_path):
    for name in (*environment._CANN_VARIABLES, "ASCEND_CUSTOM_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    find_spec = {"tbe": None}
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: find_spec.get(name))
    monkeypatch.setattr(environment, "_DRIVER", tmp_path / "version.info")

    assert "the device target is CPU" in environment.missing("2.2.0", "CPU")
    assert "driver is not installed" in environment.missing("2.2.0", "Ascend")
    environment._DRIVER.touch()
    assert "CANN is not set up" in environment.missing("2.2.0", "Ascend")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert "tbe cannot be imported" in environment.missing("2.2.0", "Ascend")
    find_spec["tbe"] = "found"
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


def test_the_backend_explains_itself():
    reason = registry.refusal("tik", AttentionProblem(**SIZES))
    assert "the device target is CPU" in reason


@pytest.mark.parametrize(
    "change, said",
    [
        ({"dtype": "bfloat16"}, "multiplies float16 only, got bfloat16"),
        ({"dtype": "float16", "alibi": "given", "bias_shape": (1, 4, 1, 50), "bias_dtype": "float32"}, "float16 bias"),
        ({"alibi": "computed", "seq_k": 1 << 19}, "ALiBi for 262144 tokens at most, got 524288"),
        ({"seq_q": 1 << 17, "seq_k": 1 << 17, **DROPPED}, "keep decisions packed"),
    ],
)
def test_what_the_chip_cannot_do(change, said):
    assert said in limits.refuse_on_910(AttentionProblem(**{**SIZES, **change}))
    assert limits.refuse_on_910(AttentionProblem(**SIZES)) is None


@pytest.mark.parametrize("route", ["tbe"] if environment.route(ms.__version__) == "tbe" else ["tbe", "opp"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_primitives_can_be_made(name, route):
    tikemu.install(soc="Ascend910A")
    from tbe import tik

    problem = AttentionProblem(**SIZES, **PROBLEMS[name])
    make_primitive = functools.partial(registration.primitive, route)
    cell = OperatorAttention(problem, tik, make_primitive, GeneratedKeepBits(problem))
    for primitive in (cell.core.forward, cell.core.rows, cell.core.main, cell.core.finish):
        assert primitive.func_type == ("tbe" if route == "tbe" else "aot")
        assert '"seq_q":33' in primitive.attrs["request"]
        assert (route == "opp") == ("output_shapes" in primitive.attrs)


@pytest.mark.parametrize("seq_q, seq_k", [(16, 16), (33, 50), (7, 129)])
def test_keep_bits_in_graph_are_those_packed_on_the_host(seq_q, seq_k):
    problem = KernelProblem(2, 3, seq_q, seq_k, 16, dropout_threshold=100)
    bits = np.random.default_rng(0).integers(0, 256, (2, 3, seq_q, -(-seq_k // 8))).astype(np.uint8)
    packed = _KeepOrder(problem)(Tensor(bits)).asnumpy()
    np.testing.assert_array_equal(packed, layout.pack_keep_bits(bits, problem))
