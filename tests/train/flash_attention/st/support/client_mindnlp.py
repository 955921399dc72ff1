"""Compare tiny models of MindNLP with our attention and with eager attention.

The argument is "llama", "qwen2" or "gemma2". test_clients.py starts this program.
"""

import sys

import mindnlp.transformers as library
import mindspore as ms
import mindtorch
import numpy as np
from flash_attention.compat import mindnlp as compat

from tests.train.flash_attention.st.support import client_models
from tests.train.flash_attention.st.support.client_models import PREFIXES


def models(name: str) -> tuple:
    """Return two models of equal parameters, with our attention and with the library's eager attention."""
    made = []
    for implementation in (compat.register(), "eager"):
        config = getattr(library, f"{PREFIXES[name]}Config")(
            **client_models.options(name), attn_implementation=implementation
        )
        model = getattr(library, f"{PREFIXES[name]}ForCausalLM")(config)
        client_models.fill(model.named_parameters(), lambda one, values: one.data.copy_(mindtorch.tensor(values)))
        made.append(model.eval())
    return tuple(made)


def run(model, ids: np.ndarray, mask, weight: np.ndarray) -> list:
    """Return the logits, and the gradient of every parameter."""
    weight = mindtorch.tensor(weight)
    mask = None if mask is None else mindtorch.tensor(mask)

    def loss(ids):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return (logits * weight).sum(), logits

    differentiate = ms.value_and_grad(loss, None, [one for _, one in model.named_parameters()], has_aux=True)
    (_, logits), gradients = differentiate(mindtorch.tensor(ids))
    return [one.asnumpy() for one in (logits, *gradients)]


def generate(model, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the tokens of greedy decoding."""
    tokens = model.generate(
        mindtorch.tensor(ids), attention_mask=mindtorch.tensor(mask), max_new_tokens=6, do_sample=False
    )
    return tokens.asnumpy()


def exact_tanh(tensor):
    """Compute tanh in float64: MindSpore's float32 tanh on a CPU errs by 1e-4."""
    return tanh(tensor.to(mindtorch.float64)).to(tensor.dtype)


if __name__ == "__main__":
    tanh, mindtorch.tanh = mindtorch.tanh, exact_tanh
    ranks = client_models.record_masks(compat)
    name = sys.argv[1]
    pair = models(name)
    client_models.compare(name, pair, [path for path, _ in pair[0].named_parameters()], run)
    client_models.generate(name, pair, generate)
    assert set(ranks) == {0, 2}, ranks
    print("ok")
