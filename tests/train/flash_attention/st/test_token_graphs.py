"""Test operations between projections and TIK operators in MindSpore's Ascend graphs, by layout."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def neighbours(run_python) -> dict[str, list[str]]:
    """Return the names of the operations next to the operators, by layout and head_dim. One process compiles them."""
    printed = run_python(str(Path(__file__).parent / "support" / "token_graphs.py"), OMP_NUM_THREADS="1")
    return json.loads(next(line for line in printed.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


@pytest.mark.parametrize("layout", ["TH", "BSH"])
def test_projections_give_the_operators_their_results_as_they_are(neighbours, layout):
    assert neighbours[f"{layout}-16"] == ["MatMul"]  # forward and backward; nn.Dense's own Reshapes of BSH are gone


def test_what_remains_where_tokens_or_heads_stand_otherwise(neighbours):
    assert neighbours["SBH-16"] == ["Reshape"]  # of the Transpose that brings the tokens of an item together
    assert neighbours["BSH-24"] == ["Transpose"]  # heads that share fractals
