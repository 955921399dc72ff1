"""The device process: ``python -m virtual_ascend.device``, started by the runtime. Runs kernels on the card's memory."""
