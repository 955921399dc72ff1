"""Tiny models of mindone with our attention against the same models with the library's eager attention.

Arguments: "compare" or "generate", and "llama", "qwen2" or "gemma2"; or "masks". Started by test_clients.py. MindSpore
lacks some operators on a CPU that the library uses; `add_missing_operators` puts others into their place.
"""

import sys

import mindspore as ms
import numpy as np
from flash_attention.compat import transformers as compat
from mindspore import Tensor, mint, nn, ops

TINY = {
    "vocab_size": 61,
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


def add_missing_operators() -> None:
    """Operators of MindSpore 2.10 without a kernel for the CPU, from such as have one."""

    def arange(start=0, end=None, step=1, *, dtype=None):
        start, end = (0, start) if end is None else (start, end)
        values = Tensor(np.arange(*(one if isinstance(one, float) else int(one) for one in (start, end, step))))
        return values if dtype is None else values.astype(dtype)

    def rms_norm(x, gamma, epsilon=1e-6):
        factor = ops.rsqrt(ops.mean(ops.square(x.astype(ms.float32)), -1, True) + epsilon)
        return (x * factor).astype(x.dtype) * gamma, factor

    def initialise(tensor, *arguments, **keywords):
        return tensor  # `models` sets every parameter itself

    def masked_fill(tensor, mask, value):
        return tensor.assign_value(ops.masked_fill(tensor, mask, value))

    def tril(x, diagonal=0):
        return ops.logical_and(x, Tensor(np.tril(np.ones(x.shape[-2:], bool), diagonal)))

    mint.arange = ops.arange = arange
    ops.embedding = lambda x, weight, *rest: ops.gather(weight, x, 0)
    ops.rms_norm = rms_norm
    for name in ("normal_", "zero_", "fill_"):
        setattr(Tensor, name, initialise)
    Tensor.masked_fill_ = masked_fill
    Tensor.clone = lambda tensor: tensor * 1
    mint.tril = tril
    # The float32 tanh of MindSpore's CPU kernel errs by 1e-4.
    mint.tanh = lambda x: ops.tanh(x.astype(ms.float64)).astype(x.dtype)
    mint.ones_like = lambda x, dtype=None: ops.ones(x.shape, dtype or x.dtype)
    mint.argmax = lambda x, dim=None, keepdim=False: ops.argmax(x, dim, keepdim)
    mint.cumsum = lambda x, dim, dtype=None: ops.cumsum(x, dim)
    mint.equal = ops.equal
    mint.nn.functional.gelu = lambda x, approximate="none": ops.gelu(x, approximate)


def record_masks() -> list:
    """Notes the rank of the mask, or 0 without one, of every call of our attention."""
    ranks, attention = [], compat.attention_forward

    def recorded(module, query, key, value, attention_mask, **options):
        ranks.append(0 if attention_mask is None else attention_mask.ndim)
        return attention(module, query, key, value, attention_mask, **options)

    compat.attention_forward = recorded
    return ranks


def models(name: str) -> dict:
    """The model with eager attention and with ours, all parameters alike."""
    import transformers
    from mindone import transformers as library

    prefix = {"llama": "Llama", "qwen2": "Qwen2", "gemma2": "Gemma2"}[name]
    made = {}
    for implementation in ("eager", compat.register()):
        config = getattr(transformers, f"{prefix}Config")(
            **TINY, **(GEMMA if name == "gemma2" else {}), attn_implementation=implementation
        )
        random = np.random.default_rng(0)
        model = getattr(library, f"{prefix}ForCausalLM")(config)
        for path, parameter in sorted(model.parameters_and_names()):
            values = random.standard_normal(parameter.shape) * 0.2 + ("norm" in path)
            parameter.set_data(Tensor(values.astype(np.float32)))
        made[implementation] = model.set_train(False)
    return made


class Loss(nn.Cell):
    """A weighted sum of the logits of what is no padding."""

    def __init__(self, model: nn.Cell, weight: np.ndarray):
        super().__init__()
        self.model, self.weight = model, Tensor(weight.astype(np.float32))

    def construct(self, ids, mask):
        logits = self.model(ids, attention_mask=mask, use_cache=False)[0]
        return (logits * self.weight).sum(), logits


def check(name: str, actual, expected, tolerance: float = 2e-5) -> None:
    error = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-3)
    assert error < tolerance, f"{name}: relative error {error:.2g}"


def compare(name: str) -> None:
    pair = models(name)
    random = np.random.default_rng(1)
    ids = Tensor(random.integers(1, TINY["vocab_size"], PADDING.shape), ms.int32)
    for mask in (None, PADDING):
        shown = np.ones_like(PADDING) if mask is None else mask
        weight = random.standard_normal((*shown.shape, TINY["vocab_size"])) * shown[..., None]
        results = {}
        for implementation, model in pair.items():
            weights = model.trainable_params()
            run = ms.value_and_grad(Loss(model, weight), None, weights, has_aux=True)
            (_, logits), gradients = run(ids, None if mask is None else Tensor(mask, ms.int32))
            results[implementation] = [logits.asnumpy() * shown[..., None], *(one.asnumpy() for one in gradients)]
        names = ["logits", *(weight.name for weight in weights)]
        assert len(names) == len(results["eager"]) > 15
        for path, actual, expected in zip(names, results[compat.NAME], results["eager"]):
            check(f"{name}, padding {mask is not None}: {path}", actual, expected)
        print(name, "padding" if mask is not None else "no padding", len(names) - 1, "gradients agree")


def generate(name: str) -> None:
    """Greedy decoding with a cache gives the same tokens."""
    random = np.random.default_rng(2)
    ids = random.integers(1, TINY["vocab_size"], PADDING.shape)
    ids[PADDING == 0] = 0
    tokens = [
        model.generate(
            Tensor(ids, ms.int64), attention_mask=Tensor(PADDING, ms.int64), max_new_tokens=6, do_sample=False
        ).asnumpy()
        for model in models(name).values()
    ]
    np.testing.assert_array_equal(*tokens)
    assert tokens[0].shape[1] >= 6
    print(name, "generates", tokens[0][:, -6:].tolist())


def masks() -> None:
    """Only what our attention has by itself goes without a mask of rank 4; that mask is the library's."""
    from mindone.transformers import masking_utils as masking

    ours, position = compat.MaskFunction(masking), Tensor(np.arange(SEQ))
    causal, window = masking.causal_mask_function, masking.sliding_window_causal_mask_function(4)

    def packed(numbers):
        return masking.and_masks(window, masking.packed_sequence_mask_function(Tensor(np.array([numbers, numbers]))))

    chunked = masking.chunked_causal_mask_function(4, Tensor(np.zeros(2, np.int64)))
    cases = {
        "causal": (causal, SEQ, None),
        "window": (window, SEQ, None),
        "one sequence": (packed([3] * SEQ), SEQ, None),
        "two sequences": (packed([0] * 4 + [1] * 5), SEQ, 4),
        "chunks": (chunked, SEQ, 4),
        "window without causal": (masking.sliding_window_overlay(4), SEQ, 4),
        "union": (masking.or_masks(causal, causal), SEQ, 4),
        "room after the last query": (causal, SEQ + 3, 4),
    }
    for name, (rule, length, rank) in cases.items():
        call = {"batch_size": 2, "cache_position": position, "kv_length": length, "mask_function": rule}
        mask = ours(**call)
        assert (None if mask is None else mask.ndim) == rank, name
        if rank is not None:
            expected = masking.sdpa_mask(**call, allow_is_causal_skip=False)
            np.testing.assert_array_equal(mask.asnumpy(), expected.asnumpy())
    padding = Tensor(PADDING.astype(bool))
    assert ours(2, position, SEQ, attention_mask=padding).shape == PADDING.shape
    assert ours(2, position, SEQ, attention_mask=Tensor(np.ones_like(PADDING).astype(bool))) is None


if __name__ == "__main__":
    add_missing_operators()
    ranks = record_masks()
    if sys.argv[1] == "masks":
        masks()
    else:
        {"compare": compare, "generate": generate}[sys.argv[1]](sys.argv[2])
        # Qwen 2 asks the library for its masks, the others make theirs.
        assert ranks and (4 in ranks) == (sys.argv[2] != "qwen2"), ranks
    print("ok")
