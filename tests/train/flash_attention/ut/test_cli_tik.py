"""`flash-attention bench --tik` and `flash-attention check --backend emulator`."""

import csv
import dataclasses

import pytest
from flash_attention import cli
from flash_attention.commands import check
from flash_attention.commands.bench import tik, tik_kernels
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE

pytest.importorskip("tikemu")


def test_bench_prints_required_beside_reached_and_what_the_kernels_need(capsys, tmp_path):
    assert cli.main(["bench", "--tik", "--seq", "256", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    speed, needs = printed.split("what a kernel asks of a core")
    for operator, head_dim, causal in tik.REQUIRED:
        name = f"{operator} D={head_dim} {'causal' if causal else 'full'}"
        (line,) = (line for line in speed.splitlines() if line.startswith(name))
        assert f">= {100 * tik.REQUIRED[operator, head_dim, causal]:g} %" in line
        assert name in needs
    assert speed.count("MISSED") == 8 and needs.count("within") == 16  # short sequences have no main loop
    with open(tmp_path / "tik.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 16
    for row in rows:
        assert 0 < float(row["build_seconds"]) < tik.BUILD_SECONDS
        assert int(row["instructions"]) > 0 and int(row["code_bytes"]) > 0 and float(row["gm_bytes_per_tile"]) > 0
    cycles = {sync: sum(float(row["cycles"]) for row in rows if row["sync"] == sync) for sync in tik.SYNC}
    assert cycles["auto"] < cycles["conservative"]
    assert cli.main(["bench", "--tik", "--seq", "64", "--strict", "--out", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, []),
        ({"code_bytes": INSTRUCTION_CACHE + 1}, ["code"]),
        ({"events": {"V->M": 5}}, ["events"]),
        ({"build_seconds": 11.0}, ["build time"]),
        ({"peak_bytes": {"UB": 1, "L1": 2, "L0A": 65537, "L0B": 4, "L0C": 262145}}, ["L0A", "L0C"]),
    ],
)
def test_what_is_too_much_is_named(change, said):
    measured = tik_kernels.measure(KernelProblem(1, 1, 64, 64, 32, cores=1))
    assert tik.excess(dataclasses.replace(measured, **change)) == said


def test_bench_takes_one_length(capsys):
    assert cli.main(["bench", "--tik", "--seq", "64", "--seq", "128"]) == 2
    assert "--seq: got [64, 128]" in capsys.readouterr().err


def test_check_runs_the_operators_and_names_what_is_refused(capsys):
    options = ["check", "--backend", "emulator", "--only", "ALiBi", "--dtype", "float16", "--dtype", "float32"]
    assert cli.main(options) == 0
    printed = capsys.readouterr().out
    assert "backend emulator" in printed and printed.count("  ok\n") == 2 and "all right" in printed
    assert "refused: given ALiBi in float32 (float16): the TIK operators take a float16 bias" in printed
    assert "refused: computed ALiBi, 3 heads (float32) and 3 more: the Cube" in printed


def test_every_rule_fits_the_emulator():
    """What it refuses is a matter of dtypes, or of what the operators do not have yet."""
    from flash_attention.backends.registry import refusal

    refused = [item.label for item in check.items() if refusal("emulator", item.in_dtype("float16")) is not None]
    assert refused == [
        "given ALiBi in float32",
        "soft cap 2, ALiBi",
        "sinks, window",
        "prefix",
        "segments",
        "head_dim 96, 40 of value",
    ]
