"""This package under the names that other code calls attention by, one module per client.

ascend910.py    the FlashAttention layers for the Ascend 910 that models were written for: their import paths, their
                signatures
"""

from flash_attention.compat.ascend910 import install, uninstall

__all__ = ["install", "uninstall"]
