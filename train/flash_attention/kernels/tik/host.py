"""From an attention problem to the description that the kernels are built for."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.problem import Chip, KernelProblem, padded
from flash_attention.problem import AttentionProblem, alibi_slopes
from flash_attention.problem.packed import PackedProblem
from flash_attention.problem.rules import PLAIN_RULES


def describe(
    problem: AttentionProblem,
    *,
    cores: int = Chip().cores,
    memories: tuple[int, ...] = Chip().memories,
    tiling: str = "auto",
    layout: str = "BNSD",
) -> KernelProblem:
    """The kernel problem of an attention problem, in a layout of the kernels.

    Raises:
        TypeError: a dtype that this chip cannot multiply, or a float32 bias.
    """
    if problem.bias_dtype not in (None, "float16"):
        raise TypeError(f"bias: got dtype {problem.bias_dtype}, allowed is float16 on Ascend 910")
    rules = problem.rules
    # What a prefix shows of the keys behind a query is data: the mask hides the others.
    rules = replace(rules, causal=rules.causal and not problem.prefix)
    sizes = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "value_dim", "dtype", "sinks", "bias_shape")
    return KernelProblem(
        **{name: getattr(problem, name) for name in sizes},
        rules=replace(
            rules,
            alibi=problem.bias == "alibi",
            dropout_rate=rules.dropout_rate if problem.dropout_threshold else 0.0,
            scale=problem.scale,
            tile=rules.tile if rules.in_blocks else PLAIN_RULES.tile,
        ),
        mask_shape=mask_shape(problem),
        slopes=_slopes(problem),
        cores=cores,
        memories=memories,
        tiling=tiling,
        layout=layout,
    )


def _slopes(problem: AttentionProblem) -> tuple[float, ...]:
    """Those of the heads, as often as items have their own: where they are data the kernels read others."""
    if problem.bias != "alibi":
        return ()
    shape = problem.slopes_shape
    return tuple(alibi_slopes(problem)) * (shape[0] if shape is not None and len(shape) == 2 else 1)


def describe_packed(
    problem: PackedProblem,
    *,
    cores: int = Chip().cores,
    memories: tuple[int, ...] = Chip().memories,
    tiling: str = "auto",
) -> KernelProblem:
    """The kernel problem of packed sequences. Heads have their size padded to 16: then they are columns of their own.

    Raises:
        TypeError: a dtype that this chip cannot multiply.
    """
    slopes = problem.rows.slopes_shape
    rows = replace(problem.rows, prefix=False, slopes_shape=slopes and slopes[-1:])
    rules = replace(rows.rules, scale=rows.scale)
    scaled = replace(rows, head_dim=padded(rows.head_dim), value_dim=padded(rows.value_dim), rules=rules)
    described = describe(scaled, cores=cores, memories=memories, tiling=tiling, layout="TH")
    blocks = 0
    if rows.dropout_threshold:
        lengths = None
        if problem.lengths_q is not None and problem.lengths_k is not None:
            lengths = [(end - first, end_k - first_k) for first, end, first_k, end_k in problem.bounds()]
        blocks = packed.keep_blocks(rows.seq_q, rows.seq_k, problem.sequences, lengths)
    items = problem.sequences if slopes is not None and len(slopes) == 2 else 1
    return replace(
        described,
        sequences=problem.sequences,
        prefix=problem.rows.prefix,
        keep_blocks=blocks,
        slopes=described.slopes * items,
    )


def mask_shape(problem: AttentionProblem) -> tuple | None:
    """Shape of the explicit mask that the kernels take, which holds prefix and segments as well."""
    if not (problem.prefix or problem.segments):
        return problem.mask_shape
    heads = 1 if problem.mask_shape is None else problem.mask_shape[1]
    return problem.batch, heads, problem.seq_q, problem.seq_k
