"""What a kernel did wrong, or what it cannot do."""


class KernelError(Exception):
    """The message names the kernel, and reaches the program as an exception of MindSpore."""
