"""`flash-attention bench --tik` and `flash-attention check --backend emulator`."""

import re

import pytest
from flash_attention import cli
from flash_attention.commands import check
from flash_attention.commands.bench import tik

pytestmark = pytest.mark.system

pytest.importorskip("tikemu")


def test_bench_prints_shares_of_the_peak(capsys, monkeypatch):
    shapes = (("forward", 128, False), ("backward", 64, True))
    monkeypatch.setattr(tik, "SHAPES", shapes)
    assert cli.main(["bench", "--tik", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "S=256" in printed
    for shape in shapes:
        for sync in tik.SYNC:
            pattern = rf"^ *{re.escape(tik.figure_name(shape, sync))} +(\S+) % \((\d+) to (\d+)\)"
            ((reached, least, most),) = re.findall(pattern, printed, re.MULTILINE)
            assert int(least) < float(reached) < 50 and int(most) == round(float(reached))


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
    """The emulator refuses problems only for their dtypes."""
    from flash_attention.backends.registry import refusal

    refused = [item.label for item in check.items() if refusal("emulator", item.in_dtype("float16")) is not None]
    assert refused == ["given ALiBi in float32"]
