"""The device process: ``python -m virtual_ascend.device``, which the runtime starts. Runs kernels."""
