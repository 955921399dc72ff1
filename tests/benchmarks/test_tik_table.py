"""The table of speeds over head_dims, lengths, heads and features: which cells there are, and which are out of line."""

from __future__ import annotations

import pytest
from flash_attention.measuring import tik_kernels

from benchmarks import tik_table


@pytest.mark.parametrize(
    ("shares", "found"),
    (
        ([0.2, 0.4, 0.6, 0.7], []),
        ([0.19, 0.4, 0.6, 0.7], [0]),  # less than half of a neighbour
        ([0.5, 0.42, 0.5], [1]),  # a dent
        ([0.5, 0.43, 0.5], []),
        ([0.2, 0.3, 0.5, 0.3, 0.2], []),  # a peak is none
    ),
)
def test_cells_that_fall_off_along_an_axis_are_found(shares, found):
    assert [index for index, _ in tik_table.out_of_line(shares, True)] == found


def test_features_are_compared_with_the_first_cell():
    assert tik_table.out_of_line([0.6, 0.31, 0.2, 0.6], False) == [(2, "33% of its neighbour")]


def test_a_cell_of_many_heads_has_all_cores_and_a_feature_its_rules():
    heads = tik_table.Cell("backward", 512, 64, "causal", heads=33, cores=30).problem
    assert (heads.heads, heads.kv_heads, heads.cores, heads.rules.causal) == (33, 33, 30, True)
    for name in tik_kernels.FEATURES:
        problem = tik_table.Cell("forward", 512, 64, name).problem
        assert problem == tik_kernels.problem_of(512, 64, **tik_kernels.FEATURES[name])


def test_every_feature_has_a_row_with_its_plain_neighbour(capsys, monkeypatch):
    pytest.importorskip("tikemu")
    seen: list[tik_table.Cell] = []

    def fake(cell: tik_table.Cell) -> tik_table.Speed:
        seen.append(cell)
        return tik_table.Speed(1, 0.1 if cell.kind == "mask" else 0.5, 1, "some")

    monkeypatch.setattr(tik_table, "speed", fake)
    assert tik_table.main(["features", "--operator", "forward", "--seq", "512", "--head-dim", "64"]) == 0
    assert {cell.kind for cell in seen} == {"full", "causal", *tik_kernels.FEATURES}
    text = capsys.readouterr().out
    assert "1 out of line" in text and text.count("S=512 D=64 mask") == 2


def test_the_share_of_a_head_on_its_core_is_that_of_the_bench():
    pytest.importorskip("tikemu")
    problem = tik_kernels.problem_of(256, 64)
    measured = tik_kernels.measure(problem)
    found = tik_table.speed(tik_table.Cell("forward", 256, 64, "full"))
    assert (found.cycles, found.strategy) == (measured.cycles, "pair128")
    assert found.share == pytest.approx(measured.utilisation)
    alone = tik_table.speed(tik_table.Cell("forward", 256, 64, "full", heads=1))
    assert alone.cores > 1 and alone.share < found.share and alone.cycles < found.cycles
