"""Constants that the evidence leaves open, and values from the Unified Buffer, in programs."""

import numpy as np
import pytest
import tikemu
from tikemu import Options, tik
from tikemu.soc import ASCEND_910A

pytestmark = pytest.mark.usefixtures("soc")

LAYER = 16384  # float32 numbers of a layer of banks
ISSUE, LATENCY = 4, 15


def cycles(statements, **constants):
    """Return the cycles that statements add. They get (instance, float32 numbers in the Unified Buffer).

    They are the same whether numbers are computed or not.
    """
    found = []
    for count in (1, 2):
        kernel = tik.Tik(disable_debug=False)
        x_gm, y_gm = (kernel.Tensor("float32", (64,), tik.scope_gm, name) for name in "xy")
        space = kernel.Tensor("float32", (2 * LAYER,), tik.scope_ubuf, "space")
        kernel.data_move(space, x_gm, 0, 1, 8, 0, 0)
        kernel.pipe_barrier("PIPE_ALL")
        for _ in range(count):
            statements(kernel, space)
            kernel.pipe_barrier("PIPE_ALL")
        kernel.data_move(y_gm, space, 0, 1, 8, 0, 0)
        kernel.BuildCCE("kernel", [x_gm], [y_gm])
        inputs = {"x": np.ones(64, np.float32)}
        runs = [
            tikemu.run(kernel, inputs, numerics=numerics, options=Options(constants=constants))
            for numerics in (True, False)
        ]
        assert runs[0].cycles == runs[1].cycles
        found.append(runs[0].cycles)
    return found[1] - found[0]


def add(first, second, target):
    """Return an addition of 64 repeats."""
    return lambda kernel, space: kernel.vec_add(64, space[target], space[first], space[second], 64, 8, 8, 8)


@pytest.mark.parametrize(
    "operands, constants, work",
    [
        ((0, 4096 + 64, LAYER), {}, 64),
        ((0, 4096 + 64, LAYER), {"vector_two_sources": 2}, 128),
        ((0, 4096, LAYER), {"vector_two_sources": 2}, 128),  # the same banks: two cycles in any case
        ((0, 4096, 0), {}, 3 * 64),
        ((0, 4096, 0), {"vector_reads_add": 0}, 2 * 64),
        ((0, 4096 + 64, LAYER), {"vector_head": 11}, 64),  # the result comes no later
        ((0, 4096 + 64, LAYER), {"vector_head": 40}, 64 + 40 - LATENCY),
    ],
)
def test_two_sources_and_the_head_of_an_instruction(operands, constants, work):
    assert cycles(add(*operands), **constants) == ISSUE + work + LATENCY


def test_the_head_holds_vector():
    def several(kernel, space):
        for number in range(4):
            kernel.vec_dup(64, space[number * 2048], 1.0, 32, 8)

    assert cycles(several) == ISSUE + 4 * 32 + LATENCY
    assert cycles(several, vector_head=14) == ISSUE + 4 * (32 + 14) + LATENCY - 14


def test_a_vector_instruction_waits_for_its_number_and_the_scalar_unit_goes_on():
    def operand(kernel, space):
        number = kernel.Scalar("float32", "number", space[0])
        kernel.vec_dup(64, space[LAYER], number, 1, 8)

    delivered = 12
    assert cycles(operand) == delivered + 1 + LATENCY
    assert cycles(operand, ub_scalar_latency=4) == 4 + ISSUE + 1 + LATENCY


def test_the_scalar_unit_waits_for_a_number_that_it_computes_with():
    def sums(count):
        def statements(kernel, space):
            read = [kernel.Scalar("float32", f"read_{i}", space[i]) for i in range(count)]
            total = kernel.Scalar("float32", "total", 0.0)
            for number in read:
                total.set_as(total + number)

        return statements

    timing = ASCEND_910A.timing
    more = cycles(sums(8)) - cycles(sums(4))
    assert more == 4 * (timing.ub_scalar_read + 2 * timing.scalar_cycles)  # one wait, for the last of them
    assert cycles(sums(4), ub_scalar_latency=20) - cycles(sums(4)) == 8


def test_a_number_that_decides_an_address_is_waited_for():
    def move(kernel, space):
        at = kernel.Scalar("int32", "at", space.reinterpret_cast_to("int32")[8])
        kernel.vec_dup(64, space[LAYER + at % 8 * 8], 1.0, 1, 8)

    assert cycles(move, ub_scalar_latency=50) - cycles(move) == 50 - 12
