"""Run the experiments on an Ascend 910 through MindSpore, or on the emulator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from flash_attention.bridge.releases import needs_package
from flash_attention.call import Call
from flash_attention.commands import check
from flash_attention.commands.selftest.loops import ALL_PROGRAMS, Loop
from flash_attention.commands.selftest.programs import PROGRAMS
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.timing import least_seconds


class NotRun(Exception):
    """An experiment that this device or software cannot make; the message says why."""


class Run(NamedTuple):
    """Outputs by name, whether the run set the overflow status, and its words."""

    outputs: dict[str, np.ndarray]
    overflow: bool
    status: str = ""


class Device(Protocol):
    """Define the questions an experiment asks a device."""

    timed: bool  # whether calls take the time of a device

    def description(self) -> dict[str, str]:
        """Return the versions of chip and software."""

    def platform(self, name: str) -> int:
        """Return a size of the chip, as by tbe.common.platform.get_soc_spec."""

    def run(self, name: str, **arrays: np.ndarray) -> Run:
        """Run one of PROGRAMS."""

    def seconds(self, loop: Loop) -> tuple[float, float]:
        """Return the times of both lengths of a loop."""

    def events(self) -> tuple[float, float]:
        """Return the seconds of 200 small kernels, by events and by the host's clock."""

    def launch(self) -> tuple[float, float]:
        """Return the seconds of a small kernel, once queued and once waited for."""

    def attend(self, call: Call, given: dict, gradients: dict, times: int) -> list:
        """Return the results of so many calls, as reference.Attention of float32 arrays."""

    def milliseconds(self, heads: int, seq: int, head_dim: int) -> float:
        """Return the time of the forward of a square call: the best of ten calls."""


class _Layer:
    """Run attention through the layer, on both devices under MindSpore."""

    backend: str  # of the layer

    def events(self) -> tuple[float, float]:
        raise NotRun("here are no events: --through acl or runtime has them")

    def seconds(self, loop: Loop) -> tuple[float, float]:
        raise NotRun("MindSpore times no single instruction: --through acl or runtime does")

    def launch(self) -> tuple[float, float]:
        raise NotRun("MindSpore times no launch: --through acl or runtime does")

    def attend(self, call: Call, given: dict, gradients: dict, times: int) -> list:
        return check.execute(self.backend, call, given, **gradients, times=times)

    def milliseconds(self, heads: int, seq: int, head_dim: int) -> float:
        """Return the time of the layer on the card, conversions of the framework included."""
        import mindspore as ms

        from flash_attention import FlashAttention

        ms.set_context(mode=ms.GRAPH_MODE)
        random = np.random.default_rng(0)
        shape = 1, heads, seq, head_dim
        tensors = [ms.Tensor(random.standard_normal(shape).astype(np.float16)) for _ in range(3)]
        layer = FlashAttention(head_dim, backend="tik")
        return 1e3 * least_seconds(lambda: layer(*tensors).asnumpy(), 11)


class Emulator(_Layer):
    """tikemu in strict mode."""

    backend, timed = "emulator", False

    def __init__(self, soc: str = "Ascend910A"):
        self.soc = soc
        tik_kernels.require_tikemu("--device emulator")
        import tikemu

        self.tikemu = tikemu
        tikemu.install(soc=self.soc)

    def description(self) -> dict[str, str]:
        import mindspore

        return {"soc": self.soc, "mindspore": mindspore.__version__, "tikemu": self.tikemu.__version__}

    def platform(self, name: str) -> int:
        from tbe.common.platform import get_soc_spec

        return int(get_soc_spec(name))

    def run(self, name: str, **arrays: np.ndarray) -> Run:
        from tbe import tik

        instance = PROGRAMS[name].build(tik, f"selftest_{name}", True)
        result = self.tikemu.run(
            instance, arrays, timing=False, options=self.tikemu.Options(strict=True, progress=False)
        )
        return Run(result.outputs, bool(result.overflow))

    def seconds(self, loop: Loop, constants: Mapping[str, float] | None = None) -> tuple[float, float]:
        """Return the times in the model, with other values of some constants."""
        from tbe import tik

        options = self.tikemu.Options(constants=constants or {}, l2=loop.cached, trace=False, progress=False)
        results = [
            self.tikemu.run(program.build(tik, "loop", True), {}, numerics=False, options=options)
            for program in loop.programs()
        ]
        few, many = ((result.cycles or 0) / result.soc.clock_hz for result in results)
        return few, many

    def launch(self) -> tuple[float, float]:
        from tikemu.soc import ASCEND_910A

        return ASCEND_910A.timing.launch_seconds_queued, ASCEND_910A.timing.launch_seconds_synchronised


ENTRY = '''"""Entry of a program of `flash-attention selftest`."""


def selftest_{name}({parameters}, kernel_name="selftest_{name}", **others):
    """Compiles the program."""
    import sys

    if {packages!r} not in sys.path:
        sys.path.append({packages!r})
    from tbe import tik

    from flash_attention.commands.selftest.loops import ALL_PROGRAMS

    ALL_PROGRAMS["{name}"].build(tik, kernel_name, False)
'''


class Ascend(_Layer):
    """A card under MindSpore, whose in-process TBE compiler (2.0 to 2.2) takes the programs. Not tried on a card."""

    backend = "tik"

    def __init__(self):
        try:
            import mindspore as ms
        except ModuleNotFoundError as error:
            if error.name != "mindspore":
                raise
            message = "--device ascend: MindSpore is not installed; --through runtime asks the card without it"
            raise RuntimeError(message) from error

        from flash_attention.backends.tik import environment

        self.ms, self.environment, self.timed = ms, environment, not environment.is_virtual()
        reason = environment.missing(ms.__version__, ms.get_context("device_target"))
        if reason is not None:
            raise RuntimeError(f"--device ascend: {reason}")

    def description(self) -> dict[str, str]:
        soc = self.environment.specifications()["soc"]
        return {"soc": soc if self.timed else f"{soc}, virtual", "mindspore": self.ms.__version__}

    def platform(self, name: str) -> int:
        return int(self.environment.specifications()[name])

    def attend(self, call: Call, given: dict, gradients: dict, times: int) -> list:
        if needs_package(self.ms.__version__):  # before 2.6 an operator package runs in graphs alone
            self.ms.set_context(mode=self.ms.GRAPH_MODE)
        return super().attend(call, given, gradients, times)

    def run(self, name: str, **arrays: np.ndarray) -> Run:
        from mindspore import Tensor
        from mindspore.ops import operations as P

        if needs_package(self.ms.__version__):
            raise NotRun("programs need the compiler that MindSpore 2.0 to 2.2 have; the operators are tried below")
        program = PROGRAMS[name]
        primitive = _primitive(name)
        status = P.NPUAllocFloatStatus()()
        P.NPUClearFloatStatus()(status)
        outputs = primitive(*(Tensor(arrays[one]) for one in program.inputs))
        found = [one.asnumpy() for one in (outputs if isinstance(outputs, tuple) else (outputs,))]
        P.NPUGetFloatStatus()(status)
        bits = status.asnumpy()
        return Run(dict(zip(program.outputs, found)), bool(bits.any()), str(bits.tolist()))


@functools.cache
def _primitive(name: str):
    """Return the primitive of a program."""
    from mindspore import dtype as mstype
    from mindspore import ops
    from mindspore.ops import DataType, TBERegOp

    from flash_attention.backends.tik import entries

    formats = {"float16": DataType.F16_Default, "float32": DataType.F32_Default}
    program, name = ALL_PROGRAMS[name], f"selftest_{name}"
    parameters = ", ".join((*program.inputs, *program.outputs))
    function = entries.load(name, ENTRY.format(name=program.name, parameters=parameters, packages=entries.packages()))
    register = TBERegOp(name).fusion_type("OPAQUE").kernel_name(name).binfile_name(f"{name}.so").compute_cost(10)
    for index, one in enumerate(program.inputs):
        register.input(index, one, False, "required", "all")
    for index, one in enumerate(program.outputs):
        register.output(index, one, False, "required", "all")
    register.dtype_format(*(formats[dtype] for dtype, _ in (*program.inputs.values(), *program.outputs.values())))
    shapes = [(size,) for _, size in program.outputs.values()]
    dtypes = [getattr(mstype, dtype) for dtype, _ in program.outputs.values()]
    shape, dtype = (shapes[0], dtypes[0]) if len(shapes) == 1 else (tuple(shapes), tuple(dtypes))
    information = register.get_op_info()
    result = ops.Custom(function, out_shape=shape, out_dtype=dtype, func_type="tbe", reg_info=information)
    result.add_prim_attr("output_names", list(program.outputs))
    return result
