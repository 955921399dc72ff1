"""Kernels that CANN's compiler is asked for: every operator type, and each feature in one of them."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call import AttentionRules, Call, Paged, Varlen
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.measuring.tik_kernels import problem_of

PACKED = KernelProblem(
    Call(1, 8, 1024, 1024, 64, layout="BSH", rules=AttentionRules(causal=True), storage=Varlen(count=4))
)
DECODING = Call(4, 8, 1, 2048, 128, kv_heads=2, layout="BSND")
_CAUSAL_128 = problem_of(1024, 128, heads=8, causal=True)
_PLAIN_64 = problem_of(1024, 64, heads=8)
_BIAS = problem_of(512, 64, heads=2, bias="per_score", bias_grad=True)
_SINKS = problem_of(512, 64, heads=4, kv_heads=2, sinks=True, return_lse=True, window_left=300)

#: Stage and problem by name; the cores of a chip come later.
KERNELS: dict[str, tuple[str, KernelProblem]] = {
    "forward, D=128, causal": ("forward", _CAUSAL_128),
    "forward, D=64": ("forward", _PLAIN_64),
    "forward, D=256": ("forward", problem_of(512, 256, heads=2)),
    "forward, D=80, odd lengths": ("forward", problem_of(1000, 80, heads=2)),
    "forward, mask": ("forward", problem_of(512, 64, mask="per_score")),
    "forward, key mask, key bias": ("forward", problem_of(512, 64, mask="per_key", bias="per_key")),
    "forward, bias": ("forward", _BIAS),
    "forward, ALiBi": ("forward", problem_of(1024, 128, heads=2, causal=True, alibi=True)),
    "forward, dropout, soft cap": ("forward", problem_of(512, 64, dropout_rate=0.1, softcap=50.0)),
    "forward, sinks, window, GQA": ("forward", _SINKS),
    "forward, packed": ("forward", PACKED),
    "rows, D=128": ("grad_rows", _CAUSAL_128),
    "rows, sinks": ("grad_rows", _SINKS),
    "backward, D=128, causal": ("grad", _CAUSAL_128),
    "backward, D=64": ("grad", _PLAIN_64),
    "backward, mask": ("grad", problem_of(512, 64, mask="per_score")),
    "backward, bias": ("grad", _BIAS),
    "backward, packed": ("grad", PACKED),
    "end of backward, D=64": ("grad_finish", _PLAIN_64),
    "decode": ("decode", KernelProblem(replace(DECODING, layout="BNSD"))),
    "decode, paged": ("decode", KernelProblem(replace(DECODING, storage=Paged(128, 80)))),
    "merge of decode": ("decode_merge", KernelProblem(replace(DECODING, layout="BNSD"))),
}


def kernel_of(name: str, cores: int) -> tuple[str, KernelProblem]:
    """Return a name's stage and problem, for a chip with so many cores."""
    stage, problem = KERNELS[name]
    return stage, replace(problem, cores=cores)
