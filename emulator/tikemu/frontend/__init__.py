"""What programs write to: the container of a kernel, tensors, values, blocks, instructions. Calls are recorded."""
