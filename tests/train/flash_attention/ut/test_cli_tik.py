"""`flash-attention bench --tik` and `flash-attention check --backend emulator`."""

import csv
import dataclasses
import functools

import pytest
from flash_attention import cli
from flash_attention.commands import check
from flash_attention.commands.bench import conversions, tik, tik_decode, tik_kernels
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE

pytest.importorskip("tikemu")


def test_bench_prints_required_beside_reached_and_what_the_kernels_need(capsys, tmp_path, monkeypatch):
    # Both operators, head dimensions and maskings, and both kinds of cases for the forms, whose cost at length is in
    # test_forms.py.
    required = {key: tik.REQUIRED[key] for key in (("forward", 128, False), ("backward", 64, True))}
    monkeypatch.setattr(tik, "REQUIRED", required)
    monkeypatch.setattr(tik, "_FORM_CASES", tik._FORM_CASES[::4])
    monkeypatch.setattr(tik, "FORM_SEQ", 128)
    for name in ("measure", "form_costs"):  # once for both calls
        monkeypatch.setattr(tik, name, functools.lru_cache(getattr(tik, name)))
    assert cli.main(["bench", "--tik", "--seq", "128", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    printed, needs = printed.split("what a kernel asks of a core")
    printed, converted = printed.split("with the framework's conversions")
    speed, conservative = printed.split("the same with conservative synchronisation")
    for operator, head_dim, causal in tik.REQUIRED:
        name = f"{operator} D={head_dim} {'causal' if causal else 'full'}"
        (line,) = (line for line in speed.splitlines() if line.startswith(name))
        assert f">= {100 * tik.REQUIRED[operator, head_dim, causal]:g} %" in line
        assert name in needs and name in converted
    assert f">= {100 * tik.REQUIRED_CONSERVATIVE['backward', 64, True]:g} %" in conservative
    assert conservative.count("backward D=") == 1 and conservative.count("MISSED") == 1
    assert speed.count("MISSED") == 2 and needs.count("within") == 3  # short sequences have no main loop
    with open(tmp_path / "tik.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3
    for row in rows:
        assert 0 < float(row["build_seconds"]) < tik.BUILD_SECONDS
        assert int(row["instructions"]) > 0 and int(row["code_bytes"]) > 0 and float(row["gm_bytes_per_tile"]) > 0
    cycles = {sync: sum(float(row["cycles"]) for row in rows if row["sync"] == sync) for sync in tik.SYNC}
    assert cycles["auto"] < cycles["conservative"]
    assert cli.main(["bench", "--tik", "--seq", "128", "--strict", "--out", str(tmp_path)]) == 1


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


def test_conversions_are_traffic_over_the_memory_rate():
    problem = KernelProblem(1, 2, 64, 64, 32, cores=1)
    measured = tik_kernels.measure(problem)
    # Three conversions of query, key, value and output, each read and written.
    moved = 3 * 4 * 2 * (2 * 64 * 32 * 2)
    assert conversions.traffic_cycles(measured, 3, 0.5) == moved / (conversions.BYTES_PER_CYCLE / 2)
    shares = conversions.shares(measured, [])
    work = measured.utilisation * measured.cycles
    assert shares["BNSD, SBH behind MatMul"][1] == pytest.approx(
        work / (measured.cycles + conversions.traffic_cycles(measured, 3, 0.6))
    )
    alone, by_itself, behind = (shares[title][1] for title in conversions.LAYOUTS)
    assert 0.9 * measured.utilisation < alone and alone > by_itself > behind


def test_bench_of_decoding_prints_shares_of_the_memory(capsys, monkeypatch):
    case = tik_decode.Decoding(2, 4, 2, 1, 2048, 64, block_size=16)
    monkeypatch.setattr(tik_decode, "REQUIRED", {case: 0.9})
    assert cli.main(["bench", "--tik", "--decode", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "B=2 H=4 Hkv=2 Sq=1 Sk=128 D=64 blocks of 16" in printed and ">= 90 %" in printed
    assert "MISSED" in printed and "within the core" in printed  # 128 keys are over before memory is the limit
    assert cli.main(["bench", "--tik", "--decode", "--quick", "--strict"]) == 1


@pytest.mark.slow
def test_bench_of_packed_sequences_prints_shares_of_single_calls(capsys):
    assert cli.main(["bench", "--tik", "--packed", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "32 documents in 1024 tokens" in printed
    assert "packed forward: of the ideal share" in printed and "packed backward: of the ideal share" in printed


def test_bench_takes_one_length(capsys):
    assert cli.main(["bench", "--tik", "--seq", "64", "--seq", "128"]) == 2
    assert "--seq: got [64, 128]" in capsys.readouterr().err


def test_check_runs_the_operators_and_names_what_is_refused(capsys):
    options = ["check", "--backend", "emulator", "--only", "given ALiBi", "--dtype", "float16", "--dtype", "float32"]
    assert cli.main(options) == 0
    printed = capsys.readouterr().out
    assert "backend emulator" in printed and printed.count("  ok\n") == 1 and "all right" in printed
    assert "refused: given ALiBi in float32 (float16): the TIK operators take a float16 bias" in printed
    assert "refused: given ALiBi (float32) and 1 more: the Cube" in printed


def test_every_rule_fits_the_emulator():
    """What it refuses is a matter of dtypes."""
    from flash_attention.backends.registry import refusal

    refused = [item.label for item in check.items() if refusal("emulator", item.in_dtype("float16")) is not None]
    assert refused == ["given ALiBi in float32"]
