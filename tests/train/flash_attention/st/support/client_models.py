"""Share tiny models, their inputs and comparisons between the programs client_*.py."""

from collections.abc import Callable, Iterable

import numpy as np

PREFIXES = {"llama": "Llama", "qwen2": "Qwen2", "gemma2": "Gemma2"}
VOCABULARY = 61
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0}
SEQ = 9
PADDING = np.array([[0, 0, 0] + [1] * (SEQ - 3), [1] * SEQ])


def options(name: str) -> dict:
    """Return the arguments of a configuration with the names of Hugging Face's transformers."""
    return {**TINY, **(GEMMA if name == "gemma2" else {})}


def fill(parameters: Iterable, assign: Callable) -> None:
    """Give parameters, (path, parameter) each, the same random numbers in every model."""
    random = np.random.default_rng(0)
    for path, parameter in sorted(parameters, key=lambda pair: pair[0]):
        values = random.standard_normal(tuple(parameter.shape)) * 0.2 + ("norm" in path)
        assign(parameter, values.astype(np.float32))


def assert_close(name: str, paths: list, actual: list, expected: list, tolerance: float = 2e-5) -> None:
    """Check that every array differs by less than `tolerance` times the largest number in it."""
    assert len(paths) == len(actual) == len(expected) > 15
    for path, one, other in zip(paths, actual, expected):
        error = np.abs(one - other).max() / max(np.abs(other).max(), 1e-3)
        assert error < tolerance, f"{name}: {path}: relative error {error:.2g}"
    print(name, len(paths) - 1, "gradients agree")


def compare(name: str, models: tuple, paths: list, run: Callable) -> None:
    """Compare logits and gradients of two models, the first with our attention.

    Args:
        paths: names of the parameters, in the order of their gradients.
        run: (model, ids, mask or None, weight) to the logits and the gradients of the sum of logits * weight.
    """
    random = np.random.default_rng(1)
    ids = random.integers(1, VOCABULARY, PADDING.shape)
    for mask in (None, PADDING):
        shown = np.ones_like(PADDING) if mask is None else mask
        weight = (random.standard_normal((*shown.shape, VOCABULARY)) * shown[..., None]).astype(np.float32)
        results = []
        for model in models:
            logits, *gradients = run(model, ids, mask, weight)
            results.append([logits * shown[..., None], *gradients])
        assert_close(f"{name}, padding {mask is not None}", ["logits", *paths], *results)


def generate(name: str, models: tuple, run: Callable) -> None:
    """Check that greedy decoding with a cache gives the same tokens; `run`: (model, ids, mask) to the tokens."""
    ids = np.random.default_rng(2).integers(1, VOCABULARY, PADDING.shape) * PADDING
    tokens = [run(model, ids, PADDING) for model in models]
    np.testing.assert_array_equal(*tokens)
    assert tokens[0].shape[1] >= 6
    print(name, "generates", tokens[0][:, -6:].tolist())


def record_masks(compat) -> list:
    """Note the rank of the mask, or 0 without one, of every call of `compat.attention_forward`."""
    ranks, attention = [], compat.attention_forward

    def recorded(module, query, key, value, attention_mask, *arguments, **keywords):
        ranks.append(0 if attention_mask is None else attention_mask.ndim)
        return attention(module, query, key, value, attention_mask, *arguments, **keywords)

    compat.attention_forward = recorded
    return ranks
