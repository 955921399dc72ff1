"""The arithmetic of bfloat16 is what this processor does faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import Call
from flash_attention.commands import info

from tests.train.flash_attention.ut.native.support.calls import instruction_set, run, stored, values

KERNEL = library.load()
DOT_PRODUCT, FLOAT32 = library.DOT_PRODUCT_ISA, "avx512"
SLOW, FAST = 0.46, 2.0

pytestmark = pytest.mark.skipif(KERNEL.bfloat16_rate() is None, reason="the processor has no bfloat16 dot product")


@pytest.fixture(autouse=True)
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel choose, whatever instruction set the tests run with."""
    monkeypatch.delenv(library.ISA_VARIABLE, raising=False)


def without_tiles() -> tuple[str, ...]:
    """Return the instruction sets in order, without the set that has tiles. Tiles come first on every processor that
    has them.
    """
    return tuple(name for name in KERNEL.instruction_sets() if name != library.TILES_ISA)


@pytest.fixture
def assumed() -> Iterator[Callable[[float], None]]:
    """Take a rate for the measured one."""
    yield KERNEL.assume_bfloat16_rate
    KERNEL.assume_bfloat16_rate(None)


@pytest.mark.parametrize(("rate", "first"), ((SLOW, FLOAT32), (0.99, FLOAT32), (1.0, DOT_PRODUCT), (FAST, DOT_PRODUCT)))
def test_a_slow_dot_product_is_not_used(rate: float, first: str, assumed) -> None:
    """Results have the bits of the chosen instruction set, and not of the others. Tiles come before either."""
    call = Call(1, 2, 70, 90, 40, dtype="bfloat16")
    rng = np.random.default_rng(0)
    shapes = (70, 90, 90, 70)
    tensors = [rng.standard_normal((1, 2, length, 40), np.float32) for length in shapes]
    of_set = {}
    tiles = KERNEL.tiles_missing() is None
    for name in (DOT_PRODUCT, FLOAT32, *((library.TILES_ISA,) if tiles else ())):
        with instruction_set(name):
            of_set[name] = list(map(values, run(call, *tensors)))
    assumed(rate)
    assert without_tiles()[0] == first
    assert sorted(without_tiles()[:2]) == sorted((DOT_PRODUCT, FLOAT32))
    chosen = list(map(values, run(call, *tensors)))
    for name, results in of_set.items():
        same = all(np.array_equal(ours, theirs) for ours, theirs in zip(chosen, results))
        assert same == (name == (library.TILES_ISA if tiles else first))


def test_a_forced_set_stays_forced(assumed) -> None:
    assumed(SLOW)
    with instruction_set(DOT_PRODUCT):
        said = info.bfloat16_arithmetic()
    assert said.startswith("dot product, forced by FLASH_ATTENTION_CPU_ISA; ") and "0.46 times" in said
    with instruction_set("none"):
        assert info.bfloat16_arithmetic().startswith("none: FLASH_ATTENTION_CPU_ISA=none cannot run here")


@pytest.mark.skipif(KERNEL.tiles_missing() is None, reason="tiles are used, whatever the rate")
@pytest.mark.parametrize(("rate", "start"), ((SLOW, "float32: "), (FAST, "dot product: ")))
def test_info_says_which_and_why(rate: float, start: str, assumed) -> None:
    assumed(rate)
    said = info.bfloat16_arithmetic()
    assert said.startswith(start) and f"measured to do {rate:.2f} times the operations of float32" in said


def test_the_measurement_chooses_and_is_short(run_python) -> None:
    """A process measures once, so three processes run. The fastest counts, because the machine may be busy."""
    program = (
        "import time; from flash_attention.backends.cpu import library; kernel = library.load();"
        "start = time.thread_time(); rate = kernel.bfloat16_rate(); first = time.thread_time() - start;"
        "assert rate == kernel.bfloat16_rate(); print(first, rate)"
    )
    seconds, rates = zip(*(map(float, run_python("-c", program).split()) for _ in range(3)))
    assert min(seconds) < 1e-3
    assert max(rates) < 1.2 * min(rates)
    measured = KERNEL.bfloat16_rate()
    assert measured is not None
    assert without_tiles()[0] == (FLOAT32 if measured < 1 else DOT_PRODUCT)


@pytest.mark.parametrize("isa", [None, FLOAT32, "avx2"], ids=str)
def test_bfloat16_is_not_slower_than_float32(isa: str | None, threads) -> None:
    """This holds for the chosen instruction set and for sets without a dot product. The fastest turn counts."""
    threads(1)
    length, width = 1024, 64
    tensors = np.random.default_rng(0).standard_normal((4, 1, 2, length, width), np.float32)
    seconds = dict.fromkeys(("float32", "bfloat16"), float("inf"))
    calls = {}
    for dtype in seconds:
        call = Call(1, 2, length, length, width, dtype=dtype)
        *inputs, d_output = stored(tensors, dtype)
        calls[dtype] = call, inputs, d_output
    with instruction_set(isa or ""):
        for _ in range(5):
            for dtype, (call, inputs, d_output) in calls.items():
                start = time.thread_time()
                results = library.forward(call, *inputs)
                library.backward(call, *inputs, *results, d_output)
                seconds[dtype] = min(seconds[dtype], time.thread_time() - start)
    assert seconds["bfloat16"] < 1.05 * seconds["float32"]
