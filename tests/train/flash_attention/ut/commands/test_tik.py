"""`flash-attention bench --tik` and `flash-attention check --backend emulator`."""

import json

import pytest
from flash_attention import cli
from flash_attention.commands import check
from flash_attention.commands.bench import tik, tik_decode

pytestmark = pytest.mark.system

pytest.importorskip("tikemu")


def test_bench_prints_shares_of_the_peak_and_with_strict_what_is_required(capsys, monkeypatch, tmp_path):
    shapes = (("forward", 128, False), ("backward", 64, True))
    monkeypatch.setattr(tik, "SHAPES", shapes)
    assert cli.main(["bench", "--tik", "--quick"]) == 0
    plain = capsys.readouterr().out
    assert "required" not in plain and "S=256" in plain
    file = tmp_path / "required.json"
    file.write_text(json.dumps({"a group": {tik.figure_name(shapes[0]): 83.0, tik.figure_name(shapes[1]): 1.0}}))
    assert cli.main(["bench", "--tik", "--quick", "--strict", str(file)]) == 1
    strict = capsys.readouterr().out
    for shape in shapes:
        for sync in tik.SYNC:
            name = tik.figure_name(shape, sync)
            lines = [
                line.replace(name, "").split() for text in (plain, strict) for line in text.splitlines() if name in line
            ]
            assert lines[0][:2] == lines[1][:2] and 0 < float(lines[0][0]) < 50, name
    assert strict.count("MISSED") == 1 and strict.count(" reached ") == 2  # the title of a column among them


def test_bench_of_decoding_prints_the_share_of_the_memory(capsys, monkeypatch):
    case = tik_decode.Decoding(2, 4, 2, 1, 2048, 64, block_size=16)
    monkeypatch.setattr(tik_decode, "CASES", (case,))
    assert cli.main(["bench", "--tik", "--decode", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "B=2 H=4 Hkv=2 Sq=1 Sk=128 D=64 blocks of 16: of the memory's rate" in printed
    assert "within the core" in printed and "required" not in printed


@pytest.mark.slow
def test_bench_of_packed_sequences_prints_shares_of_single_calls(capsys):
    assert cli.main(["bench", "--tik", "--packed", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "32 documents in 1024 tokens" in printed
    assert "packed forward in TIK: of the ideal" in printed and "packed backward in TIK: of the ideal" in printed


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
