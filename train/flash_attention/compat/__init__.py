"""This package under the names by which other code calls attention, one module per client.

ascend910.py    the FlashAttention layers for the Ascend 910 that models were written for: their import paths, their
                signatures
flash_attn/     the functions of flash_attn, the package for other accelerators
mindspore_ops/, mindspore_patch.py
                MindSpore's attention operators, and how they get into its place
transformers.py the attention functions of mindone's transformers
mindnlp.py      the same of MindNLP
"""

from flash_attention.compat.ascend910 import install, uninstall
from flash_attention.compat.mindspore_patch import patch_mindspore

__all__ = ["install", "patch_mindspore", "uninstall"]
