"""Run the experiments on a card by pyACL and operator packages, without MindSpore. Not tried on a card."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flash_attention import reference
from flash_attention.backends.tik import entries, environment
from flash_attention.call import Call
from flash_attention.commands.selftest.card import ENTRY, NotRun, Run
from flash_attention.commands.selftest.compiling import raise_stack
from flash_attention.commands.selftest.loops import ALL_PROGRAMS, Loop
from flash_attention.commands.selftest.programs import PROGRAMS, Program
from flash_attention.kernels.tik import describe, operators, signatures
from flash_attention.kernels.tik.layout import from_nz, to_nz
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.signatures import NZ, GlobalTensor
from flash_attention.measuring.timing import least_seconds

_NODE = Path("/dev/davinci0")
_DTYPES = {"float32": 0, "float16": 1, "int32": 3, "uint8": 4}
_FORMATS = {"ND": 2, NZ: 29}
_TO_DEVICE, _TO_HOST = 1, 2
_STATUS_BYTES = 64
_DEVICE_MEMORY = 1  # ACL_HBM_MEM
_VENDOR = "flash_attention_selftest"


class DeviceCall:
    """Hold the tensors of a kernel on the card, until the block ends."""

    def __init__(self, card: Acl, kind: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor]):
        self.card, self.outputs, self.kind, self.space = card, outputs, kind, contextlib.ExitStack()
        try:
            self.given = [self._place(tensor, array) for tensor, array in inputs]
            self.addresses = [self._place(tensor) for tensor in outputs]
            self.prepare([tensor for tensor, _ in inputs])
        except BaseException:
            self.space.close()
            raise

    def prepare(self, inputs: Sequence[GlobalTensor]) -> None:
        """Compile, and make what `launch` needs."""
        raise NotImplementedError

    def launch(self) -> None:
        """Give the kernel to the card."""
        raise NotImplementedError

    def _place(self, tensor: GlobalTensor, array: np.ndarray | None = None) -> int:
        """Return the address of a tensor on the card."""
        if tensor.name in self.card.held:
            return self.card.held[tensor.name]
        if array is None:
            return self.card.allocate(_bytes(tensor), self.space)
        return self.card.upload(np.ascontiguousarray(array, tensor.dtype), self.space)

    def __enter__(self) -> DeviceCall:
        return self

    def __exit__(self, *_: Any) -> None:
        self.space.close()

    def clear(self) -> None:
        """Clear the sums that the kernel adds to."""
        for tensor, address in zip(self.outputs, self.addresses):
            if tensor.added:
                size = _bytes(tensor)
                self.card.check("acl.rt.memset", self.card.acl.rt.memset(address, size, 0, size))

    def run(self) -> dict[str, np.ndarray]:
        """Run the kernel, wait, and return the outputs by name."""
        self.clear()
        self.launch()
        self.card.wait()
        return {
            tensor.name: self.card.read(address, tensor.shape, tensor.dtype)
            for tensor, address in zip(self.outputs, self.addresses)
            if not tensor.absent
        }


def _bytes(tensor: GlobalTensor) -> int:
    return int(np.prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize


class OperatorCall(DeviceCall):
    """Compile an operator of an operator package, and run it as CANN's single operators run."""

    def __init__(
        self, card: Acl, kind: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor], problem: str | None = None
    ):
        self.problem = problem
        super().__init__(card, kind, inputs, outputs)

    def prepare(self, inputs: Sequence[GlobalTensor]) -> None:
        card, acl = self.card, self.card.acl
        self.attributes = acl.op.create_attr()
        self.space.callback(acl.op.destroy_attr, self.attributes)
        if self.problem is not None:
            card.check("acl.op.set_attr_string", acl.op.set_attr_string(self.attributes, "problem", self.problem))
        self.sides = [  # descriptions, and buffers
            ([self._describe(tensor) for tensor in side], list(map(self._buffer, side, addresses)))
            for side, addresses in ((inputs, self.given), (self.outputs, self.addresses))
        ]
        compiled = card.compile(self.kind, self.sides[0][0], self.sides[1][0], self.attributes)
        card.check(f"aclopCompile of {self.kind}", compiled)

    def _describe(self, tensor: GlobalTensor) -> int:
        """Return the description of a tensor: the matrix, and how it is stored."""
        acl, shape = self.card.acl, list(tensor.shape)
        seen = shape
        if tensor.format == NZ:  # whole fractals, as one matrix
            *outer, columns, rows, _, _ = shape
            seen = [*outer, 16 * rows, 16 * columns]
        description = acl.create_tensor_desc(_DTYPES[tensor.dtype], seen, _FORMATS["ND"])
        self.space.callback(acl.destroy_tensor_desc, description)
        acl.set_tensor_desc_name(description, tensor.name)
        self.card.check("acl.set_tensor_format", acl.set_tensor_format(description, _FORMATS[tensor.format]))
        self.card.check("acl.set_tensor_shape", acl.set_tensor_shape(description, shape))
        return description

    def _buffer(self, tensor: GlobalTensor, address: int) -> int:
        buffer = self.card.acl.create_data_buffer(address, _bytes(tensor))
        self.space.callback(self.card.acl.destroy_data_buffer, buffer)
        return buffer

    def launch(self) -> None:
        (given, inputs), (wanted, outputs) = self.sides
        run = self.card.acl.op.execute_v2(self.kind, given, inputs, wanted, outputs, self.attributes, self.card.stream)
        self.card.check(f"acl.op.execute_v2 of {self.kind}", run)


class Acl:
    """Use the first card. If something is missing, it fails before anything runs.

    Args:
        stream: of a program that has initialised the card; None initialises it.

    Attributes:
        held: addresses of inputs and outputs that the caller has on the card, by their names.
    """

    through = "acl"  # the value of --through

    def __init__(self, stream: int | None = None) -> None:
        try:
            acl = importlib.import_module("acl")
        except ImportError as error:
            message = "CANN's Python package acl cannot be imported"
            raise RuntimeError(f"--through {self.through}: {message}: {error} (source CANN's set_env.sh)") from error
        broken = environment.tbe_missing() or self.missing()
        if broken is not None:
            raise RuntimeError(f"--through {self.through}: {broken}")
        if _NODE.exists() and not os.access(_NODE, os.R_OK | os.W_OK):
            raise RuntimeError(f"--through {self.through}: no permission for {_NODE}; CANN's installer chose its group")
        self.folder = tempfile.TemporaryDirectory(prefix="flash_attention_")
        self.acl: Any = acl
        self.timed: bool = not environment.is_virtual()
        self.stack: int = raise_stack()
        self.prepare()
        if stream is None:
            self.check("acl.init", acl.init())
        self.library: Any = ctypes.CDLL(self.library_name)
        self.soc: str = acl.get_soc_name()
        if self.soc not in environment.CHIPS:
            allowed = f"allowed are {', '.join(environment.CHIPS)}"
            raise RuntimeError(f"--through {self.through}: the card is {self.soc}, {allowed}")
        if stream is None:
            self.check("acl.rt.set_device", acl.rt.set_device(0))
            stream = self._value("acl.rt.create_stream", acl.rt.create_stream())
        self.stream: int = stream
        self.held: dict[str, int] = {}

    library_name = "libacl_op_compiler.so"

    def missing(self) -> str | None:
        """Return what this route lacks beside CANN's Python packages, or None."""
        if environment.package_folder() is not None:
            return None
        install = "flash-attention opp --out DIR, then bash DIR/install.sh"
        return f"the operator package is not installed: {install}"

    def prepare(self) -> None:
        """Set the variables that CANN reads when it starts."""
        packages = _write_programs(Path(self.folder.name)), os.environ.get("ASCEND_CUSTOM_OPP_PATH")
        os.environ["ASCEND_CUSTOM_OPP_PATH"] = ":".join(str(one) for one in packages if one)
        environment.ignore_infer_errors()

    def compile(self, kind: str, inputs: list[int], outputs: list[int], attributes: int) -> int:
        """Compile an operator, by the function in C: pyACL has none. Its handles are the pointers that C takes."""
        given, wanted = ((ctypes.c_void_p * len(side))(*side) for side in (inputs, outputs))
        sides = len(inputs), given, len(outputs), wanted
        return self.library.aclopCompile(kind.encode(), *sides, ctypes.c_void_p(attributes), 0, 0, None)

    def check(self, what: str, code: int) -> None:
        """Raise RuntimeError with what CANN says if the code is not 0."""
        if code != 0:
            raise RuntimeError(f"{what} gave {code}: {self.acl.get_recent_err_msg()}")

    def _value(self, what: str, pair: tuple) -> Any:
        self.check(what, pair[1])
        return pair[0]

    def allocate(self, size: int, space: contextlib.ExitStack) -> int:
        """Return the address of memory that is free when the space closes."""
        address = self._value("acl.rt.malloc", self.acl.rt.malloc(size, 0))
        space.callback(self.acl.rt.free, address)
        return address

    def upload(self, array: np.ndarray, space: contextlib.ExitStack) -> int:
        """Return the address of a copy that is free when the space closes."""
        address = self.allocate(array.nbytes, space)
        self.check(
            "acl.rt.memcpy", self.acl.rt.memcpy(address, array.nbytes, array.ctypes.data, array.nbytes, _TO_DEVICE)
        )
        return address

    def wait(self) -> None:
        """Wait for all that was given to the card."""
        self.check("acl.rt.synchronize_stream", self.acl.rt.synchronize_stream(self.stream))

    def read(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Return a tensor of the card."""
        result = np.empty(shape, dtype)
        copied = self.acl.rt.memcpy(result.ctypes.data, result.nbytes, address, result.nbytes, _TO_HOST)
        self.check("acl.rt.memcpy", copied)
        return result

    def description(self) -> dict[str, str]:
        from flash_attention.commands.info import cann_version

        rt = self.acl.rt
        free, total, code = rt.get_mem_info(_DEVICE_MEMORY)
        saturation = rt.get_device_sat_mode()[0] if hasattr(rt, "get_device_sat_mode") else "unknown to this pyACL"
        return {
            "soc": self.soc if self.timed else f"{self.soc}, virtual",
            "cann": str(cann_version()),
            "through": self.through,
            **{name.lower(): os.environ.get(name, "not set") for name in environment.INFER_VARIABLES},
            "saturation_mode": str(saturation),
            "free_bytes": f"{free} of {total}" if code == 0 else f"unknown ({code})",
            "stack_bytes": str(self.stack),
        }

    def platform(self, name: str) -> int:
        return int(environment.specifications()[name])

    # ---------------------------------------------------------------------------------------------------- attention
    def stage_call(
        self, operator: signatures.Operator, problem: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor]
    ) -> DeviceCall:
        """Return a compiled operator."""
        return OperatorCall(self, operator.type, inputs, outputs, problem)

    def program_call(self, name: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor]) -> DeviceCall:
        """Return a compiled program of the self-test."""
        return OperatorCall(self, _type(name), inputs, outputs)

    def stage(self, stage: str, problem: KernelProblem, arrays: Mapping[str, np.ndarray]) -> DeviceCall:
        """Return a compiled stage of a problem with its inputs."""
        operator, signature = signatures.arguments(stage, problem)
        filled = operator.fill(signature)
        held = {one.name: np.empty(one.shape, one.dtype) for one in signature.inputs if one.name in self.held}
        feed = signature.feed(**held, **{name: arrays[name] for name in signature.given if name not in held})
        inputs = [(one, feed.get(one.name, np.zeros(one.shape, one.dtype))) for one in filled.inputs]
        return self.stage_call(operator, problem.to_text(), inputs, filled.outputs)

    def attend(self, call: Call, given: dict, gradients: dict, times: int) -> list:
        """Return the results of a call without optional inputs, as reference.Attention of float32 arrays."""
        p = describe.kernel_problem(replace(call, return_lse=True), **environment.chip()._asdict())
        rows = [(0, 0), (0, 0), (0, padded(p.call.seq_q) - p.call.seq_q)]
        arrays = {name: to_nz(given[name].astype(np.float16)) for name in ("query", "key", "value")}
        arrays["d_output"] = to_nz(gradients["d_output"].astype(np.float16))
        arrays["d_logsumexp"] = np.pad(gradients["d_logsumexp"].astype(np.float32), rows)
        shapes = {
            "output": p.call.shape_output(),
            "query": p.call.shape_query(),
            "key": p.call.shape_key(),
            "value": p.call.shape_value(),
        }
        results = []
        for _ in range(times):
            for stage in operators.stages(p):
                with self.stage(stage, p, arrays) as operator:
                    arrays.update(operator.run())
            names = {"output": "output", "d_query": "query", "d_key": "key", "d_value": "value"}
            found: dict = {
                name: from_nz(arrays[name], *shapes[of][-2:]).astype(np.float32) for name, of in names.items()
            }
            results.append(reference.Attention(logsumexp=arrays["logsumexp"][:, :, : p.call.seq_q], **found))
        return results

    def milliseconds(self, heads: int, seq: int, head_dim: int) -> float:
        """Return the time of the forward operator alone, the best of ten runs."""
        call = Call(1, heads, seq, seq, head_dim, dtype="float16")
        problem = describe.kernel_problem(call, **environment.chip()._asdict())
        random = np.random.default_rng(0)
        shapes = {"query": call.shape_query(), "key": call.shape_key(), "value": call.shape_value()}
        arrays = {name: to_nz(random.standard_normal(shape).astype(np.float16)) for name, shape in shapes.items()}
        with self.stage("forward", problem, arrays) as operator:
            return 1e3 * self._best(operator)

    # ----------------------------------------------------------------------------------------------------- programs
    def _program(self, program: Program, arrays: Mapping[str, np.ndarray]) -> DeviceCall:
        inputs = [
            (GlobalTensor(name, dtype, shape=(size,)), arrays.get(name, np.zeros(size, dtype)))
            for name, (dtype, size) in program.inputs.items()
        ]
        outputs = [
            GlobalTensor(name, dtype, added=name in program.added, shape=(size,))
            for name, (dtype, size) in program.outputs.items()
        ]
        return self.program_call(program.name, inputs, outputs)

    def run(self, name: str, **arrays: np.ndarray) -> Run:
        with self._program(PROGRAMS[name], arrays) as call:
            self.check("acl.rt.reset_overflow_status", self.acl.rt.reset_overflow_status(self.stream))
            outputs = call.run()
            status = self.allocate(_STATUS_BYTES, call.space)
            asked = self.acl.rt.get_overflow_status(status, _STATUS_BYTES, self.stream)
            self.check("acl.rt.get_overflow_status", asked)
            self.wait()
            words = self.read(status, (_STATUS_BYTES // 4,), "int32").view("uint32")
            return Run(outputs, bool(words.any()), " ".join(f"{word:#x}" for word in words))

    def _elapsed(self, call: DeviceCall, count: int) -> float:
        """Return the seconds of so many runs on the card, by events."""
        start, end = (self._value("acl.rt.create_event", self.acl.rt.create_event()) for _ in range(2))
        self.check("acl.rt.record_event", self.acl.rt.record_event(start, self.stream))
        for _ in range(count):
            call.launch()  # without clearing sums, which waits for the card
        self.check("acl.rt.record_event", self.acl.rt.record_event(end, self.stream))
        self.wait()
        elapsed = self._value("acl.rt.event_elapsed_time", self.acl.rt.event_elapsed_time(start, end)) / 1e3
        for event in (start, end):
            self.acl.rt.destroy_event(event)
        return elapsed

    def _best(self, call: DeviceCall) -> float:
        if not self.timed:
            raise NotRun("here is no device to be timed")
        call.run()
        return min(self._elapsed(call, 1) for _ in range(10))

    def seconds(self, loop: Loop) -> tuple[float, float]:
        times = []
        for program in loop.programs():
            with self._program(program, {}) as call:
                times.append(self._best(call))
        return times[0], times[1]

    def events(self) -> tuple[float, float]:
        with self._program(PROGRAMS["exponential"], {}) as call:
            self._best(call)
            start = time.perf_counter()
            elapsed = self._elapsed(call, 200)
            return elapsed, time.perf_counter() - start

    def launch(self) -> tuple[float, float]:
        with self._program(PROGRAMS["exponential"], {}) as call:
            self._best(call)

            def waited() -> None:
                call.launch()
                self.wait()

            waiting = least_seconds(waited)
            return self._elapsed(call, 200) / 200, waiting


def _type(name: str) -> str:
    """Return the operator type of a program."""
    return f"Selftest{name.title().replace('_', '')}"


def _write_programs(folder: Path) -> Path:
    """Write an operator package of the self-test's programs, and return its folder."""
    tbe = folder / _VENDOR / "op_impl" / "ai_core" / "tbe"
    sources, configuration = tbe / f"{_VENDOR}_impl", tbe / "config" / "ascend910"
    sources.mkdir(parents=True)
    configuration.mkdir(parents=True)
    library = {}
    for name, program in ALL_PROGRAMS.items():
        parameters = ", ".join((*program.inputs, *program.outputs))
        source = ENTRY.format(name=name, parameters=parameters, packages=entries.packages())
        (sources / f"selftest_{name}.py").write_text(source, encoding="utf-8")
        library[_type(name)] = {
            f"{side}{index}": {"name": one, "paramType": "required", "dtype": dtype, "format": "ND"}
            for side, tensors in (("input", program.inputs), ("output", program.outputs))
            for index, (one, (dtype, _)) in enumerate(tensors.items())
        } | {"opFile": {"value": f"selftest_{name}"}, "opInterface": {"value": f"selftest_{name}"}}
    text = json.dumps(library, indent=1)
    (configuration / "aic-ascend910-ops-info.json").write_text(text, encoding="utf-8")
    return folder / _VENDOR
