"""Run the forward operator on tensors of PyTorch (torch_npu) by pyACL.

Nobody has run this with torch_npu. Without it the program takes plain memory of the card in the place of tensors.
It needs CANN, NumPy and the operator package (`flash-attention opp`), and nothing of MindSpore.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable

import numpy as np
from flash_attention.backends.tik.environment import chip, ignore_infer_errors
from flash_attention.call import AttentionRules, Call
from flash_attention.commands.selftest.pyacl import Acl
from flash_attention.kernels.tik import describe
from flash_attention.kernels.tik.layout import from_nz, to_nz
from flash_attention.kernels.tik.problem import padded

ND, FRACTAL_NZ = 2, 29  # aclFormat
TENSORS = ("query", "key", "value", "output", "logsumexp")


def launch(card: Acl, addresses: list[int], shape: tuple[int, ...], wait: Callable[[], None]) -> None:
    """Run causal attention of (batch, heads, seq, head_dim) on TENSORS that lie on the card.

    All are float16 in FRACTAL_NZ but for logsumexp, float32 (batch, heads, seq padded to 16).
    """
    batch, heads, seq, head_dim = shape
    call = Call(batch, heads, seq, seq, head_dim, dtype="float16", rules=AttentionRules(causal=True), return_lse=True)
    problem = describe.kernel_problem(call, **chip()._asdict())
    card.held = dict(zip(TENSORS, addresses))
    with card.stage("forward", problem, {}) as operator:
        operator.launch()
        wait()


def on_tensors(arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output for tensors of torch_npu, on the current stream."""
    ignore_infer_errors()  # before CANN starts
    import torch
    import torch_npu

    tensors = [torch_npu.npu_format_cast(torch.from_numpy(one).npu(), FRACTAL_NZ) for one in (*arrays, arrays[0])]
    batch, heads, seq, _ = shape = arrays[0].shape
    logsumexp = torch.empty((batch, heads, padded(seq)), dtype=torch.float32, device="npu")
    card = Acl(torch.npu.current_stream().npu_stream)
    launch(card, [one.data_ptr() for one in (*tensors, logsumexp)], shape, torch.npu.synchronize)
    return torch_npu.npu_format_cast(tensors[3], ND).cpu().numpy()


def on_memory(arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output for plain memory of the card."""
    card, stored = Acl(), [to_nz(one) for one in (*arrays, arrays[0])]
    batch, heads, seq, head_dim = shape = arrays[0].shape
    logsumexp = np.zeros((batch, heads, padded(seq)), np.float32)
    with contextlib.ExitStack() as space:
        launch(card, [card.upload(one, space) for one in (*stored, logsumexp)], shape, card.wait)
        return from_nz(card.read(card.held["output"], stored[0].shape, "float16"), seq, head_dim)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seq", type=int, default=256, help="tokens")
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()
    shape = 1, 2, options.seq, options.head_dim
    query, key, value = (np.random.default_rng(n).standard_normal(shape).astype(np.float16) for n in range(3))
    with_torch = importlib.util.find_spec("torch_npu") is not None
    output = (on_tensors if with_torch else on_memory)([query, key, value])
    scores = query.astype(np.float64) @ key.astype(np.float64).swapaxes(2, 3) / np.sqrt(options.head_dim)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * np.tri(options.seq)
    error = np.abs(output - weights / weights.sum(-1, keepdims=True) @ value.astype(np.float64)).max()
    print(f"{'tensors of torch_npu' if with_torch else 'plain memory of the card'}: largest error {error:.1e}")
    return int(not error < 2e-3)


if __name__ == "__main__":
    sys.exit(main())
