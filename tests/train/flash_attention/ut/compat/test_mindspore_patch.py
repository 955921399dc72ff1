"""The patch puts this package's `flash_attention_score` and `FlashAttentionScore` into MindSpore's place, and back."""

import sys
import types

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention import attention_backend, patch_mindspore
from flash_attention.backends import fused, registry
from flash_attention.compat import mindspore_ops, mindspore_patch
from flash_attention.compat.mindspore_ops.refused import REFUSED
from mindspore import Tensor, nn, ops
from mindspore.ops.operations import nn_ops

# Bound before any patch.
early_bound = getattr(ops, "flash_attention_score", None)
pytestmark = pytest.mark.skipif(early_bound is None, reason="this MindSpore has none")

NAMES = tuple(mindspore_patch.OURS)


def places():
    """Return MindSpore's objects under the two names, without the primitive its function calls."""
    return {
        (module_name, name): vars(module)[name]
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "mindspore" and getattr(module, "__name__", None) == module_name
        for name in NAMES
        if name in vars(module) and (module_name, name) != (early_bound.__module__, "FlashAttentionScore")
    }


def test_every_name_in_mindspore_is_ours_inside_the_block_and_its_own_after_it():
    before = places()
    assert len(before) > 5
    with patch_mindspore() as patch:
        inside = places()
        # Other tests may have left modules that imported the primitive.
        report = {place: what for place, what in patch.report.items() if place.startswith("mindspore.")}
        assert {module + "." + name for module, name in inside} == set(report)
        assert all(value is mindspore_patch.OURS[name] for (_, name), value in inside.items())
        assert all(
            what == ("refused" if place.rpartition(".")[2] in REFUSED else "replaced") for place, what in report.items()
        )
    assert places() == before


def test_modules_that_keep_mindspore_s_primitive_are_named_once(monkeypatch, caplog):
    for name, primitive in (("early_library", nn_ops.FlashAttentionScore), ("other_library", ops.MatMul)):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].Score = primitive
    with caplog.at_level("WARNING", logger="flash_attention"), patch_mindspore() as patch, patch_mindspore():
        assert patch.report["early_library.Score"].startswith("left alone: imported before")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("patch_mindspore: imported before it, these keep MindSpore's: ")
    assert "early_library.Score" in said and "other_library" not in said


def test_print_tells_what_was_replaced():
    with patch_mindspore() as patch:
        assert str(patch).startswith("Patch:\n")
        assert "\n  mindspore.ops.flash_attention_score: replaced" in str(patch)
    assert str(patch).startswith("Patch, undone or without effect:\n")


def test_a_second_patch_changes_nothing_and_undoes_nothing():
    before = places()
    with patch_mindspore():
        inside = places()
        with patch_mindspore() as second:
            said = {what for place, what in second.report.items() if place != "inference"}
            assert said == {"left alone: replaced before"}
        assert places() == inside
    assert places() == before


def test_a_name_that_mindspore_lacks_is_added_and_taken_away_again(monkeypatch):
    monkeypatch.delattr(ops, "flash_attention_score")
    with patch_mindspore() as patch:
        assert patch.report["mindspore.ops.flash_attention_score"] == "added"
        assert ops.flash_attention_score is mindspore_ops.flash_attention_score
    assert not hasattr(ops, "flash_attention_score")


def test_where_the_device_has_the_operator_it_stays(monkeypatch):
    monkeypatch.setattr(registry.get_backend("fused"), "unavailable", lambda: None)
    before = places()
    with patch_mindspore() as patch:
        assert places() == before
        assert "has MindSpore's own" in patch.report["mindspore.ops.flash_attention_score"]


def test_a_name_that_became_ours_leads_to_mindspore_s_own_where_the_device_has_it(monkeypatch):
    query = Tensor(np.ones((1, 4, 16, 16), np.float16))
    calls = []

    def own(query, *arguments, **keywords):
        calls.append(query.shape)
        return query * 2

    monkeypatch.setattr(fused, "flash_attention_score", own)
    with patch_mindspore():
        monkeypatch.setattr(registry.get_backend("fused"), "unavailable", lambda: None)
        with attention_backend("fused"):
            output = ops.flash_attention_score(query, query, query, 4, input_layout="BNSD")
    np.testing.assert_array_equal(output.asnumpy(), 2)
    assert calls == [query.shape]


class Client(nn.Cell):
    """Code written for MindSpore's operator, with the primitive it finds."""

    def __init__(self):
        super().__init__()
        from mindspore.ops.operations.nn_ops import FlashAttentionScore

        self.score = FlashAttentionScore(head_num=4, scale_value=0.25, input_layout="BSH")

    def construct(self, query, key, value):
        _, _, _, output = self.score(query, key, value)
        return output, ops.flash_attention_score(query, key, value, 4, scalar_value=0.25)


def test_client_code_runs_unchanged_on_a_cpu(mode):
    random = np.random.default_rng(0)
    tensors = [Tensor(random.standard_normal((2, 12, 64)).astype(np.float16)) for _ in range(3)]
    with patch_mindspore():
        by_primitive, by_function = Client()(*tensors)
    expected = flash_attention.flash_attention(*tensors, scale=0.25, input_layout="BSH", head_dim=16)
    np.testing.assert_array_equal(by_primitive.asnumpy(), expected.asnumpy())
    np.testing.assert_array_equal(by_function.asnumpy(), expected.asnumpy())


class EarlyClient(nn.Cell):
    """Code that imported the function before the patch."""

    def construct(self, query, key, value, mask):
        return early_bound(query, key, value, 4, attn_mask=mask, scalar_value=0.25)


def test_a_function_imported_before_the_patch_is_ours_too(mode):
    random = np.random.default_rng(0)
    tensors = [Tensor(random.standard_normal((2, 12, 64)).astype(np.float16)) for _ in range(3)]
    mask = Tensor(np.triu(np.ones((12, 12), np.uint8), 1))
    expected = flash_attention.flash_attention(*tensors, causal=True, scale=0.25, input_layout="BSH", head_dim=16)
    code, defaults = early_bound.__code__, early_bound.__defaults__
    with patch_mindspore(), patch_mindspore():
        np.testing.assert_array_equal(EarlyClient()(*tensors, mask).asnumpy(), expected.asnumpy())
    assert (early_bound.__code__, early_bound.__defaults__) == (code, defaults)


def test_mindspore_s_own_function_stays_within_reach():
    """A copy with its own code that calls MindSpore's primitive, for devices that have it."""
    query = Tensor(np.ones((1, 4, 16), np.float16))
    with patch_mindspore(), pytest.raises(RuntimeError, match="FlashAttentionScore"):
        fused.flash_attention_score(query, query, query, 1).asnumpy()
        ms.runtime.synchronize()


def test_unpatched_mindspore_has_no_kernel_on_a_cpu():
    """The patch is for this error. If the test fails, the patch may have become superfluous."""
    query = Tensor(np.ones((1, 4, 16), np.float16))
    with pytest.raises(RuntimeError):
        ops.flash_attention_score(query, query, query, 1).asnumpy()
        ms.runtime.synchronize()


@pytest.mark.spread
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_here_is_refused_by_name(mode, name):
    def call(query):
        return REFUSED[name](query)

    with patch_mindspore(), pytest.raises(NotImplementedError, match=f"^{name}: flash_attention has none; "):
        if name[0].isupper():
            getattr(ops.auto_generate, name, REFUSED[name])()
        else:
            assert getattr(ops.auto_generate, name, REFUSED[name]) is REFUSED[name]
            (ms.jit(call) if mode == "graph" else call)(Tensor([1.0]))
