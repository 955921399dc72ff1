"""The attention function for MindNLP; its models: st/test_clients.py."""

import numpy as np
import pytest
from flash_attention.compat import mindnlp, transformers
from mindspore import Tensor, nn


@pytest.mark.skipif(not hasattr(Tensor, "device"), reason="tensors of this MindSpore do not say where they lie")
def test_the_result_is_that_for_mindone_and_lies_where_the_query_does():
    tensors = [Tensor(np.random.default_rng(7).standard_normal((2, 4, 8, 8)).astype(np.float32)) for _ in range(3)]
    arguments = nn.Cell(), *tensors, None
    output, probabilities = mindnlp.attention_forward(*arguments, 0.0, scaling=0.4, softcap=0.5)
    expected, _ = transformers.attention_forward(*arguments, 0.0, scaling=0.4, softcap=0.5)
    np.testing.assert_array_equal(output.asnumpy(), expected.asnumpy())
    assert probabilities is None
    if hasattr(tensors[0], "device"):  # not in MindSpore 2.0
        assert output._device == tensors[0].device


def test_dtypes_may_go_by_the_name_that_mindnlp_gives_them():
    from flash_attention.bridge.tensors import tensor_spec

    assert tensor_spec("query", ((1, 2), "mindspore.float32")) == tensor_spec("query", ((1, 2), "Float32"))


def test_names_that_the_library_reserves_are_refused():
    with pytest.raises(ValueError, match="name: got 'flash_attention_2'"):
        mindnlp.register("flash_attention_2")


def test_register_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mindnlp", None)
    with pytest.raises(ImportError, match="mindnlp"):
        mindnlp.register()
