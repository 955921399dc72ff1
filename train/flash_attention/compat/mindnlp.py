"""Our attention in MindNLP (checked against 0.5.1 with transformers 4.57.1).

MindNLP runs Hugging Face's transformers on tensors of MindSpore, with tables of attention and mask functions that
`register` enters. Masks as in `flash_attention.compat.transformers`.
"""

from __future__ import annotations

import importlib
from typing import Any

from mindspore import Tensor

from flash_attention.compat import transformers

NAME = "mindspore_flash_attention"


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *arguments: Any,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Call `flash_attention.compat.transformers.attention_forward` between tensors of MindNLP.

    They are MindSpore's and know their device besides.
    """
    output, _ = transformers.attention_forward(module, query, key, value, attention_mask, *arguments, **keywords)
    output._device = query.device
    return output, None


def register(name: str = NAME) -> str:
    """Make `attn_implementation=name` of MindNLP's models use our attention. Call it before the model is made.

    Args:
        name (str): what models are given. It must not begin with "flash_attention": for such names the library looks
            for a package of its own. Default: "mindspore_flash_attention".

    Returns:
        The name.

    Raises:
        ImportError: mindnlp with its transformers cannot be imported.
        ValueError: name must not begin with "flash_attention".

    Examples:
        >>> from flash_attention.compat import mindnlp as attention
        >>> from mindnlp.transformers import Qwen2ForCausalLM
        >>> model = Qwen2ForCausalLM.from_pretrained(path, attn_implementation=attention.register())
    """
    if name.startswith("flash_attention"):
        raise ValueError(f"name: got {name!r}, allowed is one that does not begin with 'flash_attention'")
    try:
        importlib.import_module("mindnlp")
        masking = importlib.import_module("mindnlp.transformers.masking_utils")
        modeling = importlib.import_module("transformers.modeling_utils")
    except ImportError as error:
        raise ImportError(f"register: needs mindnlp and its transformers ({error}); pip install mindnlp") from error
    modeling.ALL_ATTENTION_FUNCTIONS.register(name, attention_forward)
    masking.ALL_MASK_ATTENTION_FUNCTIONS[name] = transformers.MaskFunction(masking)
    return name
