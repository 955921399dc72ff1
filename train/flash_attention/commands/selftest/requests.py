"""Kernels that CANN's compiler is asked for: every operator type, and each feature in one of them."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call.rules import AttentionRules
from flash_attention.kernels.tik.problem import KernelProblem, Request
from flash_attention.measuring.tik_kernels import problem_of

PACKED = KernelProblem(1, 8, 1024, 1024, 64, rules=AttentionRules(causal=True), layout="TH", sequences=4)
DECODING = KernelProblem(4, 8, 1, 2048, 128, kv_heads=2)
_CAUSAL_128 = problem_of(1024, 128, heads=8, causal=True)
_PLAIN_64 = problem_of(1024, 64, heads=8)
_BIAS = Request(problem_of(512, 64, heads=2, bias="per_score"), bias_gradient=True)
_SINKS = Request(problem_of(512, 64, heads=4, kv_heads=2, sinks=True, window_left=300), logsumexp_gradient=True)

#: Stage and request by name; the cores of a chip come later.
REQUESTS: dict[str, tuple[str, Request]] = {
    "forward, D=128, causal": ("forward", Request(_CAUSAL_128)),
    "forward, D=64": ("forward", Request(_PLAIN_64)),
    "forward, D=256": ("forward", Request(problem_of(512, 256, heads=2))),
    "forward, D=80, odd lengths": ("forward", Request(problem_of(1000, 80, heads=2))),
    "forward, mask": ("forward", Request(problem_of(512, 64, mask="per_score"))),
    "forward, key mask, key bias": ("forward", Request(problem_of(512, 64, mask="per_key", bias="per_key"))),
    "forward, bias": ("forward", _BIAS),
    "forward, ALiBi": ("forward", Request(problem_of(1024, 128, heads=2, causal=True, alibi=True))),
    "forward, dropout, soft cap": ("forward", Request(problem_of(512, 64, dropout_rate=0.1, softcap=50.0))),
    "forward, sinks, window, GQA": ("forward", _SINKS),
    "forward, packed": ("forward", Request(PACKED)),
    "rows, D=128": ("grad_rows", Request(_CAUSAL_128)),
    "rows, sinks": ("grad_rows", _SINKS),
    "backward, D=128, causal": ("grad", Request(_CAUSAL_128)),
    "backward, D=64": ("grad", Request(_PLAIN_64)),
    "backward, mask": ("grad", Request(problem_of(512, 64, mask="per_score"))),
    "backward, bias": ("grad", _BIAS),
    "backward, packed": ("grad", Request(PACKED)),
    "end of backward, D=64": ("grad_finish", Request(_PLAIN_64)),
    "decode": ("decode", Request(DECODING)),
    "decode, paged": ("decode", Request(DECODING, pages=(80, 128))),
    "merge of decode": ("decode_merge", Request(DECODING)),
}


def planned(name: str, cores: int) -> tuple[str, Request]:
    """Return a name's stage and request, for a chip with so many cores."""
    stage, request = REQUESTS[name]
    return stage, replace(request, problem=replace(request.problem, cores=cores))
