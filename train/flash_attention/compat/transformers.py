"""Our attention in mindone's transformers (checked against 0.5.0), under `attn_implementation="flash_attention"`.

`register` makes two entries in the library's tables: the attention itself, and the function that makes its masks.
Models that ask the library for their masks get no seq x seq elements for causal attention. This holds with or without a
sliding window, padding and a growing cache. Models that make their masks themselves (Llama and Gemma 2 in 0.5.0) go on
doing so.
"""

from __future__ import annotations

import importlib
from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.tensors import compile_time, spec, tensor_spec
from flash_attention.call.checks import check_int
from flash_attention.functional import flash_attention

NAME = "flash_attention"
# The names that `attention_forward` has for the arguments of `flash_attention`.
_NAMES = (
    *(("bias", "attention_mask"), ("dropout_rate", "dropout"), ("scale", "scaling"), ("sinks", "s_aux")),
    *(("causal", "is_causal"), ("window_size", "sliding_window")),
)
# Arguments that would change the result and that we do not compute.
_NOT_SUPPORTED = ("head_mask", "cu_seq_lens_q", "cu_seq_lens_k")


def attention_forward(
    module: nn.Cell,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as the library's models call it.

    Args:
        module (Cell): the model's attention; its `is_causal` (True without one) decides if the argument is None.
        query, key, value (Tensor): (B, N, Sq, D), (B, Nkv, Sk, D), (B, Nkv, Sk, D).
        attention_mask (Tensor): one of

            * None, and the rule is causal or nothing;
            * (B, Sk), True or 1 = a token, 0 = padding; besides the causal rule;
            * (B or 1, N or 1, Sq, Sk or longer), which alone says what is visible, as in the library's eager attention:
              boolean, True = takes part, or floating, added to the scores.

        dropout (float): share of the probabilities set to zero.
        scaling (float): factor on the scores. Default: None, 1 / sqrt(D).
        sliding_window (int): keys that a query sees, its own included; in a mask of rank 4 it is contained already.
        softcap (float): scaled scores become softcap * tanh(score / softcap). Default: None, off.
        is_causal (bool): query i of the last Sq positions sees no later keys.
        s_aux (Tensor): (N,), attention sinks: one more logit in the softmax of each head. Default: None.

    Returns:
        tuple, the output (B, Sq, N, D) and None for the probabilities.

    Raises:
        TypeError, ValueError: an argument is not allowed or not supported.
    """
    for name in _NOT_SUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"{name}: got one, allowed is None; it is not supported")
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: got True, allowed is False; use attn_implementation='eager' for it")
    _check(spec(attention_mask), sliding_window)
    mask, bias, causal, window = None, None, False, -1
    if attention_mask is not None and attention_mask.ndim == 4:
        attention_mask = attention_mask[:, :, :, : key.shape[2]]
        if attention_mask.dtype == mstype.bool_:
            mask = ops.logical_not(attention_mask)
        else:
            bias = attention_mask if attention_mask.dtype == query.dtype else ops.cast(attention_mask, mstype.float32)
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if sliding_window is not None:
            window = sliding_window - 1
        if attention_mask is not None:
            mask = ops.logical_not(ops.cast(attention_mask, mstype.bool_))
            mask = ops.expand_dims(ops.expand_dims(mask, 1), 1)
    output = flash_attention(
        query,
        key,
        value,
        mask,
        bias,
        dropout_rate=dropout,
        scale=scaling,
        softcap=0.0 if softcap is None else softcap,
        causal=causal,
        causal_alignment="bottom_right",
        window_size=(window, -1),
        sinks=s_aux,
        argument_names=_NAMES,
    )
    return ops.transpose(output, (0, 2, 1, 3)), None


@compile_time
def _check(mask, sliding_window):
    if mask is not None:
        tensor_spec("attention_mask", mask)
    if sliding_window is not None:
        check_int("sliding_window", sliding_window, 1)


class MaskFunction:
    """Make a mask for `attention_forward`, with the signature of the library's `sdpa_mask`.

    The mask is None, or the (B, Sk) mask of padding, if the rule is causal and the queries are the last of the
    sequence. A sliding window may be there. Otherwise it is the mask of `sdpa_mask`, (B, 1, Sq, Sk).

    Args:
        masking: the module `mindone.transformers.masking_utils`.
    """

    def __init__(self, masking: Any):
        self.masking = masking

    def __call__(
        self, batch_size, cache_position, kv_length, kv_offset=0, mask_function=None, attention_mask=None, **options
    ):
        mask_function = self.masking.causal_mask_function if mask_function is None else mask_function
        # Whether the last query stands at the last key. A cache of fixed length has room after it.
        ends = int(cache_position[-1].asnumpy()) + 1 == kv_offset + kv_length
        if not ends or not self._positional(mask_function):
            options["allow_is_causal_skip"] = False
            return self.masking.sdpa_mask(
                batch_size=batch_size,
                cache_position=cache_position,
                kv_length=kv_length,
                kv_offset=kv_offset,
                mask_function=mask_function,
                attention_mask=attention_mask,
                **options,
            )
        if attention_mask is None:
            return None
        attention_mask = attention_mask[:, kv_offset : kv_offset + kv_length]
        return None if bool(attention_mask.asnumpy().all()) else attention_mask

    def _positional(self, mask_function) -> bool:
        """Return True if the rule is causal and every row is one sequence. A sliding window may limit it.

        The library intersects plain functions, which only their code and closures tell apart. An unknown function
        counts as no.
        """
        masking = self.masking
        parts = self._parts(mask_function)
        others = [part for part in parts if part is not masking.causal_mask_function]
        return len(others) < len(parts) and all(
            _is_like(part, masking.sliding_window_overlay(1)) or self._is_one_sequence(part) for part in others
        )

    def _parts(self, mask_function) -> list:
        """Return the functions whose intersection `mask_function` is."""
        if not _is_like(mask_function, self.masking.and_masks(mask_function)):
            return [mask_function]
        return [part for inner in _contents(mask_function) for part in self._parts(inner)]

    def _is_one_sequence(self, mask_function) -> bool:
        """Return True if the rule numbers a row's packed sequences and there is only one."""
        if not _is_like(mask_function, self.masking.packed_sequence_mask_function(None)):
            return False
        numbers = _contents(mask_function).asnumpy()
        return bool((numbers == numbers[:, :1]).all())


def _is_like(function, sample) -> bool:
    return function.__code__ is sample.__code__


def _contents(function) -> Any:
    """Return the only object that a function inside a function has kept."""
    (cell,) = function.__closure__
    return cell.cell_contents


def register(name: str = NAME) -> str:
    """Make `attn_implementation=name` of mindone's transformers models use our attention.

    Call it before the model is made. Under the name "flash_attention_2" it takes the place of the library's own, which
    needs an Atlas A2.

    Args:
        name (str): what models are given. Default: "flash_attention".

    Returns:
        The name.

    Raises:
        ImportError: mindone with its transformers cannot be imported.

    Examples:
        >>> from flash_attention.compat import transformers
        >>> from mindone.transformers import Qwen2ForCausalLM
        >>> model = Qwen2ForCausalLM.from_pretrained(path, attn_implementation=transformers.register())
    """
    try:
        masking = importlib.import_module("mindone.transformers.masking_utils")
        modeling = importlib.import_module("mindone.transformers.modeling_utils")
    except ImportError as error:
        raise ImportError(f"register: needs mindone and its transformers ({error}); pip install mindone") from error
    modeling.ALL_ATTENTION_FUNCTIONS.register(name, attention_forward)
    masking.ALL_MASK_ATTENTION_FUNCTIONS.register(name, MaskFunction(masking))
    return name
