# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy==2.3.5"]
# ///
"""Answer for torch's scaled_dot_product_attention and flex_attention: on a GPU if there is one, else on a CPU."""

import functools

import numpy as np
import questions
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32


def tensor(array, dtype=None):
    """Return a tensor on the device."""
    if array is None or array.dtype == bool:
        return None if array is None else torch.tensor(array, device=DEVICE)
    return torch.tensor(array, device=DEVICE, dtype=dtype or (torch.float16 if array.dtype == np.float16 else DTYPE))


def run(backend, query, key, value, mask=None, bias=None, causal=False, grouped=False, dropout=0.0):
    """Run scaled_dot_product_attention by one kernel."""
    torch.manual_seed(0)
    with sdpa_kernel(backend):
        output = torch.nn.functional.scaled_dot_product_attention(
            *(one if isinstance(one, torch.Tensor) else tensor(one) for one in (query, key, value)),
            attn_mask=tensor(bias if mask is None else mask),
            dropout_p=dropout,
            is_causal=causal,
            enable_gqa=grouped,
        )
    return output if output.requires_grad else output.float().cpu().numpy()


def gradients(backend, query, key, value, mask):
    """Return the gradients of query, key and value."""
    tensors = [tensor(one).requires_grad_() for one in (query, key, value)]
    run(backend, *tensors, mask=mask).sum().backward()
    return [one.grad.float().cpu().numpy() for one in tensors]


def flex(query, key, value, mask=None, bias=None, causal=False, grouped=False, lse=False):
    """Run flex_attention, its mask and bias as functions of the positions."""
    if mask is not None and mask.ndim != 4:
        raise NotImplementedError
    tensors, (mask, bias) = [tensor(one) for one in (query, key, value)], (tensor(mask), tensor(bias))

    def visible(batch, head, row, column):
        shown = column <= row if causal else column >= 0
        return shown if mask is None else shown & mask[0, 0, row, column]

    def score(score, batch, head, row, column):
        return score if bias is None else score + bias[0, 0, row, column]

    blocks = create_block_mask(visible, None, None, query.shape[2], key.shape[2], device=DEVICE)
    output = flex_attention(*tensors, score, block_mask=blocks if causal or mask is not None else None,
                            enable_gqa=grouped, return_lse=lse)  # fmt: skip
    if lse:
        return output[0].float().cpu().numpy(), output[1].float().cpu().numpy()
    return output.float().cpu().numpy()


def flash_attn(query, key, value, causal=False, window=(-1, -1), dropout=0.0, lse=False):
    """Run the flash_attn 2 that torch is built with."""
    torch.manual_seed(0)
    output, logsumexp, *_ = torch.ops.aten._flash_attention_forward(
        *(tensor(np.swapaxes(one, 1, 2)).contiguous() for one in (query, key, value)),
        *(None, None, query.shape[2], key.shape[2], dropout, causal, False),
        window_size_left=window[0],
        window_size_right=window[1],
    )
    output = output.transpose(1, 2).float().cpu().numpy()
    return (output, logsumexp.cpu().numpy()) if lse else output


BACKENDS = {
    "cpu": {"torch_fused": SDPBackend.FLASH_ATTENTION, "torch_math": SDPBackend.MATH},
    "cuda": {
        "cuda_cudnn": SDPBackend.CUDNN_ATTENTION,
        "cuda_flash": SDPBackend.FLASH_ATTENTION,
        "cuda_efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
}


def column(backend):
    """Return the column of one kernel."""

    def attend(query, key, value, mask=None, bias=None, causal=False, grouped=False, dropout=0.0):
        return run(backend, query, key, value, mask, bias, causal, grouped, dropout)

    dtype = np.float16 if DEVICE == "cuda" else np.float32
    return questions.Column(attend, functools.partial(gradients, backend), layout="BNSD", dtype=dtype)


columns = {name: column(backend) for name, backend in BACKENDS[DEVICE].items()}
if DEVICE == "cpu":
    columns["flex"] = questions.Column(flex, layout="BNSD")
else:
    columns["flash_attn"] = questions.Column(flash_attn, layout="BSND", window=(2, 0), dtype=np.float16, rest="not run")
card = f", {torch.cuda.get_device_name()}" if DEVICE == "cuda" else ""
questions.show(f"torch {torch.__version__.partition('+')[0]}{card}", **columns)
