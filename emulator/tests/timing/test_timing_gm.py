"""Global memory: bandwidth, bursts, lines of the L2 buffer."""

from dataclasses import replace

import pytest
from tikemu.isa.micro_op import Transfer
from tikemu.isa.region import Memory, Region
from tikemu.soc import ASCEND_910A
from tikemu.timing.gm import GlobalMemory, L2Cache


def gm(cores=1, l2=False):
    """Return the global memory of a chip with some of its cores at work."""
    return GlobalMemory(ASCEND_910A, cores, l2)


def gm_region(start, transfer):
    """Return the bytes of a transfer."""
    memory = Memory("GM", "gm", 1 << 22, False)
    return Region.strided(memory, start, transfer.bursts, transfer.pitch, transfer.burst_bytes)


@pytest.mark.parametrize("cores, bandwidth", [(1, 1160), (16, 72.5), (32, 36.25)])
def test_cores_share_the_bandwidth(cores, bandwidth):
    transfer = Transfer("read", 1, 65536, 65536)
    cost = gm(cores).cost(transfer, gm_region(0, transfer))
    assert (cost.cycles, cost.share) == (pytest.approx(65536 / 78), pytest.approx(65536 / bandwidth))
    assert cost.latency == 350


@pytest.mark.parametrize(
    "start, bursts, length, pitch, fetched, beats",
    [
        (0, 1, 1024, 1024, 1024, 8),
        (64, 1, 128, 128, 256, 1),  # off the line: two lines
        (0, 16, 32, 32, 512, 16),  # contiguous, but every burst takes a beat
        (0, 16, 32, 64, 1024, 16),  # two bursts share a line
        (0, 16, 32, 4096, 16 * 128, 16),
        (96, 16, 64, 4096, 16 * 256, 16),
    ],
)
def test_reads_fetch_whole_lines_and_whole_beats(start, bursts, length, pitch, fetched, beats):
    transfer = Transfer("read", bursts, length, pitch)
    cost = gm().cost(transfer, gm_region(start, transfer))
    assert cost.cycles == pytest.approx(max(fetched / 78, beats))


@pytest.mark.parametrize(
    "cores, bursts, length, cycles", [(1, 1, 6400, 100), (32, 1, 6400, 100), (1, 100, 32, 100), (1, 10, 96, 20)]
)
def test_writes(cores, bursts, length, cycles):
    transfer = Transfer("write", bursts, length, length)
    cost = gm(cores).cost(transfer, gm_region(0, transfer))
    assert (cost.cycles, cost.share) == (cycles, pytest.approx(bursts * length * cores / 1160))
    assert cost.latency == 200


def test_l2_serves_what_was_read_before():
    model = gm(32, l2=True)
    transfer = Transfer("read", 1, 65536, 65536)
    region = gm_region(0, transfer)
    cost, lines = model.cost(transfer, region), model.lines(transfer, region)
    first = model.cached_cost(transfer, cost, 1, lines)
    again = model.cached_cost(transfer, cost, 1, lines)
    assert (first.cycles, first.share, first.latency) == (pytest.approx(65536 / 78), pytest.approx(65536 / 36.25), 350)
    assert (again.cycles, again.share, again.latency) == (pytest.approx(65536 / 110), 0, 150)
    assert model.cached_cost(transfer, cost, 2, lines).latency == 350  # another tensor
    for direction in ("write", "atomic"):
        assert model.cached_cost(replace(transfer, direction=direction), cost, 1, lines) is cost


def test_l2_forgets_the_least_recently_used():
    cache = L2Cache(4)
    assert cache.touch(0, range(4)) == 4
    assert cache.touch(0, range(1)) == 0  # line 0 is used again
    assert cache.touch(0, range(4, 5)) == 1  # drops line 1
    assert cache.touch(0, range(1)) == 0
    assert cache.touch(0, range(1, 2)) == 1
