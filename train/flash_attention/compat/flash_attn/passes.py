"""The two passes of flash_attn.flash_attn_interface apart, which ring attention libraries call block by block."""

from __future__ import annotations

from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.tensors import compiling, fresh_seed, spec, tensor_spec
from flash_attention.functional import flash_attention
from flash_attention.varlen import flash_attention_varlen

# flash_attn's names of the arguments of this package's functions.
NAMES = (*(("query", "q"), ("key", "k"), ("value", "v"), ("scale", "softmax_scale"), ("dropout_rate", "dropout_p")),)
_NAMES = (*NAMES, ("window_size", "window_size_left, window_size_right"))


def attend(q, k, v, ends, rules, alibi_slopes, seed, return_lse, names):
    """Call this package's function by flash_attn's arguments.

    Args:
        ends: cumulative lengths of queries and keys; None: the tensors have a batch.
        rules: dropout_p, softmax_scale, causal, window_size and softcap.
        names: what the caller calls its arguments.
    """
    dropout_p, softmax_scale, causal, window_size, softcap = rules
    given = {
        "dropout_rate": dropout_p,
        "scale": softmax_scale,
        "causal": causal,
        "causal_alignment": "bottom_right",
        "window_size": window_size,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "seed": seed,
        "return_lse": return_lse,
        "argument_names": names,
    }
    if ends is None:
        return flash_attention(q, k, v, input_layout="BSND", **given)
    return flash_attention_varlen(q, k, v, *ends, **given)


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, None, Tensor | None]:
    """Compute the forward pass of `flash_attn_func`.

    Returns:
        the output; the logsumexp, float32 (batch, nheads, seqlen_q), -inf if a query sees nothing; None for the
        probabilities, which nothing stores; and the seed of dropout for the backward pass, None without dropout.
    """
    rules = dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap
    return _forward(q, k, v, None, rules, alibi_slopes)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Compute the gradients for an output and a logsumexp. Both may cover more keys than these.

    dq, dk and dv get the gradients, in place. It runs in PYNATIVE only, and runs the forward pass again.

    Returns:
        sum(dout * out, -1), float32 (batch, nheads, seqlen_q).
    """
    rules = dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap
    return _backward(None, rules, dout, (q, k, v), out, softmax_lse, (dq, dk, dv), alibi_slopes, rng_state)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, None, Tensor | None]:
    """Compute the forward pass of `flash_attn_varlen_func`; block_table, leftpad_k and seqused_k are refused.

    Returns:
        as `_flash_attn_forward`, the logsumexp (nheads, total_q).
    """
    _refuse_tensors(block_table is not None, leftpad_k is not None, seqused_k is not None)
    rules = dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap
    return _forward(q, k, v, (cu_seqlens_q, cu_seqlens_k), rules, alibi_slopes)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Compute what `_flash_attn_backward` does, for packed sequences.

    Returns:
        sum(dout * out, -1), float32 (nheads, total_q).
    """
    ends = cu_seqlens_q, cu_seqlens_k
    rules = dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap
    return _backward(ends, rules, dout, (q, k, v), out, softmax_lse, (dq, dk, dv), alibi_slopes, rng_state)


def _forward(q, k, v, ends, rules, alibi_slopes):
    """Compute `_flash_attn_forward`, of packed sequences if there are ends."""
    seed = fresh_seed(_NAMES) if rules[0] else None
    return *attend(q, k, v, ends, rules, alibi_slopes, seed, True, _NAMES), None, seed


def _backward(ends, rules, dout, tensors, out, softmax_lse, buffers, slopes, seed):
    """Fill the buffers with the gradients, see `_flash_attn_backward`.

    With share = exp(own logsumexp - softmax_lse), the probabilities by the logsumexp of these keys alone are larger by
    1 / share. The gradients of the output and of the logsumexp make up for it.
    """
    if compiling():
        _refuse_graph()
    specs = spec(dout), spec(out), spec(softmax_lse), spec(buffers[0]), spec(buffers[1]), spec(buffers[2])
    _check_backward(4 if ends is None else 3, (spec(tensors[0]), spec(tensors[1]), spec(tensors[2])), specs)
    delta = (ops.cast(dout, mstype.float32) * ops.cast(out, mstype.float32)).sum(-1).swapaxes(-1, -2)

    def loss(q, k, v):
        own, own_lse = attend(q, k, v, ends, rules, slopes, seed, True, _NAMES)
        sees = own_lse > -float("inf")
        own_lse = ops.select(sees, own_lse, ops.zeros_like(own_lse))
        share = ops.exp(ops.select(sees, ops.stop_gradient(own_lse) - softmax_lse, ops.zeros_like(own_lse)))
        own = ops.cast(own, mstype.float32)
        upstream = ops.cast(dout, mstype.float32) * ops.expand_dims(share.swapaxes(-1, -2), -1)
        of_lse = (upstream * ops.stop_gradient(own)).sum(-1).swapaxes(-1, -2) - share * delta
        return (own * upstream).sum() + (own_lse * of_lse).sum()

    for buffer, gradient in zip(buffers, ops.grad(loss, (0, 1, 2))(*tensors)):
        buffer[...] = gradient  # writes through a view to its tensor, which `ops.assign` refuses
    return delta


@constexpr(reuse_result=False)
def _check_backward(rank, tensors, given):
    """Raise unless the arguments of a backward pass fit its tensors."""
    q, k, v = map(tensor_spec, "qkv", tensors)
    for name, one in zip("qkv", (q, k, v)):
        if len(one.shape) != rank:
            tokens = "total" if rank == 3 else "batch, seqlen"
            raise ValueError(f"{name}: got shape {one.shape}, allowed is ({tokens}, nheads, headdim)")
    output = (*q.shape[:-1], v.shape[-1])
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    names, shapes = ("dout", "out", "softmax_lse", "dq", "dk", "dv"), (output, output, rows, q.shape, k.shape, v.shape)
    for name, one, shape in zip(names, given, shapes):
        found = tensor_spec(name, one).shape
        if found != shape:
            raise ValueError(f"{name}: got shape {found}, allowed is {shape}")


@constexpr(reuse_result=False)
def _refuse_graph():
    raise RuntimeError("_flash_attn_backward: it writes dq, dk and dv in place, which it can in PYNATIVE only")


@constexpr(reuse_result=False)
def _refuse_tensors(*given):
    for name, one in zip(("block_table", "leftpad_k", "seqused_k"), given):
        if one:
            raise ValueError(f"{name}: got a Tensor, allowed is None in _flash_attn_varlen_forward")
