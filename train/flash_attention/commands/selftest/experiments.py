"""The experiments. Each says what is expected, what to change if a chip does otherwise, and how to find out."""

from __future__ import annotations

import importlib.util
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flash_attention.call import AttentionRules, Call
from flash_attention.commands import check
from flash_attention.commands.selftest import loops
from flash_attention.commands.selftest.card import Device, NotRun
from flash_attention.commands.selftest.programs import CORES, HALVES, SIZE, UNROLLED
from flash_attention.kernels.tik.problem import CAPACITY


@dataclass(frozen=True)
class Experiment:
    """One question to the chip.

    Attributes:
        perform: gives what was found in words, with times if it took some, or raises AssertionError with the words.
    """

    name: str
    expected: str
    change: str
    perform: Callable[[Device], str | Timed]


class Timed(NamedTuple):
    """Hold the words of an answer, and the times behind it."""

    found: str
    seconds: tuple[float, float]


def perform(experiment: Experiment, device: Device) -> dict:
    """Make an experiment; return its name, expectation, result, findings and seconds.

    The result is "ok", "FAILED" or "not run". A loop has the times of both lengths too.
    """
    start = time.perf_counter()
    times: dict[str, Any] = {}
    try:
        result, answer = "ok", experiment.perform(device)
        found = answer
        if isinstance(answer, Timed):
            found, times = answer.found, {"times": list(answer.seconds)}
    except AssertionError as error:
        result, found = "FAILED", str(error)
    except NotRun as error:
        result, found = "not run", str(error)
    except Exception:  # whatever a compiler or driver throws is a result too
        result, found = "FAILED", traceback.format_exc()
        if KeyboardInterrupt.__name__ in found:  # MindSpore makes another error of it in a Python operator
            raise KeyboardInterrupt from None
    return {
        "name": experiment.name,
        "expected": experiment.expected,
        "result": result,
        "found": found,
        "change": experiment.change,
        "seconds": round(time.perf_counter() - start, 3),
        **times,
    }


def _require(condition: bool | np.bool_, found: str) -> str:
    """Return `found`, or raise it as an error if the condition is false."""
    if not condition:
        raise AssertionError(found)
    return found


def _random(*shape: int, dtype=np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _chip(device: Device) -> str:
    cores = device.platform("CORE_NUM")
    sizes = {memory: device.platform(f"{memory}_SIZE") for memory in CAPACITY}
    small = [memory for memory, size in sizes.items() if size < CAPACITY[memory]]
    found = f"{cores} cores; bytes {', '.join(f'{memory} {size}' for memory, size in sizes.items())}"
    return _require(cores in (30, 32) and not small, found)


def _exponential(device: Device) -> str:
    x = np.linspace(-20, 20, SIZE, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(device.run("exponential", x=x).outputs["y"] / exact - 1).max()
    return _require(error < 4e-6, f"largest relative error {error:.2e}")


def _exponential_ends(device: Device) -> str:
    x = np.full(SIZE, -200, np.float32)
    x[::2] = 0
    y = device.run("exponential", x=x).outputs["y"]
    return _require(np.all(y[::2] == 1) and np.all(y[1::2] == 0), f"exp(0) = {y[0]!r}, exp(-200) = {y[1]!r}")


def _conversion(device: Device) -> str:
    x = _random(SIZE) * np.float32(100)
    x[:4] = 1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 2.0**-25  # ties to even, just below the limit, half the least number
    wrong = np.count_nonzero(device.run("convert", x=x).outputs["y"] != x.astype(np.float16))
    return _require(wrong == 0, f"{wrong} of {SIZE} numbers are not rounded to the nearest, ties to even")


def _saturation(device: Device) -> str:
    x = np.zeros(SIZE, np.float32)
    x[0], x[1] = 1e6, -1e6
    y = device.run("convert", x=x).outputs["y"]
    return _require(y[0] == 65504 and y[1] == -65504, f"1e6 becomes {y[0]}, -1e6 becomes {y[1]}")


def _flag(device: Device) -> str:
    large, small = np.full(128, 60000, np.float16), np.full(128, 100, np.float16)
    quiet = device.run("sum", x=large, y=small).overflow
    loud = device.run("sum", x=large, y=large)
    after = device.run("sum", x=small, y=small).overflow
    found = f"60000 + 100 sets it: {quiet}; 60000 + 60000: {loud.overflow}; afterwards, cleared, 100 + 100: {after}"
    found += f"; its words after the overflow: {loud.status}" if loud.status else ""
    return _require((quiet, loud.overflow, after) == (False, True, False), found)


def _shifted(device: Device) -> str:
    x, y = _random(SIZE), _random(SIZE, seed=1)
    wrong = np.count_nonzero(device.run("shifted", x=x, y=y).outputs["z"] != x * y)
    return _require(wrong == 0, f"{wrong} of {SIZE} products are wrong")


def _copied(program: str, factor: int = 1, **others: np.ndarray) -> Callable[[Device], str]:
    def perform(device: Device) -> str:
        x = _random(SIZE)
        wrong = np.count_nonzero(device.run(program, x=x, **others).outputs["y"] != factor * x)
        return _require(wrong == 0, f"{wrong} of {SIZE} numbers are wrong")

    return perform


def _unrolled(device: Device) -> str:
    x = np.arange(64, dtype=np.float32)
    added = np.unique(device.run("unrolled", x=x).outputs["y"] - x)
    return _require(np.array_equal(added, [UNROLLED]), f"{UNROLLED} additions of 1 added {added.tolist()}")


def _far(device: Device) -> str:
    if not device.timed:
        raise NotRun("here is no card with gigabytes to spare")
    x = np.arange(32, dtype=np.float16)
    y = device.run("far", x=x).outputs["y"]
    return _require(np.array_equal(y, x), f"beginning {y[0]:g} to {y[15]:g}, behind 4 GiB {y[16]:g} to {y[31]:g}")


def _exponential_half(device: Device) -> str:
    """Compare exponentials of all float16 at or below 0 with the nearest float16."""
    x = np.zeros(HALVES, np.float16)
    x[:31745] = np.arange(0x8000, 0xFC01, dtype=np.uint16).view(np.float16)
    y = device.run("exponential_half", x=x).outputs["y"]
    exact = np.exp(x.astype(np.float64)).astype(np.float16)
    units = np.abs(y.view(np.int16).astype(np.int64) - exact.view(np.int16))  # positive numbers stand in their order
    found = f"largest error {units.max()} units in the last place, {np.count_nonzero(units)} of 31745 not the nearest"
    return _require(units.max() <= 1, found)


def _conversion_ends(device: Device) -> str:
    x = np.zeros(SIZE, np.float32)
    x[:5] = np.inf, -np.inf, 70000, -70000, 65520
    y = device.run("convert", x=x).outputs["y"]
    found = ", ".join(f"{one:g} becomes {other:g}" for one, other in zip(x[:5], y))
    return _require(np.array_equal(y[:5], [65504, -65504, 65504, -65504, 65504]), found)


def _events(device: Device) -> Timed:
    by_events, by_host = device.events()
    found = f"200 launches take {by_events * 1e3:.3f} ms by events, {by_host * 1e3:.3f} ms by the host"
    _require(0 < by_events <= by_host, found)
    return Timed(found, (by_events, by_host))


def _mixed_axpy(device: Device) -> str:
    x, y = _random(SIZE), _random(SIZE, dtype=np.float16, seed=1)
    error = np.abs(device.run("mixed_axpy", x=x, y=y).outputs["z"] - (x + 0.75 * y.astype(np.float32))).max()
    return _require(error < 1e-6, f"largest error {error:.2e}")


def _slice(device: Device) -> str:
    a, b = _random(2, 16, 16, dtype=np.float16), _random(16, 16, dtype=np.float16, seed=1)
    exact = a[1].astype(np.float64) @ b.astype(np.float64).T
    both = device.run("slice", a=a.reshape(-1), b=b.reshape(-1)).outputs["c"].reshape(2, 16, 16)
    errors = np.abs(both - exact).max((1, 2))
    return _require((errors < 1e-3).all(), f"largest error of data_move {errors[0]:.2e}, of tensor_mov {errors[1]:.2e}")


def _atomic(device: Device) -> str:
    x = np.arange(SIZE, dtype=np.float32)
    sums = [device.run("atomic", x=x).outputs["y"] for _ in range(2)]
    factors = [np.unique(one[1:] / x[1:]) for one in sums]
    found = f"{CORES} cores add x: the sum is x times {factors[0]}, in the second run {factors[1]}"
    return _require(all(np.array_equal(one, CORES * x) for one in sums), found)


def _attention(head_dim: int, seq: int, **rules) -> Callable[[Device], str]:
    call = Call(
        1, 2, seq, seq, head_dim, dtype="float16", rules=AttentionRules(**rules), training=True, return_lse=True
    )

    def perform(device: Device) -> str:
        from flash_attention import reference

        item = check.Item(f"selftest {head_dim} {seq}", call)
        given, gradients = check.draw(call, item)
        tensors = given["query"], given["key"], given["value"]
        exact, low = (one(call, *tensors, **gradients) for one in (reference.truth, reference.baseline))
        runs = device.attend(call, given, gradients, times=3)
        errors = reference.compare(runs[0], exact, low)
        cells = ", ".join(f"{error.name} {check.ratio(error)}" for error in errors)
        equal = all(
            np.array_equal(array, other.named()[name]) for other in runs[1:] for name, array in runs[0].named().items()
        )
        found = f"error over the baseline's: {cells}; three runs bit-equal: {equal}"
        return _require(equal and all(error.ok for error in errors), found)

    return perform


def _times(device: Device) -> str:
    """Time the forward of one shape beside the model, on a device that takes time."""
    seq, heads = 2048, 32
    lines = []
    for head_dim in (128, 64):
        modelled = None
        if importlib.util.find_spec("tikemu") is not None:
            from flash_attention.measuring import tik_kernels

            cycles = tik_kernels.measure(tik_kernels.problem_of(seq, head_dim)).cycles
            modelled = cycles / 1e6  # at 1 GHz, in milliseconds
        measured = device.milliseconds(heads, seq, head_dim) if device.timed else None
        cells = [f"{name} {value:.2f} ms" for name, value in (("measured", measured), ("model", modelled)) if value]
        lines.append(f"forward D={head_dim}, {heads} heads, S={seq}: {', '.join(cells) or 'neither device nor tikemu'}")
        _require(not (measured and modelled and measured > 3 * modelled), "; ".join(lines))
    if not device.timed:
        raise NotRun(f"here is no device to be timed; {'; '.join(lines)}")
    return "; ".join(lines)


def _loop(loop: loops.Loop) -> Experiment:
    def perform(device: Device) -> Timed:
        seconds = device.seconds(loop)
        hertz = loops.clock(*map(device.seconds, loops.LOOPS[:2]))
        return Timed(f"{loop.answer(seconds, hertz):.1f} {loop.unit} at {hertz / 1e6:.0f} MHz", seconds)

    change = f"python -m benchmarks.calibrate card.json: {loop.constants} (emulator/tikemu/soc.py)"
    return Experiment(f"{PREFIX}{loop.name}", loop.separates, change, perform)


def _launch(device: Device) -> Timed:
    queued, waited = device.launch()
    return Timed(f"{queued * 1e6:.1f} us queued, {waited * 1e6:.1f} us waited for", (queued, waited))


#: In front of the names of loops.
PREFIX = "time of "

EXPERIMENTS = (
    Experiment(
        "chip",
        f"30 or 32 AI cores; at least {', '.join(f'{memory} {size}' for memory, size in CAPACITY.items())} bytes",
        "cores: FLASH_ATTENTION_CORES; sizes: kernels/tik/hardware.py, CAPACITY",
        _chip,
    ),
    Experiment(
        "shifted operands",
        "a product whose first source overlaps the destination, 256 bytes further on, takes the old values",
        "FLASH_ATTENTION_FORMS=shifted_operands=0 (kernels/tik/instruction_forms.py)",
        _shifted,
    ),
    Experiment(
        "unused input",
        "a kernel may leave an input alone that is among its arguments: 0 wrong numbers",
        "kernels/tik/operators.py, build: each kernel then has to read its stand-ins",
        _copied("unused_input", a=np.zeros(8, np.float32)),
    ),
    Experiment(
        "unused output",
        "a kernel may leave an output alone that is among its arguments: 0 wrong numbers",
        "nothing: the form write_absent lets kernels write to every output; it must stay on",
        _copied("unused_output"),
    ),
    Experiment(
        "synchronisation of parts",
        "what is loaded in parts without barriers is complete before Vector takes it: 0 wrong numbers",
        "kernels/tik/decode: load.py and merge.py without disable_sync",
        _copied("parts", factor=2),
    ),
    Experiment(
        "code size",
        f"{UNROLLED} instructions in a row, more than the instruction cache holds, all run: {UNROLLED} is added",
        "send the report: kernels then need loops in the place of unrolled tiles",
        _unrolled,
    ),
    Experiment(
        "tensor beyond 4 GiB",
        "offsets in int64 reach the end of a tensor of 4 GiB: 0 to 15, and 16 to 31",
        "calls whose tensors have less than 4 GiB; Core.wide in kernels/tik/recorder.py",
        _far,
    ),
    Experiment(
        "float16 axpy to float32",
        "vec_axpy adds float16 numbers to float32 ones without rounding the sum to float16",
        "FLASH_ATTENTION_FORMS=mixed_axpy=0 (kernels/tik/instruction_forms.py); biases per score and ALiBi "
        "on both sides use it",
        _mixed_axpy,
    ),
    Experiment(
        "slice of L0C",
        "data_move and tensor_mov take a part of an L0C tensor",
        "FLASH_ATTENTION_FORMS=tensor_move=1 if data_move fails (kernels/tik/instruction_forms.py), or a tensor "
        "per part that is moved among the L0C buffers of kernels/tik/forward/tiling.py and backward/tiling.py",
        _slice,
    ),
    Experiment(
        "exponential",
        "vec_exp in float32 is right to 4e-6",
        "the truth tests below decide; larger errors need a correction in forward/softmax.py",
        _exponential,
    ),
    Experiment(
        "ends of the exponential",
        "exp(0) is 1 and exp(-200) is 0",
        "common/mask.py: hidden scores must come out as 0",
        _exponential_ends,
    ),
    Experiment(
        "float16 exponential",
        "vec_exp of every float16 at or below 0 is at most 1 unit in the last place from the nearest",
        "send the report; forward/softmax.py takes float32 instead",
        _exponential_half,
    ),
    Experiment(
        "conversion",
        "float32 to float16 rounds to the nearest, ties to even",
        "Core.to_half (kernels/tik/recorder.py): another round mode of vec_conv",
        _conversion,
    ),
    Experiment(
        "saturation",
        "float32 beyond the range of float16 becomes 65504",
        "the chip is in Inf/NaN mode: the kernels count on saturation",
        _saturation,
    ),
    Experiment(
        "conversion of infinities",
        "infinities and 70000 become 65504 with their signs",
        "nothing if saturation is as expected: no kernel converts infinities on purpose; send the report",
        _conversion_ends,
    ),
    Experiment(
        "overflow status",
        "set by a sum beyond 65504, and by nothing else; generated code of others tests the bits 0x5b8 or 0x520",
        "if it is never set, loss scaling cannot see overflows: use a static loss scale",
        _flag,
    ),
    Experiment(
        "workspace",
        "what a kernel writes to its workspace it reads back",
        "forward/kernel.py: the flags of the second attempt need an output of their own",
        _copied("workspace", factor=2),
    ),
    Experiment(
        "atomic addition",
        "cores add up in float32, and the framework clears the sums before every run",
        "not cleared: zero d_query_sums before the main backward kernel (backends/tik/cell.py)",
        _atomic,
    ),
    Experiment(
        "attention 1: D=16, S=40",
        "forward and gradients within twice the baseline's error, three runs bit-equal",
        "send the report; kernels/tik",
        _attention(16, 40),
    ),
    Experiment(
        "attention 2: D=64, S=150, causal",
        "as before",
        "send the report; common/mask.py if only this one fails",
        _attention(64, 150, causal=True),
    ),
    Experiment(
        "attention 3: D=128, S=300, causal",
        "as before",
        "send the report; forward/row_reference.py and the rings in L1 if only this one fails",
        _attention(128, 300, causal=True),
    ),
    Experiment(
        "times",
        "at most three times the model's, conversions of the framework included",
        "send the report: a profile (msprof) says which pipe waits",
        _times,
    ),
    *map(_loop, loops.LOOPS),
    Experiment(
        f"{PREFIX}events",
        "events take time on the card: more than 0, and not more than the host's clock",
        "times are then to be taken from a profile (msprof)",
        _events,
    ),
    Experiment(
        f"{PREFIX}launch",
        "10.5 us queued, 19.5 us waited for",
        "python -m benchmarks.calibrate card.json: launch_seconds_queued and launch_seconds_synchronised",
        _launch,
    ),
)
