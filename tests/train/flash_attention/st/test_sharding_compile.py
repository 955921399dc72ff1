"""Graphs of the layer that MindSpore compiles without a device, sharded for 8 devices."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

# By tensor map: for each axis the dimension of the device matrix (dp=4, mp=2) that splits it, counted from the right.
TENSOR = [1, 0, -1, -1]
# Query and key as a backend takes them: shape of the whole, shape on a device, and split.
BNSD = [[8, 4, 40, 16], [8, 2, 40, 16]], [[2, 2, 40, 16], [2, 1, 40, 16]], TENSOR
SBH = [[40, 8, 64], [40, 8, 32]], [[40, 2, 32], [40, 2, 16]], [-1, 1, 0]
# A Morph stands for the operators until the graph is split.
TIK = "Morph", "FlashAttentionForward", "FlashAttentionGrad"


@pytest.fixture(scope="module")
def compiled(run_python):
    """Return the contents of the compiled programs of the cases. One process compiles them."""
    printed = run_python(str(Path(__file__).parent / "support" / "parallel_compile.py"), OMP_NUM_THREADS="1")
    return json.loads(next(line for line in printed.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


def only(operators, name):
    """Return the only operator with that name. Words for its features may follow the name.

    MindSpore 2.0 knows TBE operators by their functions.
    """
    pattern = re.compile(name + "(?!rows|finish)", re.IGNORECASE)
    (found,) = [operator for operator in operators if pattern.match(operator["name"].replace("_", ""))]
    return found


@pytest.mark.parametrize(
    ("case", "names", "layout"),
    [
        ("tik", TIK, BNSD),
        ("tik-BSH-computed-alibi", TIK, BNSD),
        ("cpu-SBH-dropout", (*["FlashAttentionForwardSBH"] * 2, "FlashAttentionBackward"), SBH),
    ],
)
def test_nothing_is_gathered_and_every_device_computes_its_share(compiled, case, names, layout):
    whole, last = compiled[case]["sharded"], compiled[case]["last"]
    (query, key), (query_share, key_share), split = layout
    forward = only(whole, names[0])
    assert forward["split"][:3] == [split] * 3
    assert forward["shapes"][:3] == ([query, [8, 4, 48]] if names == TIK else [query, key, key])
    assert whole == [forward]  # no AllGather or the like beside it
    for name in names[1:]:
        assert only(last, name)["shapes"][:3] == [query_share, key_share, key_share]
    if names != TIK:
        assert only(last, names[2])["split"][:3] == [split] * 3
    assert not any(operator["name"].startswith("All") for operator in last)


def test_sinks_go_by_heads_and_prefix_and_segments_by_batch(compiled):
    whole, last = (compiled["cpu-sinks-prefix-segments"][stage] for stage in ("sharded", "last"))
    forward = only(whole, "FlashAttentionForwardBNSD")
    assert whole == [forward]
    assert forward["split"][7:11] == [[0], [1], [1, -1], [1, -1]]
    for name in ("FlashAttentionForwardBNSD", "FlashAttentionBackwardSinks"):
        assert only(last, name)["shapes"][7:11] == [[2], [2], [2, 40], [2, 40]]
    # Devices with other parts of the batch hold the same sinks: their gradients are added up.
    assert [operator["shapes"] for operator in last if operator["name"] == "AllReduce"] == [[[2]]]


def test_masks_and_bias_of_the_tik_operators_are_split(compiled):
    # Every device has the whole mask and bias, draws all keep bits, and has whole stand-ins for what is missing.
    forward = only(compiled["tik"]["sharded"], "Morph")
    assert forward["split"][3:] == [[1, -1, -1, -1], [-1, 1, 0, -1, -1], *([[-1]] * 7)]
    for name, place in (("FlashAttentionForward", 3), ("FlashAttentionGrad", 5)):
        operator = only(compiled["tik"]["last"], name)
        assert operator["shapes"][place : place + 3] == [[2, 1, 40, 40], [16], [2, 2, 2, 1, 48]]
    rows = only(compiled["tik"]["last"], "FlashAttentionGradRows")
    assert rows["shapes"][3] == [8]  # nobody sees the logsumexp


def test_prefix_segments_and_sinks_of_the_tik_operators_are_split(compiled):
    whole, last = (compiled["tik-sinks-prefix-segments"][stage] for stage in ("sharded", "last"))
    # The sinks, the prefix, and segment ids.
    forward = only(whole, "Morph")
    assert [forward["split"][place] for place in (6, 8, 9, 10)] == [[1, 0, -1], [1], [1, -1], [1, -1]]
    assert only(last, "FlashAttentionForward")["shapes"][6] == [2, 2, 128]


def test_a_device_knows_where_its_heads_and_its_batch_are(compiled):
    # Device 3 has the second eighth of four of the batch, and heads 2 and 3 of 4.
    alibi = only(compiled["tik-BSH-computed-alibi"]["last"], "FlashAttentionForward")
    assert alibi["slopes"] == [2**-6, 2**-8]
    rules = only(compiled["cpu-SBH-dropout"]["last"], "FlashAttentionForwardSBH")["rules"]
    assert rules[10:12] == [2, 2]  # batch_offset and head_offset
