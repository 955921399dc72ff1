"""Serve a tiny Llama or ChatGLM 2 of MindFormers 1.3.2 through our operators.

Logits of prompts and steps are compared with its own forward without a cache.

Arguments: "llama" or "glm2"; "th" or "bsh", the layout of the prompts; "graph" or "pynative"; "static" or "dynamic"
shapes of the graphs. On the virtual card the folders with MindFormers follow; there our operators are in float16.
"""

import os
import sys

MODEL, LAYOUT, MODE, SHAPES, *CARD = sys.argv[1:]
DTYPE = "float16" if CARD else "float32"
sys.path.extend(CARD)
os.environ["RUN_MODE"] = "predict"
if LAYOUT == "th":
    os.environ["MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST"] = "FlashAttentionScore"

import flash_attention  # noqa: E402
import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from flash_attention.compat import mindspore_ops  # noqa: E402
from mindspore import Tensor, mint, nn, ops  # noqa: E402

from tests.train.flash_attention.st.support.client_mindformers import (  # noqa: E402
    FLOAT32,
    GLM,
    HEADS,
    SIZES,
    add_what_mindspore_lost,
    every_cell_casts,
)
from tests.train.flash_attention.st.support.client_models import VOCABULARY, fill  # noqa: E402

BLOCK, LENGTHS, STEPS, SEQ = (16 if CARD else 8), (12, 7), 5, 24
TABLES = np.array([[3, 1, 7], [5, 2, -1]], np.int32)
OURS = (
    mindspore_ops.FlashAttentionScore,
    mindspore_ops.ReshapeAndCache,
    mindspore_ops.PagedAttention,
    mindspore_ops.ApplyRotaryPosEmb,
)


class Product(nn.Cell):
    """The product with a mask in float32: MindSpore 2.10 makes 240 of 1 * -10000 in uint8."""

    def construct(self, mask, number):
        return ops.cast(mask, ms.float32) * number


def model(use_past: bool, dtype: str = "float32"):
    """Return the model, with a cache and our operators or without both."""
    import mindformers
    from mindformers.models.glm2.glm2_transformer import CoreAttention

    sizes = {**SIZES, **FLOAT32, "hidden_size": 64, "compute_dtype": dtype, "rotary_dtype": dtype}
    sizes |= {"use_past": use_past, "use_flash_attention": use_past, "is_dynamic": use_past}
    sizes |= {"block_size": BLOCK, "num_blocks": 9, "checkpoint_name_or_path": ""}
    if MODEL == "llama":
        own = {**HEADS, "n_kv_heads": 2, "use_rope_slice": True, "fused_rms_norm": False}
        made = mindformers.LlamaForCausalLM(mindformers.LlamaConfig(**sizes, **own))
    else:
        own = {**GLM, "kv_channels": 16, "padded_vocab_size": VOCABULARY}
        made = mindformers.ChatGLM2ForConditionalGeneration(mindformers.ChatGLM2Config(**sizes, **own))
    every_cell_casts(made)
    for _, cell in made.cells_and_names():
        if isinstance(cell, CoreAttention):
            cell.mul_mask = Product()
    weights = [(name, one) for name, one in made.parameters_and_names() if "cache" not in name]
    fill(weights, lambda one, values: one.set_data(Tensor(values)))
    for name, one in made.parameters_and_names():
        if "cache" in name:
            one.set_data(Tensor(np.full(one.shape, np.nan, DTYPE)))
    return made.set_train(False)


def logits_of(network, *given, **named) -> np.ndarray:
    """Return logits, a row for each token or for each sequence."""
    found = network(*given, **named)
    found = found[0] if isinstance(found, tuple) else found
    return found.asnumpy().reshape(-1, VOCABULARY)


def slots(sequence: int, positions) -> np.ndarray:
    """Return the slots of a sequence's tokens."""
    positions = np.asarray(positions)
    return TABLES[sequence, positions // BLOCK] * BLOCK + positions % BLOCK


def prompts(ids: np.ndarray) -> tuple:
    """Return the prompts and their slots, packed or padded with tokens that no slot takes."""
    if LAYOUT == "th":
        tokens = np.concatenate([row[:length] for row, length in zip(ids, LENGTHS)])[None]
        return tokens, np.concatenate([slots(one, range(length)) for one, length in enumerate(LENGTHS)])
    places = np.full((2, max(LENGTHS)), -1)
    for one, length in enumerate(LENGTHS):
        places[one, :length] = slots(one, range(length))
    return ids[:, : max(LENGTHS)], places.reshape(-1)


def step(network, tokens, lengths, places) -> np.ndarray:
    """Return the logits of the last token of each sequence."""
    numbers = (Tensor(np.array(one, np.int32)) for one in (tokens, lengths, TABLES, places))
    tokens, lengths, tables, places = numbers
    if SHAPES == "dynamic":
        lengths = lengths.reshape((1, -1))
    given = {"batch_valid_length": lengths, "block_tables": tables, "slot_mapping": places}
    found = logits_of(network, tokens, **given)
    if len(found) == len(LENGTHS):
        return found
    return found.reshape(len(LENGTHS), -1, VOCABULARY)[np.arange(len(LENGTHS)), lengths.asnumpy().reshape(-1) - 1]


def serve() -> None:
    """Compare the logits of the prompts' last tokens and of each step."""
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (2, SEQ)).astype(np.int32)
    own = model(False), model(False, DTYPE)
    right, low = ([logits_of(one, Tensor(row[None])) for row in ids] for one in own)
    # In float16, ours may err twice as much as the model's own attention does.
    allowed = max(2e-5, *(2 * np.abs(one - two).max() / np.abs(one).max() for one, two in zip(right, low)))
    network = model(True, DTYPE)
    kept = [value for _, cell in network.cells_and_names() for value in vars(cell).values()]
    assert all(sum(isinstance(one, kind) for one in kept) == 2 for kind in OURS)
    if SHAPES == "dynamic":
        network.set_dynamic_inputs()
    tokens, places = prompts(ids)
    for count in range(STEPS + 1):
        lengths = np.array(LENGTHS) + count
        network.add_flags_custom(is_first_iteration=count == 0)
        network.phase = "prefill" if count == 0 else "increment"  # each has its graph
        if count > 0:
            tokens = ids[np.arange(2), lengths - 1][:, None]
            places = [slots(one, length - 1) for one, length in enumerate(lengths)]
        logits = step(network, tokens, lengths, places)
        for one, length in enumerate(lengths):
            scale = np.abs(right[one]).max()
            error = np.abs(logits[one] - right[one][length - 1]).max() / scale
            print(f"step {count}, sequence {one}: {length} tokens, relative error {error:.1e} of {allowed:.1e}")
            assert error < allowed, f"step {count}, sequence {one}"


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
    if CARD:
        ms.set_context(device_target="Ascend")
    print(flash_attention.patch_mindspore(inference=True).report["inference"])
    mint.cumsum = lambda tensor, axis: ops.cumsum(tensor, axis)  # it has no CPU kernel
    add_what_mindspore_lost()
    serve()
    print("ok")
