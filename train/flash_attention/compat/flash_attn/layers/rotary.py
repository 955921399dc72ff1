"""flash_attn.layers.rotary: `apply_rotary_emb`."""

from __future__ import annotations

from mindspore import Tensor
from mindspore.ops import constexpr

from flash_attention.rotary import rotary_embedding

__all__ = ["apply_rotary_emb"]

_NAMES = (("offsets", "seqlen_offsets"),)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Call `flash_attention.rotary_embedding` by flash_attn's name and with its arguments.

    Args:
        x (Tensor): (batch, seqlen, nheads, headdim).
        cos (Tensor): (seqlen_ro, rotary_dim / 2), rotary_dim <= headdim.
        sin (Tensor): like cos.
        interleaved (bool): neighbouring components make a pair. Default: False.
        inplace (bool): only False: MindSpore gives a new tensor.
        seqlen_offsets (int or Tensor): position of the first token; ints (batch,) has one for each sequence.
        cu_seqlens (Tensor): refused; turn the padded batch.
        max_seqlen (int): no effect.

    Returns:
        Tensor like x.

    Raises:
        TypeError, ValueError: an input is not allowed.
    """
    if inplace or cu_seqlens is not None:
        _refuse(inplace)
    return rotary_embedding(x, cos, sin, interleaved=interleaved, offsets=seqlen_offsets, argument_names=_NAMES)


@constexpr(reuse_result=False)
def _refuse(inplace):
    if inplace:
        raise ValueError(f"inplace: got {inplace!r}, allowed is False; take the tensor that is returned")
    raise ValueError("cu_seqlens: got one, allowed is None; turn the padded (batch, seqlen, nheads, headdim) tensor")
