"""Entry functions for MindSpore's in-process TBE compiler.

MindSpore copies this file into its own folder and imports the copy, so everything is imported by its absolute name. It
calls an entry with one dictionary per input and output that the problem has, then the attribute `request`.
"""

from flash_attention.kernels.tik.operators import FORWARD, GRAD, GRAD_FINISH, GRAD_ROWS, compile_operator


def flash_attention_forward(*arguments, kernel_name="flash_attention_forward"):
    """Compiles the forward kernel."""
    compile_operator(FORWARD, arguments[:-1], arguments[-1], kernel_name)


def flash_attention_grad_rows(*arguments, kernel_name="flash_attention_grad_rows"):
    """Compiles the pre-pass of the backward kernels."""
    compile_operator(GRAD_ROWS, arguments[:-1], arguments[-1], kernel_name)


def flash_attention_grad(*arguments, kernel_name="flash_attention_grad"):
    """Compiles the main backward kernel."""
    compile_operator(GRAD, arguments[:-1], arguments[-1], kernel_name)


def flash_attention_grad_finish(*arguments, kernel_name="flash_attention_grad_finish"):
    """Compiles the last pass of the backward kernels."""
    compile_operator(GRAD_FINISH, arguments[:-1], arguments[-1], kernel_name)
