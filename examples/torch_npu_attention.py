"""Run the forward operator on tensors of PyTorch (torch_npu) by pyACL.

Nobody has run this with torch_npu. Without it the program takes plain memory of the card in the place of tensors.
It needs CANN, NumPy and the operator package (`flash-attention opp`), and nothing of MindSpore.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys

import numpy as np
from flash_attention.backends.tik.environment import chip, ignore_infer_errors
from flash_attention.call import AttentionRules, Call
from flash_attention.kernels.tik import signatures
from flash_attention.kernels.tik.layout import from_nz, to_nz
from flash_attention.kernels.tik.problem import KernelProblem, padded

DTYPES = {"float32": 0, "float16": 1, "int32": 3, "uint8": 4}  # aclDataType
ND, FRACTAL_NZ = 2, 29  # aclFormat
TO_DEVICE, TO_HOST = 1, 2


def check(what: str, code: int) -> None:
    """Raise the error that CANN reports."""
    if code:
        import acl

        raise RuntimeError(f"{what} gave {code}: {acl.get_recent_err_msg()}")


def upload(array: np.ndarray) -> int:
    """Return the address of a copy on the card."""
    import acl

    address, code = acl.rt.malloc(array.nbytes, 0)
    check("malloc", code)
    check("memcpy", acl.rt.memcpy(address, array.nbytes, array.ctypes.data, array.nbytes, TO_DEVICE))
    return address


class Forward:
    """Compile the forward operator for one shape, and run it on addresses of the card.

    query, key, value and output are float16 (batch, heads, seq, head_dim) in FRACTAL_NZ, logsumexp is float32
    (batch, heads, seq padded to 16).
    """

    def __init__(self, batch: int, heads: int, seq: int, head_dim: int, causal: bool) -> None:
        import acl

        rules = AttentionRules(causal=causal)
        problem = KernelProblem(Call(batch, heads, seq, seq, head_dim, rules=rules), **chip()._asdict())
        self.operator, signature = signatures.arguments("forward", problem)
        filled = self.operator.fill(signature)
        self.sides = filled.inputs, filled.outputs
        self.own = {}  # what follows from the problem, or stands in for what it lacks
        for tensor in filled.inputs:
            if tensor.constant is not None or tensor.absent:
                array = np.zeros(tensor.shape, tensor.dtype) if tensor.constant is None else tensor.constant
                self.own[tensor.name] = upload(np.ascontiguousarray(array))
        self.attributes = acl.op.create_attr()
        acl.op.set_attr_string(self.attributes, "problem", problem.to_text())
        self.descriptions = [[self.describe(one) for one in side] for side in self.sides]
        # pyACL has no function that compiles; its handles are the pointers of the function in C.
        pointers = [(ctypes.c_void_p * len(side))(*side) for side in self.descriptions]
        sides = len(pointers[0]), pointers[0], len(pointers[1]), pointers[1]
        compiler, kind = ctypes.CDLL("libacl_op_compiler.so"), self.operator.type.encode()
        check("compile", compiler.aclopCompile(kind, *sides, ctypes.c_void_p(self.attributes), 0, 0, None))

    def describe(self, tensor: signatures.GlobalTensor) -> int:
        """Return the description of a tensor: the matrix, and how it is stored."""
        import acl

        nz, shape = tensor.format == "FRACTAL_NZ", list(tensor.shape)
        matrix = [*shape[:-4], shape[-3] * 16, shape[-4] * 16] if nz else shape
        description = acl.create_tensor_desc(DTYPES[tensor.dtype], matrix, ND)
        acl.set_tensor_format(description, FRACTAL_NZ if nz else ND)
        acl.set_tensor_shape(description, shape)
        return description

    def __call__(self, stream: int, **addresses: int) -> None:
        """Give the operator to a stream. The addresses are query, key, value, output and logsumexp."""
        import acl

        places, buffers = {**self.own, **addresses}, []
        for side in self.sides:
            sizes = [int(np.prod(one.shape)) * np.dtype(one.dtype).itemsize for one in side]
            buffers.append([acl.create_data_buffer(places[one.name], size) for one, size in zip(side, sizes)])
        (given, wanted), (inputs, outputs) = self.descriptions, buffers
        kind = self.operator.type
        check("execute", acl.op.execute_v2(kind, given, inputs, wanted, outputs, self.attributes, stream))
        for buffer in (*inputs, *outputs):
            acl.destroy_data_buffer(buffer)


def on_tensors(forward: Forward, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output for tensors of torch_npu, on the current stream."""
    import torch
    import torch_npu

    tensors = [torch_npu.npu_format_cast(torch.from_numpy(one).npu(), FRACTAL_NZ) for one in (*arrays, arrays[0])]
    batch, heads, seq, _ = arrays[0].shape
    logsumexp = torch.empty((batch, heads, padded(seq)), dtype=torch.float32, device="npu")
    names = dict(zip(("query", "key", "value", "output"), (one.data_ptr() for one in tensors)))
    forward(torch.npu.current_stream().npu_stream, **names, logsumexp=logsumexp.data_ptr())
    torch.npu.synchronize()
    return torch_npu.npu_format_cast(tensors[3], ND).cpu().numpy()


def on_memory(forward: Forward, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output for plain memory of the card."""
    import acl

    stream, code = acl.rt.create_stream()
    check("create_stream", code)
    stored = [to_nz(one) for one in arrays]
    result, (batch, heads, seq, head_dim) = np.empty_like(stored[0]), arrays[0].shape
    names = dict(zip(("query", "key", "value", "output"), map(upload, (*stored, result))))
    forward(stream, **names, logsumexp=upload(np.zeros((batch, heads, padded(seq)), np.float32)))
    check("synchronize_stream", acl.rt.synchronize_stream(stream))
    check("memcpy", acl.rt.memcpy(result.ctypes.data, result.nbytes, names["output"], result.nbytes, TO_HOST))
    return from_nz(result, seq, head_dim)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seq", type=int, default=256, help="tokens")
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()
    shape = 1, 2, options.seq, options.head_dim
    arrays = [np.random.default_rng(seed).standard_normal(shape).astype(np.float16) for seed in range(3)]
    with_torch = importlib.util.find_spec("torch_npu") is not None
    ignore_infer_errors()  # before CANN starts
    if with_torch:
        import torch_npu  # noqa: F401 - it initialises the card
    else:
        import acl

        check("init", acl.init())
        check("set_device", acl.rt.set_device(0))
    output = (on_tensors if with_torch else on_memory)(Forward(*shape, causal=True), arrays)
    query, key, value = (one.astype(np.float64) for one in arrays)
    scores = query @ key.swapaxes(2, 3) / np.sqrt(options.head_dim) + np.triu(np.full((options.seq,) * 2, -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    error = np.abs(output - weights / weights.sum(-1, keepdims=True) @ value).max()
    print(f"{'tensors of torch_npu' if with_torch else 'plain memory of the card'}: largest error {error:.1e}")
    return int(not error < 2e-3)


if __name__ == "__main__":
    sys.exit(main())
