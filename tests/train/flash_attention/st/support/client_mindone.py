"""Compare tiny models of mindone with our attention and with eager attention.

The argument is "llama", "qwen2", "gemma2", "masks" or "paged". test_clients.py starts this program. On a CPU MindSpore
lacks some operators that the library uses; `add_missing_operators` replaces them.
"""

import sys

import flash_attention
import mindspore as ms
import numpy as np
from flash_attention.compat import transformers as compat
from mindspore import Tensor, mint, nn, ops

from tests.train.flash_attention.st.support import client_models
from tests.train.flash_attention.st.support.client_models import PADDING, PREFIXES, SEQ


def add_missing_operators() -> None:
    """Compose the operators of MindSpore 2.10 that have no kernel for the CPU."""

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


def models(name: str) -> tuple:
    """Return two models of equal parameters, with our attention and with the library's eager attention."""
    import transformers
    from mindone import transformers as library

    made = []
    for implementation in (compat.register(), "eager"):
        config = getattr(transformers, f"{PREFIXES[name]}Config")(
            **client_models.options(name), attn_implementation=implementation
        )
        model = getattr(library, f"{PREFIXES[name]}ForCausalLM")(config)
        client_models.fill(model.parameters_and_names(), lambda one, values: one.set_data(Tensor(values)))
        made.append(model.set_train(False))
    return tuple(made)


class Loss(nn.Cell):
    """A weighted sum of the logits of all tokens but padding."""

    def __init__(self, model: nn.Cell, weight: np.ndarray):
        super().__init__()
        self.model, self.weight = model, Tensor(weight)

    def construct(self, ids, mask):
        logits = self.model(ids, attention_mask=mask, use_cache=False)[0]
        return (logits * self.weight).sum(), logits


def run(model: nn.Cell, ids: np.ndarray, mask, weight: np.ndarray) -> list:
    """Return the logits, and the gradient of every parameter."""
    differentiate = ms.value_and_grad(Loss(model, weight), None, model.trainable_params(), has_aux=True)
    (_, logits), gradients = differentiate(Tensor(ids, ms.int32), None if mask is None else Tensor(mask, ms.int32))
    return [one.asnumpy() for one in (logits, *gradients)]


def generate(model: nn.Cell, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the tokens of greedy decoding."""
    tokens = model.generate(
        Tensor(ids, ms.int64), attention_mask=Tensor(mask, ms.int64), max_new_tokens=6, do_sample=False
    )
    return tokens.asnumpy()


def paged() -> None:
    """Compare the logits of `flash_paged`, which generates in graphs, with eager attention without a cache."""
    import transformers
    from mindone.transformers import Qwen2ForCausalLM

    class Served(Qwen2ForCausalLM):
        """Compile every step by itself: the library's dynamic shapes leave the size of a head open."""

        def enable_dynamic_shape(self):
            pass

        def prepare_inputs_for_generation(self, input_ids, **named):
            inputs = super().prepare_inputs_for_generation(input_ids, **named)
            self.phase = f"step {named['step']}"
            return inputs

    ids, found = np.random.default_rng(2).integers(1, client_models.VOCABULARY, (1, SEQ)), []
    for implementation, kind in (("flash_paged", Served), ("eager", Qwen2ForCausalLM)):
        ms.set_context(mode=ms.GRAPH_MODE if kind is Served else ms.PYNATIVE_MODE)
        options = {**client_models.options("qwen2"), "attn_implementation": implementation, "dtype": "float32"}
        model = kind(transformers.Qwen2Config(**options)).set_train(False)
        weights = dict(model.parameters_and_names())
        caches = [weights.pop(name) for name in list(weights) if "cache" in name]
        assert len(caches) == (4 if kind is Served else 0)
        client_models.fill(weights.items(), lambda one, values: one.set_data(Tensor(values)))
        for cache in caches:
            cache.set_data(Tensor(np.full(cache.shape, np.nan, np.float32)))
        rules = {"max_new_tokens": 6, "do_sample": False, "use_cache": False}
        results = model.generate(Tensor(ids, ms.int64), return_dict_in_generate=True, output_logits=True, **rules)
        found.append([results.sequences.asnumpy(), *(one.asnumpy() for one in results.logits)])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for ours, theirs in zip(found[0][1:], found[1][1:]):
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        print(f"relative error {error:.1e}")
        assert error < 2e-5
    assert len(found[0]) == 7


def masks() -> None:
    """Check that only rules of our attention go without the library's mask of rank 4."""
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
    name = sys.argv[1]
    if name == "paged":
        flash_attention.patch_mindspore(inference=True)
    add_missing_operators()
    ranks = client_models.record_masks(compat)
    if name in ("masks", "paged"):
        {"masks": masks, "paged": paged}[name]()
    else:
        pair = models(name)
        client_models.compare(name, pair, [one.name for one in pair[0].trainable_params()], run)
        client_models.generate(name, pair, generate)
        # Qwen 2 asks the library for its masks, the others make theirs.
        assert ranks and (4 in ranks) == (name != "qwen2"), ranks
    print("ok")
