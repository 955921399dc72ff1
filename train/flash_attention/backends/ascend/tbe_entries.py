"""Entry functions for MindSpore's in-process TBE compiler.

MindSpore copies this file into its own folder and imports the copy, so everything is imported by its absolute name. It
calls an entry with one dictionary per input and output that the problem has, then the attribute `problem`.
"""

from flash_attention.kernels.tik.operators import FORWARD, compile_operator


def flash_attention_forward(*arguments, kernel_name="flash_attention_forward"):
    """Compiles the forward kernel."""
    compile_operator(FORWARD, arguments[:-1], arguments[-1], kernel_name)
