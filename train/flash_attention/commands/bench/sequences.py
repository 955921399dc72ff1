"""Packed sequences and decoding: the native kernel beside the limits of work and memory, and beside torch."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from flash_attention.call import AttentionRules, Call, Varlen
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import stored
from flash_attention.measuring.timing import medians

TOKENS, DOCUMENTS = 16384, 32
CACHED = 32768
HEADS, KV_HEADS, DIM = 32, 8, 128


def packed(rounds: int, threads: int, quick: bool) -> list[Figure]:
    """Compare the time of 32 packed documents with as much work of one long call."""
    library = _library(threads)
    tokens, heads = (1024, 2) if quick else (TOKENS, 4)
    ends = document_ends(tokens)
    lengths = np.diff(ends)
    causal = AttentionRules(causal=True)
    dense = Call(1, heads, tokens, tokens, DIM, dtype="float32", layout="BSND", rules=causal)
    call = replace(dense, storage=Varlen(ends, ends, len(ends) - 1))
    generator = np.random.default_rng(1)
    query, key, value, d_output = (generator.standard_normal((tokens, heads, DIM), np.float32) for _ in range(4))
    # Results go to memory that held results before, as in MindSpore: fresh pages cost as much as a small document.
    output, lse = np.zeros_like(query), np.zeros((heads, tokens), np.float32)
    gradients = tuple(np.zeros_like(query) for _ in range(3))
    whole = [array[None] for array in (query, key, value, d_output)]
    whole_results, whole_gradients = (output[None], lse[None]), tuple(array[None] for array in gradients)

    def one_call():
        library.forward(dense, *whole[:3], out=whole_results)
        return lambda: library.backward(dense, *whole[:3], *whole_results, whole[3], out=whole_gradients)

    def documents():
        library.forward(call, query, key, value, out=(output, lse))
        return lambda: library.backward(call, query, key, value, output, lse, d_output, out=gradients)

    calls = {"one call": one_call, "packed": documents}
    if importlib.util.find_spec("torch"):
        calls["torch"] = _torch_documents((query, key, value, d_output), ends, threads)
    # Pairs of a causal sequence: n (n + 1) / 2.
    share = float((lengths * (lengths + 1)).sum()) / (tokens * (tokens + 1))
    found = medians(calls, rounds)
    figures = []
    for index, name in enumerate(("forward", "backward")):
        median = {call: seconds[index] for call, seconds in found.items()}
        ideal = median["one call"] * share
        print(
            f"packed {name}: {DOCUMENTS} documents in {tokens} tokens, H={heads} D={DIM} float32 causal: "
            + ", ".join(f"{call} {value * 1e3:.1f} ms" for call, value in median.items())
            + f"; ideal share {ideal * 1e3:.1f} ms",
            flush=True,
        )
        figures.append(Figure(f"packed {name}: of the ideal share", 100 * ideal / median["packed"], "%"))
        figures.append(_against(f"packed {name}: against torch looped", median, "packed"))
    return figures


def document_ends(tokens: int) -> tuple[int, ...]:
    """Return the ends of DOCUMENTS documents of mixed lengths, with the leading 0."""
    weights = np.random.default_rng(0).uniform(0.1, 1.9, DOCUMENTS)
    inner = np.round(np.cumsum(weights)[:-1] / weights.sum() * tokens).astype(int).tolist()
    return (0, *inner, tokens)


def decode(rounds: int, threads: int, quick: bool, dtypes: tuple) -> list[Figure]:
    """Measure one query against many keys: bytes of keys and values per second against a copy of the same bytes."""
    library = _library(threads)
    keys = 1024 if quick else CACHED
    figures = []
    for dtype in dtypes:
        call = Call(batch=1, heads=HEADS, kv_heads=KV_HEADS, seq_q=1, seq_k=keys, head_dim=DIM, dtype=dtype)
        query, key, value = (
            stored(np.random.default_rng(2).standard_normal(shape, np.float32), dtype)
            for shape in (call.shape_query(), call.shape_key(), call.shape_value())
        )
        calls: dict[str, Callable] = {
            "flash": functools.partial(library.forward, call, query, key, value),
            "copy": _copy((key, value), threads),
        }
        if importlib.util.find_spec("torch"):
            calls["torch"] = _torch_decode(query, key, value, dtype, threads)
        median = {call: seconds for call, (seconds,) in medians(calls, rounds).items()}
        size = key.nbytes + value.nbytes
        print(
            f"decode: 1 query, {keys} keys, H={HEADS} Hkv={KV_HEADS} D={DIM} {dtype}: "
            + ", ".join(
                f"{call} {value * 1e3:.2f} ms ({size / value / 1e9:.1f} GB/s)" for call, value in median.items()
            ),
            flush=True,
        )
        figures.append(Figure(f"decode {dtype}: of the copy rate", 100 * median["copy"] / median["flash"], "%"))
        figures.append(_against(f"decode {dtype}: against torch", median, "flash"))
    return figures


def _against(name: str, median: dict[str, float], ours: str) -> Figure:
    """Return our speed over torch's as a figure, if torch is installed."""
    if "torch" not in median:
        return Figure(name, None, "x", "torch is not installed")
    return Figure(name, median["torch"] / median[ours], "x")


def _library(threads: int):
    """Return a kernel with so many threads. A kernel counts its threads when it is loaded."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from flash_attention.backends.cpu import library

    return library


def _copy(sources: tuple[np.ndarray, ...], threads: int) -> Callable:
    """Return a function that copies arrays with so many threads; NumPy lets others run meanwhile."""
    arrays = [(np.empty_like(source), source) for source in sources]
    pieces = [[np.array_split(array.reshape(-1), threads) for array in pair] for pair in arrays]
    pairs = [pair for targets, parts in pieces for pair in zip(targets, parts)]
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.copyto, *zip(*pairs)))


def _torch_documents(tensors: tuple, ends: tuple, threads: int) -> Callable:
    import torch

    torch.set_num_threads(threads)
    query, key, value, d_output = (torch.from_numpy(array).transpose(0, 1)[None] for array in tensors)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]

    def forward():
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(*(x[:, :, a:b] for x in leaves), is_causal=True)
            for a, b in zip(ends, ends[1:])
        ]
        output = torch.cat(outputs, 2)
        return lambda: torch.autograd.grad(output, leaves, d_output)

    return forward


def _torch_decode(query: np.ndarray, key: np.ndarray, value: np.ndarray, dtype: str, threads: int) -> Callable:
    import torch

    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    if dtype == "bfloat16":
        tensors = [tensor.view(torch.bfloat16) for tensor in tensors]

    def forward():
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True)

    return forward
