"""Strict mode: its classes of findings, each listed and left out by name."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikBoundsError, TikError, TikWarning, cli, findings, tik

from emulator.tests.support.strict_programs import CASES, mixed, ub

pytestmark = pytest.mark.usefixtures("quiet")
ALL = Options(strict=True, findings="all")


def test_a_class_that_is_left_out_warns_as_in_default_mode(soc):
    kernel, *_ = CASES["move_into_its_own_source"].build(True)
    with pytest.warns(TikWarning, match="overlap inside one call"):
        tikemu.run(kernel, {}, options=Options(strict=True, leave_out=("overlap",)))


def test_listed_findings_do_not_warn(soc):
    kernel, *_ = CASES["move_into_its_own_source"].build(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TikWarning)
        tikemu.run(kernel, {}, options=ALL)


def test_there_is_a_program_for_every_class():
    """Every class but the SoC, which has its own test below."""
    assert {*(case.kind for case in CASES.values() if case.kind), "soc"} == {*findings.CLASSES}


def test_the_class_of_a_missing_soc(no_warnings):
    with tikemu.use_options(ALL), pytest.raises(TikError, match="no SoC is selected"):
        tik.Tik()
    with tikemu.use_options(Options(strict=True, leave_out=("soc",))), pytest.raises(TikWarning, match="no SoC"):
        tik.Tik()


def test_the_emulator_uses_the_classes_and_no_others():
    used = set()
    for path in Path(tikemu.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        used.update(re.findall(r'questionable\(\s*"([\w-]+)"', text))
        used.update(re.findall(r'report\((?:[\w.]+(?:\([\w.]+\))?, )?"([\w-]+)", Tik', text))
        used.update(re.findall(r'\.checks\("([\w-]+)"\)', text))
        assert "questionable(f" not in text and "questionable(m" not in text
    assert used == {*findings.CLASSES}


def test_all_findings_in_one_run(kernel):
    kernel, feed = mixed(kernel)
    result = tikemu.run(kernel, feed, options=ALL)
    kinds = [finding.kind for finding in result.findings]
    assert kinds == ["value", "undefined", "unspecified"]
    recorded, undefined, unspecified = result.findings
    assert recorded.moment is None
    assert undefined.moment.loops == unspecified.moment.loops == (("step", 1),)
    assert "vec_adds" in undefined.location.text and "vec_ln" in unspecified.location.text
    assert str(undefined).startswith("[undefined] vec_adds reads 256 undefined bytes")
    np.testing.assert_array_equal(result.outputs["target"], tikemu.run(kernel, feed).outputs["target"])
    # Later runs find what is theirs, whatever the first has kept.
    assert tikemu.run(kernel, feed, options=ALL).findings == result.findings
    large = {"source": np.full(128, 65504, np.float16)}
    assert tikemu.run(kernel, large, options=ALL).findings == (recorded, undefined)
    some = Options(strict=True, findings="all", leave_out=("value", "unspecified"))
    assert [finding.kind for finding in tikemu.run(kernel, feed, options=some).findings] == ["undefined"]
    kernel.tikdb.start_debug(feed, interactive=False)
    assert kernel.tikdb.findings == ()
    with tikemu.use_options(ALL):
        kernel.tikdb.start_debug(feed, interactive=False)
    assert [finding.kind for finding in kernel.tikdb.findings] == kinds


@pytest.mark.parametrize("numerics", [True, False])
def test_an_error_carries_what_was_found_before(kernel, numerics):
    target = kernel.Tensor("float16", (64,), tik.scope_gm, "target")
    data = ub(kernel, "data", 64)
    kernel.vec_dup([0, 0], data, 1.0, 1, 4)
    count = kernel.Scalar("int32", init_value=8)
    kernel.data_move(target, data, 0, 1, count, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    with pytest.raises(TikBoundsError) as caught:
        tikemu.run(kernel, {}, numerics=numerics, options=ALL)
    assert [finding.kind for finding in caught.value.findings] == ["argument"]
    assert "\nfound before: [argument] vec_dup: mask [0, 0]" in str(caught.value)


def test_leave_out_takes_classes_only():
    with pytest.raises(ValueError, match="leave_out .* got 'overlaps'; did you mean 'overlap'?"):
        Options(strict=True, leave_out=("overlaps",))
    with pytest.raises(TypeError, match="tuple of classes, got the string 'overlap'"):
        Options(strict=True, leave_out="overlap")
    with pytest.raises(ValueError, match="findings must be one of first, all"):
        Options(findings="every")


def test_the_command_lists_findings(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(
        "from emulator.tests.support.strict_programs import mixed\nfrom tbe import tik\n\n"
        "def build():\n    return mixed(tik.Tik())[0]\n"
    )
    np.save(tmp_path / "source.npy", np.full(128, 0.5, np.float16))
    command = ["run", f"{program}:build", "--feed", f"source={tmp_path / 'source.npy'}"]
    listing = [*command, "--strict", "--findings", "all"]
    assert cli.main(listing) == 1
    said = capsys.readouterr().err
    assert said.startswith("3 findings of strict mode\n[value] ") and "in step = 1\n[unspecified] vec_ln" in said
    leave_out = [argument for kind in ("value", "undefined", "unspecified") for argument in ("--leave-out", kind)]
    assert cli.main([*listing, *leave_out]) == 0
    assert "findings" not in capsys.readouterr().err
    assert cli.main([*command, *leave_out]) == 2
    assert "need --strict" in capsys.readouterr().err


def test_the_command_lists_the_classes(capsys):
    assert cli.main(["findings"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines.pop("class") == "what"
    assert lines == findings.CLASSES
