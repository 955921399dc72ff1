"""`mindspore.amp` and `to_float` around the layer."""

import copy
import sys
from pathlib import Path

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.layer_inputs import draw

BACKENDS = ("math", "cpu")


@pytest.fixture(autouse=True)
def _folder_of_its_own(monkeypatch, tmp_path):
    """Keep what level O1 changes: it writes the code that it generates, and changes sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


class Doubled(FlashAttention):
    """A user's own layer."""

    def construct(self, query, key, value, attention_mask=None, alibi_mask=None):
        return super().construct(query, key, value, attention_mask, alibi_mask) * 2


class Projected(nn.Cell):
    """Two layers behind a projection, as mixed precision finds them in a model."""

    def __init__(self, backend, layer=FlashAttention):
        super().__init__()
        self.project = nn.Dense(32, 32)
        self.attention = layer(32, 0.1, backend=backend)
        self.second = layer(32, causal=True, alibi=True, backend=backend)

    def construct(self, hidden, mask):
        heads = self.project(hidden)
        heads = self.attention(heads, heads, heads, mask)
        return self.second(heads, heads, heads)


# Level O1 rewrites classes.
O1 = pytest.param(
    "O1", marks=pytest.mark.skipif(ms.__version__.startswith("2.0"), reason="mindspore_faults/rewritten_none.py")
)


@pytest.mark.spread
@pytest.mark.parametrize("layer", (FlashAttention, Doubled))
@pytest.mark.parametrize("level", ("O0", O1, "O2", "O3"))
def test_models_at_every_level(level, layer, mode):
    if (mode, level, layer) == ("graph", "O1", Doubled):
        pytest.skip("in a graph, MindSpore (2.10) takes the super() of a class that it rewrote for the class itself")
    hidden, mask = draw(2, 4, 40, 32), Tensor(np.triu(np.ones((40, 40), np.float32), 1))
    # Level O1 rewrites classes, so a second network runs on rewritten classes. Graphs of the other levels need one run.
    for _ in range(2 if mode == "pynative" or level == "O1" else 1):
        network = ms.amp.auto_mixed_precision(Projected("cpu", layer), level).set_train()
        gradients = ops.GradOperation(get_all=True)(network)(hidden, mask)
        assert np.isfinite(gradients[0].asnumpy()).all()
        assert gradients[0].asnumpy().any()
        assert not gradients[1].asnumpy().any()


@pytest.mark.parametrize("level", ("O0", O1, "O2", "O3"))
def test_the_layer_itself_as_often_as_wanted(level):
    query, key, value = draw(2, 4, 9, 16), draw(2, 4, 11, 16, seed=1), draw(2, 4, 11, 16, seed=2)
    plain = FlashAttention(16, scale=0.3, backend="math")(query, key, value).asnumpy()
    for _ in range(3):
        layer = ms.amp.auto_mixed_precision(FlashAttention(16, scale=0.3, backend="math"), level)
        np.testing.assert_allclose(layer(query, key, value).asnumpy(), plain, atol=5e-3)


class Attending(nn.Cell):
    """One layer in a network."""

    def __init__(self, backend):
        super().__init__()
        self.attention = FlashAttention(16, alibi=True, backend=backend)

    def construct(self, query, alibi):
        return self.attention(query, query, query, None, alibi)


@pytest.mark.skipif(ms.__version__.startswith("2.0"), reason="mindspore_faults/rewritten_none.py, and no level auto")
@pytest.mark.spread
@pytest.mark.parametrize("backend", ("cpu", "emulator"))
@pytest.mark.parametrize("level", ("O1", "auto", "the layer", "a product", "neither"))
def test_levels_that_cast_by_name_cast_the_layer_as_a_product(level, backend, mode):
    query, alibi = draw(1, 2, 20, 16), draw(1, 2, 1, 20, seed=1)
    lists = {"the layer": [FlashAttention], "a product": [ops.MatMul], "neither": [nn.Conv2d]}
    if level in lists:
        network = ms.amp.custom_mixed_precision(Attending(backend), white_list=lists[level])
    else:
        network = ms.amp.auto_mixed_precision(Attending(backend), level)
    if level == "neither" and backend == "emulator":
        with pytest.raises(RuntimeError, match="multiplies float16 only, got float32"):
            network(query, alibi)
        return
    dtype = ms.float32 if level == "neither" else ms.float16
    expected = FlashAttention(16, alibi=True, backend=backend)(*[query.astype(dtype)] * 3, None, alibi.astype(dtype))
    output = network(query, alibi)
    assert output.dtype == (ms.float16 if level == "auto" else ms.float32)
    np.testing.assert_array_equal(output.asnumpy(), expected.astype(output.dtype).asnumpy())
    gradients = ops.GradOperation(get_all=True)(network)(query, alibi)
    assert [gradient.dtype for gradient in gradients] == [ms.float32] * 2
    assert all(gradient.asnumpy().any() for gradient in gradients)
    if level != "auto":  # MindSpore copies no network of that level
        np.testing.assert_array_equal(copy.deepcopy(network)(query, alibi).asnumpy(), output.asnumpy())


@pytest.mark.parametrize("level", (O1,))
def test_the_package_s_folders_stay_off_the_path_of_modules(level):
    """On that path somebody else's `import call` would find this package's module."""
    ms.amp.auto_mixed_precision(Projected("math"), level)
    package = Path(flash_attention.__file__).parent
    assert not [path for path in sys.path if package in (Path(path), *Path(path).parents)]


@pytest.mark.spread
@pytest.mark.parametrize("backend", BACKENDS)
def test_to_float_casts_the_inputs(backend, mode):
    query, key, value = draw(2, 4, 40, 32), draw(2, 2, 56, 32, seed=1), draw(2, 2, 56, 32, seed=2)
    alibi = draw(2, 4, 1, 56)
    half = [tensor.astype(ms.float16) for tensor in (query, key, value, alibi)]
    expected = FlashAttention(32, alibi=True, backend=backend)(*half[:3], None, half[3]).asnumpy()
    layer = FlashAttention(32, alibi=True, backend=backend).to_float(ms.float16)
    output = layer(query, key, value, None, alibi)
    assert output.dtype == ms.float16
    np.testing.assert_array_equal(output.asnumpy(), expected)
    differentiate = ops.GradOperation(get_all=True, sens_param=True)
    gradient = differentiate(layer)(query, key, value, None, alibi, output)[0]
    assert gradient.dtype == ms.float32
