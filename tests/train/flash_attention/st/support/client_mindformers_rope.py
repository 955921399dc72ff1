"""Train with the rotary embedding of MindFormers 1.9, fused by our operator and composed. The argument is a mode.

The rest of that library is stood in for: the class reads two settings, and calls the primitive RotaryPositionEmbedding.
"""

import importlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import flash_attention
import mindspore as ms
import numpy as np
from flash_attention.compat import mindspore_ops
from mindspore import Tensor, nn, ops

SEQ, BATCH, HEADS, DIM = 12, 2, 4, 16
HOME = "mindformers.parallel_core.training_graph.base_models.common.embeddings"
STOOD_IN = {
    "mindformers.parallel_core.training_graph.device_matrix": ("layout",),
    "mindformers.parallel_core.transformer_config": ("TransformerConfig", "MLATransformerConfig"),
    f"{HOME}.rotary_pos_embedding": ("RotaryEmbedding",),
    f"{HOME}.yarn_rotary_pos_embedding": ("YarnRotaryEmbedding",),
}


def rotary_class() -> type:
    """Return the library's class."""
    path, name = Path(find_spec("mindformers").origin).parent, "mindformers"
    for part in (None, *HOME.split(".")[1:]):
        path, name = (path, name) if part is None else (path / part, f"{name}.{part}")
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(path)]
    for name, members in STOOD_IN.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(dict.fromkeys(members, object))
    return importlib.import_module(f"{HOME}.rope_utils").ApplyRotaryPosEmb


class Net(nn.Cell):
    """A layer of causal attention, whose output is a loss."""

    def __init__(self, rotary: nn.Cell):
        super().__init__()
        self.rotary, self.project = rotary, nn.Dense(HEADS * DIM, 3 * HEADS * DIM, has_bias=False)
        weight = np.random.default_rng(0).standard_normal((3 * HEADS * DIM, HEADS * DIM)) * 0.1
        self.project.weight.set_data(Tensor(weight.astype(np.float32)))
        angles = np.tile(np.arange(SEQ)[:, None] / 50 ** (np.arange(DIM // 2) / (DIM // 2)), 2)
        self.angles = Tensor(angles.reshape(SEQ, 1, 1, DIM).astype(np.float32))

    def construct(self, tokens):
        rows = ops.reshape(self.project(tokens), (SEQ, BATCH, 3 * HEADS, DIM))
        query, key, value = rows[:, :, :HEADS], rows[:, :, HEADS : 2 * HEADS], rows[:, :, 2 * HEADS :]
        query, key = self.rotary(query, (self.angles, 1.0)), self.rotary(key, (self.angles, 1.0))
        heads_first = [ops.transpose(one, (1, 2, 0, 3)) for one in (query, key, value)]
        return (flash_attention.flash_attention(*heads_first, causal=True) ** 2).mean()


def train(rotary: type, fused: bool) -> list:
    """Return the losses of three steps, and the weight behind them."""
    settings = {"use_eod_reset": False, "apply_rope_fusion": fused, "rotary_dtype": ms.float32}
    cell = rotary(types.SimpleNamespace(**settings))
    assert isinstance(getattr(cell, "rope", None), mindspore_ops.RotaryPositionEmbedding) == fused
    net = Net(cell)
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5)).set_train()
    draw = np.random.default_rng(1)
    steps = [step(Tensor(draw.standard_normal((SEQ, BATCH, HEADS * DIM), np.float32))) for _ in range(3)]
    return [*(one.asnumpy() for one in steps), net.project.weight.asnumpy()]


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)
    flash_attention.patch_mindspore()
    kind = rotary_class()
    for ours, composed in zip(train(kind, True), train(kind, False)):
        np.testing.assert_allclose(ours, composed, rtol=2e-5, atol=2e-6)
    print("ok")
