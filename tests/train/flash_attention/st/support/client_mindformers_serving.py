"""Serve a tiny Llama of MindFormers 1.3.2 through our operators.

Logits of prompts and steps are compared with its own forward without a cache.

Arguments: "th" or "bsh", the layout of the prompts; "graph" or "pynative"; "static" or "dynamic" shapes of the graphs.
"""

import os
import sys

LAYOUT, MODE, SHAPES = sys.argv[1:]
os.environ["RUN_MODE"] = "predict"
if LAYOUT == "th":
    os.environ["MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST"] = "FlashAttentionScore"

import flash_attention  # noqa: E402
import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from flash_attention.compat import mindspore_ops  # noqa: E402
from mindspore import Tensor, mint, ops  # noqa: E402

from tests.train.flash_attention.st.support.client_mindformers import (  # noqa: E402
    FLOAT32,
    HEADS,
    SIZES,
    add_what_mindspore_lost,
    every_cell_casts,
)
from tests.train.flash_attention.st.support.client_models import VOCABULARY, fill  # noqa: E402

BLOCK, LENGTHS, STEPS, SEQ = 8, (12, 7), 5, 24
TABLES = np.array([[3, 1, 7], [5, 2, -1]], np.int32)
OURS = (
    mindspore_ops.FlashAttentionScore,
    mindspore_ops.ReshapeAndCache,
    mindspore_ops.PagedAttention,
    mindspore_ops.ApplyRotaryPosEmb,
)


def model(use_past: bool):
    """Return the model, with a cache and our operators or without both."""
    import mindformers

    config = mindformers.LlamaConfig(
        **{**SIZES, **FLOAT32, **HEADS, "seq_length": SEQ, "rotary_dtype": "float32", "use_rope_slice": True},
        **{"n_kv_heads": 2, "use_past": use_past, "use_flash_attention": use_past, "is_dynamic": use_past},
        **{"block_size": BLOCK, "num_blocks": 9, "fused_rms_norm": False, "checkpoint_name_or_path": ""},
    )
    made = mindformers.LlamaForCausalLM(config)
    every_cell_casts(made)
    weights = [(name, one) for name, one in made.parameters_and_names() if "cache" not in name]
    fill(weights, lambda one, values: one.set_data(Tensor(values)))
    for name, one in made.parameters_and_names():
        if "cache" in name:
            one.set_data(Tensor(np.full(one.shape, np.nan, np.float32)))
    return made.set_train(False)


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
    return network(tokens, **given).asnumpy()


def serve() -> None:
    """Compare the logits of the prompts' last tokens and of each step."""
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (2, SEQ)).astype(np.int32)
    right = [model(False)(Tensor(row[None])).asnumpy() for row in ids]
    network = model(True)
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
            assert error < 2e-5, f"step {count}, sequence {one}: relative error {error:.2g}"
            print(f"step {count}, sequence {one}: {length} tokens, relative error {error:.1e}")


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE if MODE == "graph" else ms.PYNATIVE_MODE)
    print(flash_attention.patch_mindspore(inference=True).report["inference"])
    mint.cumsum = lambda tensor, axis: ops.cumsum(tensor, axis)  # it has no CPU kernel
    add_what_mindspore_lost()
    serve()
    print("ok")
