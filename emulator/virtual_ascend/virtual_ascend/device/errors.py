"""What a kernel did wrong, what it cannot do, and what it has to wait for."""


class KernelError(Exception):
    """The message names the kernel, and reaches the program as an exception of MindSpore."""


class QueueEmpty(Exception):
    """A kernel needs a batch that has not come yet; the message says what came before."""


class QueueFull(Exception):
    """A channel can take no more batches for now."""
