"""Record the calls of a program: container, tensors, values, blocks and instructions. Calls are recorded."""
