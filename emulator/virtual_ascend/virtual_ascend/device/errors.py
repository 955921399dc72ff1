"""Report what a kernel did wrong, cannot do, or waits for."""


class KernelError(Exception):
    """The message names the kernel, and reaches the program as an exception of MindSpore."""


class QueueEmpty(Exception):
    """Report a batch that has not come yet; the message says what came before."""


class QueueFull(Exception):
    """A channel can take no more batches for now."""
