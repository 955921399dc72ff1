"""MindFormers' attention classes for the Ascend 910 on the virtual card: card_mindformers.py MODE FOLDER CLASS...

FOLDER holds the unpacked wheel of MindFormers 1.0.2. The package does not import on MindSpore 2.0.0, so its classes are
loaded without the modules that run when a package is imported.
Each class with our layer is compared with the same class without flash attention: the output, and the gradients of the
input and all weights.
"""

import importlib
import sys
import types
from pathlib import Path

import flash_attention
import mindspore as ms
import numpy as np
from flash_attention.compat import ascend910
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.st.support.card_program import on_the_card, report

BATCH, SEQ, HEADS, HEAD_DIM = 2, 48, 4, 16
WIDTH = HEADS * HEAD_DIM
# Relative to the largest number: all is float16, also the scores of MindFormers' own attention.
BOUND = 4e-3
DTYPES = {"compute_dtype": ms.float16, "param_init_type": ms.float32}


def load(folder):
    """Import their modules from the folder."""
    for name in ("", ".models", ".models.llama", ".modules", ".tools"):
        package = types.ModuleType(f"mindformers{name}")
        package.__path__ = [str(Path(folder) / package.__name__.replace(".", "/"))]
        sys.modules[package.__name__] = package
    ms.common.dtype.bfloat16 = ms.complex64  # MindSpore 2.0 has none; it stands in lists of allowed dtypes
    for name, kept in (("kvcache_mgr", "KVCacheMgr"), ("paged_attention_mgr", "PagedAttentionMgr")):
        module = importlib.import_module(f"mindformers.modules.{name}")
        setattr(sys.modules["mindformers.modules"], kept, getattr(module, kept))
    version = importlib.import_module("mindformers.version_control")
    transformer = importlib.import_module("mindformers.modules.transformer.transformer")
    llama = importlib.import_module("mindformers.models.llama.llama_transformer")
    # They use flash attention from MindSpore 2.2 on, and ask MindSpore for the chip.
    llama.is_version_ge = transformer.check_valid_flash_attention = lambda *_: True
    version.get_ascend_soc_version = lambda: "910a"
    transformer.choose_flash_attention_dtype = of_masks  # a graph of MindSpore 2.0 cannot take versions apart


def of_masks():
    """Return the dtype that MindFormers gives masks."""
    return ms.uint8


class Llama(nn.Cell):
    """LLamaAttention with grouped heads. Its mask is 1 for a hidden position."""

    def __init__(self, ours):
        super().__init__()
        module = sys.modules["mindformers.models.llama.llama_transformer"]
        options = {**DTYPES, "softmax_compute_dtype": ms.float32, "rotary_dtype": ms.float32}
        self.attention = module.LLamaAttention(
            BATCH, SEQ, WIDTH, n_heads=HEADS, n_kv_heads=2, use_flash_attention=ours, **options
        )
        angles = np.outer(np.arange(SEQ), 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).repeat(2, 1)
        swap = np.kron(np.eye(HEAD_DIM // 2), [[0, 1], [-1, 0]])
        self.rotation = tuple(Tensor(one.astype(np.float32)) for one in (np.cos(angles), np.sin(angles), swap))
        self.ours = ours

    def construct(self, x, hidden):
        return self.attention(x, self.rotation, hidden if self.ours else ops.expand_dims(hidden, 1) * -1e4)


class MultiHead(nn.Cell):
    """MultiHeadAttention. Its mask is 1 for a visible position."""

    def __init__(self, ours):
        super().__init__()
        module = sys.modules["mindformers.modules.transformer.transformer"]
        options = {"hidden_dropout_rate": 0.0, "attention_dropout_rate": 0.0, "softmax_compute_type": ms.float32}
        self.attention = module.MultiHeadAttention(
            BATCH, SEQ, SEQ, WIDTH, HEADS, use_flash_attention=ours, **options, **DTYPES
        )

    def construct(self, x, hidden):
        return self.attention(x, x, x, 1 - hidden)[0]


class Gradients(nn.Cell):
    """Return the gradients of the input and all weights."""

    def __init__(self, network):
        super().__init__()
        self.network, self.weights = network, ms.ParameterTuple(network.trainable_params())
        self.gradients = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    def construct(self, x, hidden, sens):
        return self.gradients(self.network, self.weights)(x, hidden, sens)


def results(kind, ours):
    """Return the output and gradients, by name."""
    network, random = kind(ours), np.random.default_rng(0)
    for weight in network.trainable_params():
        weight.set_data(Tensor((random.standard_normal(weight.shape) / 8).astype(np.float32)))
    layers = [cell for _, cell in network.cells_and_names() if isinstance(cell, ascend910.FlashAttention)]
    assert len(layers) == int(ours), f"{len(layers)} layers of ours"
    x, sens = (Tensor(random.standard_normal((BATCH, SEQ, WIDTH)).astype(np.float16)) for _ in range(2))
    hidden = Tensor(np.triu(np.ones((SEQ, SEQ), np.float16), 1)[None].repeat(BATCH, 0))
    network.set_train()
    output = network(x, hidden)
    (d_x, _), d_weights = Gradients(network)(x, hidden, ops.cast(sens, output.dtype))
    names = [weight.name for weight in network.trainable_params()]
    return dict(zip(("output", "x", *names), (one.asnumpy().astype(float) for one in (output, d_x, *d_weights))))


def check(name):
    """Return the largest error over the largest number of its result."""
    ours, theirs = (results({"llama": Llama, "multi-head": MultiHead}[name], with_ours) for with_ours in (True, False))
    # Results reach 3 or more, but for the gradient of the bias of keys: it changes no output.
    errors = {key: np.abs(ours[key] - theirs[key]).max() / max(np.abs(theirs[key]).max(), 3) for key in theirs}
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= BOUND, errors
    return f"{worst} {errors[worst]:.1e}"


if __name__ == "__main__":
    on_the_card(sys.argv[1])
    flash_attention.install()
    load(sys.argv[2])
    report(sys.argv[3:], check)
