"""Train tiny models of MindFormers with our attention and without flash attention, and compare them.

Arguments: "llama", "bloom", "gpt2" or "glm2", and "graph" or "pynative". test_clients.py starts it with one of two
releases. 1.0.2 imports the layer for the Ascend 910 from its place in MindSpore 2.2, 1.3.2 the primitive
FlashAttentionScore. Both were written for earlier releases of MindSpore; `add_what_mindspore_lost` and
`every_cell_casts` add what they miss.
"""

import sys
import types

import flash_attention
import mindspore as ms
import numpy as np
from flash_attention.compat import ascend910, mindspore_ops
from mindspore import Tensor, nn, ops
from mindspore.dataset import transforms

from tests.train.flash_attention.st.support.client_models import VOCABULARY, assert_close, fill

SEQ, PAD = 24, 0
FLOAT32 = dict.fromkeys(
    ("param_init_type", "compute_dtype", "layernorm_compute_type", "softmax_compute_type"), "float32"
)
SIZES = {"batch_size": 2, "seq_length": SEQ, "hidden_size": 32, "num_layers": 2, "pad_token_id": PAD}
HEADS = {"num_heads": 4, "vocab_size": VOCABULARY}
NO_DROPOUT = dict.fromkeys(("hidden_dropout_rate", "attention_dropout_rate", "embedding_dropout_prob"), 0.0)
GLM = {"num_attention_heads": 4, "multi_query_group_num": 2, "kv_channels": 8, "ffn_hidden_size": 48}
# Names, arguments, and how far gradients may be apart: Bloom and GPT 2 are in float16 whatever compute_dtype is.
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**HEADS, "n_kv_heads": 2, "use_rope_slice": True}, 2e-5),
    "bloom": ("BloomConfig", "BloomLMHeadModel", {**HEADS, **NO_DROPOUT, "eos_token_id": PAD}, 2e-2),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**HEADS, **NO_DROPOUT, "eos_token_id": PAD}, 4e-2),
    "glm2": ("ChatGLM2Config", "ChatGLM2ForConditionalGeneration", {**GLM, "padded_vocab_size": VOCABULARY}, 2e-5),
}


def add_what_mindspore_lost() -> None:
    """Add a module that MindSpore 2.10 has lost, and name the chip a 910."""
    former = types.ModuleType("mindspore.dataset.transforms.py_transforms")
    former.PyTensorOperation = object
    sys.modules[former.__name__] = transforms.py_transforms = former

    from mindformers import version_control

    version_control.get_ascend_soc_version = lambda: "ascend910"


def every_cell_casts(network: nn.Cell) -> None:
    """Give Cells a method `cast`, which some classes of MindFormers use."""
    for _, cell in network.cells_and_names():
        if not hasattr(cell, "cast"):
            cell.cast = ops.Cast()


def model(name: str, ours: bool) -> nn.Cell:
    """Return a model in training; its output is its loss."""
    import mindformers

    configuration, network, arguments, _ = MODELS[name]
    config = getattr(mindformers, configuration)(
        **SIZES, **FLOAT32, **arguments, use_flash_attention=ours, checkpoint_name_or_path=""
    )
    made = getattr(mindformers, network)(config)
    every_cell_casts(made)
    fill(made.parameters_and_names(), lambda one, values: one.set_data(Tensor(values)))
    return made.set_train()


def ours_in(network: nn.Cell) -> int:
    """Return how many layers and primitives of ours a model holds."""
    cells = [cell for _, cell in network.cells_and_names()]
    kept = [value for cell in cells for value in vars(cell).values()]
    layers = [cell for cell in cells if isinstance(cell, ascend910.FlashAttention)]
    return len(layers) + sum(isinstance(one, mindspore_ops.FlashAttentionScore) for one in kept)


def tokens(name: str) -> list:
    """Return the inputs of a training step; the first row ends in padding."""
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (2, SEQ + (name != "glm2"))).astype(np.int32)
    ids[0, -5:] = PAD
    return [Tensor(ids), Tensor(np.roll(ids, -1, 1))] if name == "glm2" else [Tensor(ids)]


def compare(name: str) -> None:
    """Print loss and the gradient of every parameter."""
    results = []
    for ours in (True, False):
        network = model(name, ours)
        assert ours_in(network) == (2 if ours else 0)
        weights = network.trainable_params()
        loss, gradients = ms.value_and_grad(network, None, weights)(*tokens(name))
        results.append([loss.asnumpy(), *(one.asnumpy() for one in gradients)])
    assert_close(name, ["loss", *(weight.name for weight in weights)], *results, tolerance=MODELS[name][3])


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE if sys.argv[2] == "graph" else ms.PYNATIVE_MODE)
    flash_attention.install()
    flash_attention.patch_mindspore()
    add_what_mindspore_lost()
    compare(sys.argv[1])
    print("ok")
