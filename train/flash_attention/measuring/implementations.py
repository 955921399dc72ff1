"""Run the measured implementations: this package's cpu kernel, attention composed of MindSpore operators, and torch."""

from __future__ import annotations

import functools
import importlib.util
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Callable

import numpy as np

from flash_attention.measuring.case import DROPOUT, Case

TORCH_VERSION = "2.13.0"


def random_inputs(case: Case, count: int) -> list[np.ndarray]:
    """Return `count` standard normal float32 arrays of the case's shape."""
    random = np.random.default_rng(0)
    shape = case.batch, case.heads, case.seq, case.head_dim
    return [random.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return a float32 array as the kernel takes a dtype: bfloat16 as its bits, cut."""
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array.astype(dtype)


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """Bring a (batch, heads, seq, head_dim) array into another layout of query."""
    if layout == "BNSD":
        return array
    array = array.transpose((2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3))
    return np.ascontiguousarray(array if layout == "BSND" else array.reshape(*array.shape[:2], -1))


def hidden_pairs(case: Case) -> np.ndarray:
    """Return the mask of a case, (1, 1, seq, seq), 1 = hidden."""
    return (np.random.default_rng(1).random((1, 1, case.seq, case.seq)) < 0.1).astype(np.uint8)


def bias_of(case: Case) -> np.ndarray:
    """Return the bias of a case, (1, heads, seq, seq)."""
    shape = 1, case.heads, case.seq, case.seq
    return np.random.default_rng(2).standard_normal(shape, dtype=np.float32)


def available_bytes() -> int:
    """Return how many bytes a process can take without swapping."""
    (kilobytes,) = re.findall(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    return int(kilobytes) * 1024


def choose_cpu() -> None:
    """Make MindSpore compute on this machine's processor, even if it has found a card."""
    import mindspore

    if mindspore.get_context("device_target") != "CPU":
        mindspore.set_context(device_target="CPU")


class Implementation(ABC):
    """One way to compute the attention of a case."""

    def unavailable(self) -> str | None:
        """Return why nothing can be measured here, or None."""
        return None

    def load(self) -> None:  # noqa: B027 - most have nothing to import
        """Import the modules that take long."""

    def refuse(self, case: Case) -> str | None:
        """Return why this case cannot be measured, or None."""
        return None

    @abstractmethod
    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        """Return the function of each pass; a function returns when its results are there."""


class _MindSpore(Implementation):
    """Share what both MindSpore implementations need. They run in GRAPH mode, and gradients start from a given output
    gradient.
    """

    def load(self) -> None:
        import mindspore  # noqa: F401

    def lacks(self, dtype: str) -> str | None:
        """Return why there are no tensors of this dtype, or None."""
        import mindspore

        return None if dtype in vars(mindspore) else f"MindSpore {mindspore.__version__} has no {dtype}"

    def refuse(self, case: Case) -> str | None:
        return self.lacks(case.dtype)

    @abstractmethod
    def network(self, case: Case):
        """Return the Cell that computes the output of query, key and value."""

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        import mindspore
        from mindspore import Tensor, nn, ops

        class Gradient(nn.Cell):
            def __init__(self, network):
                super().__init__()
                self.gradient = ops.GradOperation(get_all=True, sens_param=True)(network)

            def construct(self, query, key, value, d_output):
                return self.gradient(query, key, value, d_output)

        choose_cpu()
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        dtype = getattr(mindspore, case.dtype)
        tensors = [Tensor(laid_out(array, case.layout), dtype) for array in random_inputs(case, 4)]
        network = self.network(case)
        gradient = Gradient(network)

        def forward():
            network(*tensors[:3]).asnumpy()  # waits; on a CPU it copies nothing

        def both():
            for result in gradient(*tensors):
                result.asnumpy()

        return {
            "forward": forward,
            "both": both,
            "compile forward": lambda: network.compile(*tensors[:3]),
            "compile both": lambda: gradient.compile(*tensors),
        }


class Flash(_MindSpore):
    """Attention of this package, by the native kernel."""

    def unavailable(self) -> str | None:
        from flash_attention.backends.registry import get_backend

        return get_backend("cpu").unavailable()

    def network(self, case: Case):
        import mindspore
        from mindspore import Tensor, nn

        from flash_attention.backends import registry

        mask = case.block_mask
        given: tuple = () if mask is None else (Tensor(mask.tiles),)
        if case.extra:
            made = {
                "mask": lambda: Tensor(hidden_pairs(case)),
                "bias": lambda: Tensor(bias_of(case), getattr(mindspore, case.dtype)),
                "dropout": lambda: Tensor(np.array([1, 2], np.int64)),
            }
            given = (made[case.extra](), *given)

        class Network(nn.Cell):
            def __init__(self):
                super().__init__()
                self.attend, self.given = registry.choose(case.call, "cpu").build(case.call), given

            def construct(self, query, key, value):
                return self.attend(query, key, value, self.given)[0]

        return Network()


class Composed(_MindSpore):
    """Attention as it is written without this package: BatchMatMul, mask, Softmax, BatchMatMul."""

    def refuse(self, case: Case) -> str | None:
        if case.dtype == "bfloat16":
            return "MindSpore's BatchMatMul and Softmax take no bfloat16 on a CPU"
        # Measured: about six arrays of scores in float32, twice that with the gradient.
        needed = 12 * case.batch * case.heads * case.seq**2 * 4
        if case.window_blocks or case.pattern:
            return "composed attention gains nothing from a window or a block mask"
        if case.extra or case.layout != "BNSD":
            return "composed attention is measured plain"
        if needed > available_bytes() // 2:
            return f"it would take about {needed / 2**30:.0f} GB"
        return None

    def network(self, case: Case):
        import mindspore
        from mindspore import Tensor, nn, ops

        hidden = np.triu(np.full((case.seq, case.seq), -np.inf if case.causal else 0.0, np.float32), 1)

        class Network(nn.Cell):
            def __init__(self):
                super().__init__()
                self.scores = ops.BatchMatMul(transpose_b=True)
                self.softmax = ops.Softmax(-1)
                self.mix = ops.BatchMatMul()
                self.scale = case.head_dim**-0.5
                self.hidden = Tensor(hidden, getattr(mindspore, case.dtype))

            def construct(self, query, key, value):
                return self.mix(self.softmax(self.scores(query * self.scale, key) + self.hidden), value)

        return Network()


class Torch(Implementation):
    """torch.nn.functional.scaled_dot_product_attention."""

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return f"torch is not installed: pip install torch=={TORCH_VERSION}"
        return None

    def load(self) -> None:
        import torch  # noqa: F401

    def refuse(self, case: Case) -> str | None:
        if case.window_blocks or case.pattern:
            return "it knows no window and no block mask"
        return "it has one layout" if case.layout != "BNSD" else None

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        import torch

        dtype = getattr(torch, case.dtype)
        query, key, value, d_output = (torch.from_numpy(array).to(dtype) for array in random_inputs(case, 4))
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        rules: dict = {"is_causal": case.causal, "dropout_p": DROPOUT if case.extra == "dropout" else 0.0}
        if case.extra in ("mask", "bias"):
            # It takes a mask of its own or causality, not both.
            rules["is_causal"] = False
            seen = torch.ones(case.seq, case.seq).tril().bool() if case.causal else torch.ones(1, 1).bool()
            if case.extra == "mask":
                rules["attn_mask"] = seen & ~torch.from_numpy(hidden_pairs(case)).bool()
            else:
                bias = torch.from_numpy(bias_of(case)).to(dtype)
                rules["attn_mask"] = bias.masked_fill(~seen, -float("inf"))
        attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, **rules)

        def forward():
            with torch.no_grad():
                attend(query, key, value)

        def both():
            torch.autograd.grad(attend(*leaves), leaves, d_output)

        return {"forward": forward, "both": both}


class Peak(Implementation):
    """A call of OPERATIONS operations, which shows the peak of the processor. It is the same for both passes."""

    OPERATIONS: int

    @classmethod
    def gflops(cls, seconds: float) -> float:
        """Return the rate of one call of so many seconds, 1e9 operations a second."""
        return cls.OPERATIONS / seconds / 1e9


class Gemm(Peak):
    """NumPy's product of two square float32 matrices: the rate a processor reaches if it does nothing but products."""

    SIZE = 1536
    OPERATIONS = 2 * SIZE**3

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        left, right = np.random.default_rng(0).standard_normal((2, self.SIZE, self.SIZE), dtype=np.float32)

        def product():
            np.matmul(left, right)

        return {"forward": product, "both": product}


class MultiplyAdds(Peak):
    """Multiply-adds in registers alone, as the kernel uses them for the dtype. No attention can be faster."""

    OPERATIONS = 1 << 33

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        from flash_attention.backends.cpu import library

        def call():
            library.load().multiply_adds(case.dtype, self.OPERATIONS)

        return {"forward": call, "both": call}


# The implementations that `bench` compares, and with them those that show the peak of the processor.
IMPLEMENTATIONS: dict[str, type[Implementation]] = {"flash": Flash, "torch": Torch, "composed": Composed}
KNOWN: dict[str, type[Implementation]] = {**IMPLEMENTATIONS, "gemm": Gemm, "multiply_adds": MultiplyAdds}
