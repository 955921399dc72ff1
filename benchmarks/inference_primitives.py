"""Time MindSpore's inference operators through the patch, beside our own functions.

    python -m benchmarks.inference_primitives

Prefill: the primitive of prompts, padded and packed, and our own functions. A decoding step: through the patch, our own
paged_attention, and the same composed from MindSpore's operators with keys and values read once. With MindFormers 1.3.2
installed, also a whole step of its Llama with 4 layers, and how much of it the inference operators take.
The ways of a comparison run in turns; a figure is a median.
"""

from __future__ import annotations

import importlib.util
import os
import time

import mindspore as ms
import numpy as np
from flash_attention import flash_attention, flash_attention_varlen, paged_attention, patch_mindspore
from flash_attention.compat.mindspore_ops import PagedAttention, flash_attention_score
from mindspore import Parameter, Tensor, ops

BATCH, HEADS, KV_HEADS, DIM, KEYS, BLOCK, ROUNDS = 8, 32, 8, 128, 4096, 128, 15


def composed(query, key_cache, value_cache, tables, lengths):
    """Return the same from MindSpore's operators: keys and values gathered once, heads of a group together."""
    key, value = (
        ops.gather(cache, tables, 0).reshape((BATCH, KEYS, KV_HEADS, DIM)) for cache in (key_cache, value_cache)
    )
    rows = query.reshape((BATCH, KV_HEADS, HEADS // KV_HEADS, DIM))
    scores = ops.matmul(rows, key.transpose((0, 2, 3, 1))).astype(ms.float32) * DIM**-0.5
    hidden = ops.arange(KEYS).reshape((1, 1, 1, -1)) >= lengths.reshape((-1, 1, 1, 1))
    weights = ops.softmax(ops.masked_fill(scores, hidden, -1e9), -1).astype(value.dtype)
    return ops.matmul(weights, value.transpose((0, 2, 1, 3))).reshape((BATCH, HEADS * DIM))


def medians_of(ways: dict) -> dict[str, float]:
    """Return the median time of each way in seconds. They run in turns, each as often behind the other."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        order = list(ways.items())[:: 1 if turn % 2 else -1]
        for name, way in (*order, *order):
            start = time.perf_counter()
            way().asnumpy()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values[4:])) for name, values in times.items()}


def prefill(dtype) -> None:
    """Print the times of prompts: two padded ones of 1,024 tokens, and the same packed."""
    generator = np.random.default_rng(0)
    rows = [
        Tensor(generator.standard_normal((2, 1024, heads * DIM), np.float32)).astype(dtype)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    flat = [one.reshape((2048, -1)) for one in rows]
    apart = [one.reshape((2048, -1, DIM)) for one in flat]
    lengths, ends = Tensor([1024, 1024], ms.int32), Tensor([0, 1024, 2048], ms.int32)
    mask = Tensor(np.triu(np.ones((128, 128), np.float16), 1))
    rules = {"scalar_value": DIM**-0.5, "next_tokens": 0, "inference": True}
    packed = {"actual_seq_qlen": lengths, "actual_seq_kvlen": lengths, "attn_mask": mask, "input_layout": "TH"}
    pairs = {
        "padded": (
            lambda: flash_attention_score(*rows, HEADS, **rules),
            lambda: flash_attention(*rows, causal=True, input_layout="BSH", head_dim=DIM),
        ),
        "packed": (
            lambda: flash_attention_score(*flat, HEADS, **rules, **packed),
            lambda: flash_attention_varlen(*apart, ends, ends, causal=True),
        ),
    }
    for name, (patched, own) in pairs.items():
        medians = medians_of({"through the patch": patched, "own function": own})
        first, second = medians.values()
        print(
            str(dtype), f"prefill {name}", *(f"{one} {value * 1e3:.1f} ms" for one, value in medians.items()), sep="  "
        )
        print(f"  through the patch / own function {first / second:.3f}")


def measure(dtype) -> None:
    """Print the times of a decoding step of one dtype."""
    generator = np.random.default_rng(0)
    blocks = BATCH * KEYS // BLOCK
    caches = [
        Parameter(
            Tensor(generator.standard_normal((blocks, BLOCK, KV_HEADS, DIM), np.float32)).astype(dtype), name=name
        )
        for name in ("key_cache", "value_cache")
    ]
    tables = Tensor(generator.permutation(blocks).reshape(BATCH, -1).astype(np.int32))
    lengths = Tensor(np.full(BATCH, KEYS, np.int32))
    query = Tensor(generator.standard_normal((BATCH, HEADS * DIM), np.float32)).astype(dtype)
    patched, apart = PagedAttention(HEADS, DIM**-0.5, KV_HEADS), query.reshape((BATCH, HEADS, DIM))
    ways = {
        "through the patch": lambda: patched(query, *caches, tables, lengths),
        "paged_attention": lambda: paged_attention(apart, *caches, tables, lengths),
        "composed": lambda: composed(query, *caches, tables, lengths),
    }
    medians = medians_of(ways)
    own, first = medians["paged_attention"], medians["through the patch"]
    print(str(dtype), *(f"{name} {value * 1e3:.1f} ms" for name, value in medians.items()), sep="  ")
    print(
        f"  through the patch / paged_attention {first / own:.3f}, composed / patch {medians['composed'] / first:.1f}"
    )


def llama() -> None:
    """Print the time of a step of MindFormers' Llama, and the share of attention."""
    os.environ["RUN_MODE"] = "predict"
    from tests.train.flash_attention.st.support.client_mindformers import add_what_mindspore_lost, every_cell_casts

    patch_mindspore(inference=True)
    add_what_mindspore_lost()
    import mindformers

    layers, blocks = 4, BATCH * KEYS // BLOCK
    config = mindformers.LlamaConfig(
        **{"batch_size": BATCH, "seq_length": KEYS, "hidden_size": HEADS * DIM, "num_layers": layers},
        **{"num_heads": HEADS, "n_kv_heads": KV_HEADS, "vocab_size": 1024, "use_past": True},
        **{"use_flash_attention": True, "is_dynamic": True, "fused_rms_norm": False, "block_size": BLOCK},
        **{"num_blocks": blocks, "compute_dtype": "float32", "param_init_type": "float32", "rotary_dtype": "float32"},
        **{"checkpoint_name_or_path": ""},
    )
    network = mindformers.LlamaForCausalLM(config).set_train(False)
    every_cell_casts(network)
    network.add_flags_custom(is_first_iteration=False)
    given = {
        "batch_valid_length": Tensor(np.full(BATCH, KEYS, np.int32)),
        "block_tables": Tensor(np.arange(blocks, dtype=np.int32).reshape(BATCH, -1)),
        "slot_mapping": Tensor(np.arange(1, BATCH + 1, dtype=np.int32) * KEYS - 1),
    }
    tokens, attention = Tensor(np.ones((BATCH, 1), np.int32)), network.model.layers[0].attention.infer_attention
    wide = [Tensor(np.ones((BATCH, 1, heads * DIM), np.float32)) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    table = network.model.freqs_mgr.increment(given["batch_valid_length"])
    numbers = given["batch_valid_length"], given["block_tables"], given["slot_mapping"]
    medians = medians_of(
        {"step": lambda: network(tokens, **given), "attention": lambda: attention(*wide, *numbers, table)}
    )
    step, one = medians["step"], medians["attention"]
    print(f"MindFormers' Llama, {layers} layers  step {step * 1e3:.0f} ms  attention of a layer {one * 1e3:.0f} ms")
    print(f"  share of attention {layers * one / step:.2f}")


if __name__ == "__main__":
    for one in (ms.float32, ms.float16):
        prefill(one)
        measure(one)
    if importlib.util.find_spec("mindformers"):
        llama()
