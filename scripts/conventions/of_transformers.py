# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "transformers==5.24.0", "numpy==2.3.5"]
# ///
"""Answer for eager and sdpa attention of Hugging Face transformers."""

import functools
from types import SimpleNamespace

import numpy as np
import questions
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, eager_attention_forward


def run(function, query, key, value, mask=None, bias=None, causal=False, window=None, dropout=0.0):
    """Run an attention function as a layer of the library calls it."""
    torch.manual_seed(0)
    module = SimpleNamespace(
        num_key_value_groups=query.shape[1] // key.shape[1], training=True, is_causal=causal, config=None, layer_idx=0
    )
    if window:
        rows, columns = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
        mask = sliding_window_causal_mask_function(window)(0, 0, rows, columns)[None, None].numpy()
        if function is eager_attention_forward:
            mask, bias = None, np.where(mask, 0, -np.inf).astype(np.float32)
    given = bias if mask is None else mask
    output = function(
        module,
        *(one if isinstance(one, torch.Tensor) else torch.tensor(one) for one in (query, key, value)),
        None if given is None else torch.tensor(given),
        scaling=query.shape[-1] ** -0.5,
        dropout=dropout,
    )[0].transpose(1, 2)
    return output if output.requires_grad else output.numpy()


def gradients(function, query, key, value, mask):
    """Return the gradients of query, key and value."""
    tensors = [torch.tensor(one).requires_grad_() for one in (query, key, value)]
    run(function, *tensors, mask=mask).sum().backward()
    return [one.grad.numpy() for one in tensors]


def rotary(rows, cos, sin):
    """Run the rotary embedding of Llama, whose tables hold each angle twice."""
    tables = (torch.tensor(np.concatenate((one, one), -1))[None] for one in (cos, sin))
    return apply_rotary_pos_emb(torch.tensor(rows), torch.tensor(rows), *tables, unsqueeze_dim=2)[0].numpy()


def eager(query, key, value, mask=None, bias=None, window=None, dropout=0.0):
    """Run eager attention, which has no flag for causality: a mask says it."""
    return run(eager_attention_forward, query, key, value, mask, bias, False, window, dropout)


sdpa = functools.partial(run, sdpa_attention_forward)
questions.show(
    f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}",
    transformers_eager=questions.Column(
        eager, functools.partial(gradients, eager_attention_forward), rotary, layout="BNSD", window=2
    ),
    transformers_sdpa=questions.Column(
        sdpa, functools.partial(gradients, sdpa_attention_forward), rotary, layout="BNSD", window=2
    ),
)
