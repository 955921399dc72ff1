"""Host side of the kernels: from an attention problem and BNSD arrays to a kernel's description and inputs, and back.

NumPy only; used by the tests, the emulator backend, and as the rule for what a device route has to prepare.
"""

from __future__ import annotations

import numpy as np

from flash_attention.kernels.tik import layout
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.problem import AttentionProblem, alibi_slopes


def describe(problem: AttentionProblem, *, cores: int = 32, tiling: str = "auto") -> KernelProblem:
    """The kernel problem of an attention problem.

    Raises:
        TypeError: a dtype that this chip cannot multiply, or a float32 bias.
    """
    if problem.bias_dtype not in (None, "float16"):
        raise TypeError(f"bias: got dtype {problem.bias_dtype}, allowed is float16 on Ascend 910")
    mask_shape, bias_shape = problem.mask_shape or (1, 1, 1, 0), problem.bias_shape or (1, 1, 1, 0)
    mask = "none" if problem.mask_shape is None else "key" if mask_shape[2] == 1 else "full"
    alibi = {"per_key": "given", "per_score": "bias", "alibi": "computed"}.get(problem.bias, "none")
    return KernelProblem(
        batch=problem.batch,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
        head_dim=problem.head_dim,
        mask=mask,
        mask_batch=mask_shape[0],
        mask_heads=mask_shape[1],
        causal=problem.rules.causal,
        causal_alignment=problem.rules.causal_alignment,
        window_left=problem.rules.window_left,
        window_right=problem.rules.window_right,
        prev_blocks=problem.rules.prev_blocks,
        next_blocks=problem.rules.next_blocks,
        block=problem.rules.tile,
        alibi=alibi,
        bias_batch=bias_shape[0],
        bias_heads=bias_shape[1],
        slopes=tuple(alibi_slopes(problem)) if alibi == "computed" else (),
        dropout_threshold=problem.dropout_threshold,
        scale=problem.scale,
        dtype=problem.dtype,
        cores=cores,
        tiling=tiling,
    )


def forward_inputs(problem: KernelProblem, query, key, value, mask=None, bias=None, keep_bits=None) -> dict:
    """Arrays for `Kernel.feed` of the forward kernel.

    Args:
        query, key, value: (B, H, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D), float16.
        mask: (mask_batch, mask_heads, Sq or 1, Sk), non-zero = hidden.
        bias: (bias_batch, bias_heads, Sq or 1, Sk), float16.
        keep_bits: uint8 (B, H, Sq, ceil(Sk / 8)), least significant bit first.
    """
    arrays = {
        name: layout.to_nz(np.asarray(array, np.float16))
        for name, array in (("query", query), ("key", key), ("value", value))
    }
    if problem.mask != "none":
        hidden = (np.asarray(mask) != 0).astype(np.float16)
        arrays.update({"key_mask": layout.pack_keys(hidden)} if problem.mask == "key" else {"mask": _planes(hidden)})
    if problem.alibi in ("given", "bias"):
        bias = np.asarray(bias, np.float16)
        arrays.update({"key_bias": layout.pack_bias(bias)} if problem.alibi == "given" else {"bias": _planes(bias)})
    if problem.dropout_threshold:
        arrays["keep"] = layout.pack_keep_bits(keep_bits, problem)
    return arrays


def forward_outputs(problem: KernelProblem, outputs: dict) -> tuple[np.ndarray, np.ndarray]:
    """(output (B, H, Sq, D) float16, logsumexp (B, H, Sq) float32) from a kernel's stored outputs."""
    output = layout.from_nz(outputs["output"], problem.seq_q, problem.head_dim)
    return output, np.ascontiguousarray(outputs["logsumexp"][..., : problem.seq_q])


def _planes(array: np.ndarray) -> np.ndarray:
    return layout.to_nz(array.reshape(-1, *array.shape[-2:]))
