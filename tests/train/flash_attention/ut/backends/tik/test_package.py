"""The operator package: its files, their formats, its installation, and entries that compile on their own."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flash_attention import cli
from flash_attention.kernels.tik import signatures
from flash_attention.kernels.tik.operators import build
from flash_attention.kernels.tik.signatures import DECODE_STAGES, OPERATORS, STAGES

from tests.train.flash_attention.support.calls import make_kernel_problem

tikemu = pytest.importorskip("tikemu")

ENTRIES = Path("op_impl/ai_core/tbe/flash_attention_impl")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return the operator package that the command writes."""
    out = tmp_path_factory.mktemp("opp") / "package"
    assert cli.main(["opp", "--soc", "ascend910", "--out", str(out)]) == 0
    return out


def install(package, *arguments, **variables) -> subprocess.CompletedProcess:
    """Return the end of install.sh, without the folder of operators that this process may know."""
    environment = {name: value for name, value in os.environ.items() if name != "ASCEND_OPP_PATH"}
    environment.update((name, str(value)) for name, value in variables.items())
    return subprocess.run(["bash", package / "install.sh", *arguments], env=environment, capture_output=True, text=True)


def _sections(text):
    """Return an .ini of the operator information library as {section: {key: value}}, without its header."""
    result = {}
    for line in text.splitlines()[1:]:
        name, value = line.split("=", 1)
        section, key = name.split(".")
        result.setdefault(section, {})[key] = value
    return result


def test_information_library(package):
    config = package / "vendors/flash_attention/op_impl/ai_core/tbe/config/ascend910/aic-ascend910-ops-info.json"
    library = json.loads(config.read_text())
    assert sorted(library) == sorted(operator.type for operator in OPERATORS)
    for operator in OPERATORS:
        ini = (package / f"op_info_cfg/ai_core/ascend910/{operator.name}.ini").read_text()
        assert ini.startswith(f"[{operator.type}]\n")
        information = library[operator.type]
        assert _sections(ini) == information
        assert information["opFile"]["value"] == information["opInterface"]["value"] == operator.name
        for side, arguments in (("input", operator.inputs), ("output", operator.outputs)):
            assert [information[f"{side}{i}"]["name"] for i in range(len(arguments))] == [a.name for a in arguments]
            assert f"{side}{len(arguments)}" not in information
        tensors = [section for name, section in information.items() if re.fullmatch(r"(in|out)put\d+", name)]
        for section in tensors:
            assert section["paramType"] == "required"
            assert section["format"] in ("ND", "FRACTAL_NZ")  # no choice is left to CANN
        assert information["attr"]["list"] == "problem" and information["attr_problem"]["paramType"] == "required"


def test_install_keeps_other_vendors(package, tmp_path):
    vendors = tmp_path / "opp/vendors"
    vendors.mkdir(parents=True)
    (vendors / "config.ini").write_text("load_priority=customize\n")
    folders = {"ASCEND_OPP_PATH": tmp_path / "opp"}
    for _ in range(2):
        done = install(package, **folders)
        assert done.returncode == 0
    assert (vendors / "config.ini").read_text() == "load_priority=flash_attention,customize\n"
    target = tmp_path / "elsewhere"
    done = install(package, f"--install-path={target}", **folders)
    assert done.returncode == 0 and f"export ASCEND_CUSTOM_OPP_PATH={target}/vendors/flash_attention:$" in done.stdout
    done = install(package, f"--install-path={tmp_path}/a folder", **folders)
    assert f"export ASCEND_CUSTOM_OPP_PATH={tmp_path}/a\\ folder/vendors/flash_attention:$" in done.stdout


@pytest.mark.parametrize(
    "version, wanted", [("2.5.0.dev1", False), ("2.6.0.dev1", True), ("2.7.1", True), ("2.8.0", False)]
)
def test_install_says_what_mindspore_will_miss(package, tmp_path, version, wanted):
    """MindSpore 2.6 and 2.7 look for opp_kernel. What the compiler lacks is named by its last line."""
    (tmp_path / f"mindspore-{version}.dist-info").mkdir()
    (tmp_path / f"mindspore-{version}.dist-info/METADATA").write_text(f"Name: mindspore\nVersion: {version}\n")
    (tmp_path / "te").mkdir()
    (tmp_path / "te/__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'decorator'\")\n")
    done = install(package, ASCEND_OPP_PATH=tmp_path / "opp", PYTHONPATH=tmp_path)
    assert done.returncode == 0 and "operators with: ModuleNotFoundError: No module named 'decorator'\n" in done.stderr
    assert (f"there is no {tmp_path / 'opp_kernel'}, which MindSpore {version} wants" in done.stderr) == wanted


@pytest.mark.parametrize(
    "others, left",
    [("", None), ("customize", "customize"), ("a,flash_attention,b", "a,b"), ("a,my_flash_attention", None)],
)
def test_uninstalled_it_leaves_nothing_but_other_vendors(package, tmp_path, others, left):
    """`left`: the vendors in config.ini afterwards; None: as before."""
    vendors = tmp_path / "opp/vendors"
    vendors.mkdir(parents=True)
    before = f"load_priority={others}\n"
    if others:
        (vendors / "config.ini").write_text(before)
    for arguments in ([], ["--uninstall"], ["--uninstall"]):
        assert install(package, *arguments, ASCEND_OPP_PATH=tmp_path / "opp").returncode == 0
    assert not (vendors / "flash_attention").exists()
    assert (vendors / "config.ini").exists() == bool(others)
    if others:
        assert (vendors / "config.ini").read_text() == (f"load_priority={left}\n" if left else before)


def test_it_does_not_remove_itself(package):
    done = install(package, f"--install-path={package}")
    assert done.returncode == 2 and "this package itself" in done.stderr
    assert (package / "vendors/flash_attention").exists()


@pytest.mark.parametrize("arguments, said", [([], "ASCEND_OPP_PATH is not set"), (["--path"], "unknown argument")])
def test_install_refuses(package, arguments, said):
    done = install(package, *arguments)
    assert done.returncode != 0 and said in done.stderr


# Stands in for CANN's header: what the macros register becomes a text.
REGISTRY = """
#include <string>
namespace ge {
using graphStatus = unsigned;
constexpr graphStatus GRAPH_SUCCESS = 0;
struct Operator {};
struct TensorType { static TensorType ALL() { return {}; } };
inline std::string told;
struct InferShapeFuncRegister {
  InferShapeFuncRegister(const char *type, graphStatus (*)(Operator &)) {
    told += std::string("infer ") + type + "\\n";
  }
};
struct Registered {
  explicit Registered(const char *type) { told += std::string("type ") + type + "\\n"; }
  Registered &Port(const char *side, const char *name) { told += std::string(side) + name + "\\n"; return *this; }
};
}  // namespace ge
#define REG_OP(x) static const ge::Registered x##_type = ge::Registered(#x)
#define INPUT(x, types) Port("input ", #x)
#define OUTPUT(x, types) Port("output ", #x)
#define REQUIRED_ATTR(x, type) Port("attribute ", #x)
#define OP_END_FACTORY_REG(x) Port("end ", #x);
extern "C" __attribute__((used)) inline const char *registered() { return ge::told.c_str(); }
"""


def test_prototypes_are_those_of_the_operators(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    words = ["opp", "--prototypes", "--out", str(tmp_path / "package")]
    assert cli.main(words) == 2
    assert f"there is no {tmp_path}/include/graph/operator_reg.h" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()
    (tmp_path / "include/graph").mkdir(parents=True)
    (tmp_path / "include/graph/operator_reg.h").write_text(REGISTRY)
    (tmp_path / "lib64").mkdir()
    graph = ["g++", "-shared", "-x", "c++", "/dev/null", "-o", tmp_path / "lib64/libgraph.so"]
    subprocess.run(graph, check=True)
    assert cli.main(words) == 0
    library = ctypes.CDLL(str(tmp_path / "package/vendors/flash_attention/op_proto/libop_proto.so"))
    library.registered.restype = ctypes.c_char_p
    wanted = []
    for operator in OPERATORS:
        wanted += [f"type {operator.type}", *(f"input {one.name}" for one in operator.inputs)]
        wanted += [*(f"output {one.name}" for one in operator.outputs), "attribute problem", f"end {operator.type}"]
        wanted.append(f"infer {operator.type}")
    assert library.registered().decode().splitlines() == wanted


PROBLEMS = {
    "plain": make_kernel_problem(1, 1, 32, 32, 16),
    "everything": make_kernel_problem(
        1,
        2,
        33,
        50,
        16,
        mask="per_key",
        bias="per_key",
        dropout_rate=99 / 65536,
        window_left=9,
        bias_grad=True,
        return_lse=True,
    ),
    "alibi": make_kernel_problem(1, 1, 33, 50, 16, mask="per_score", alibi=True),
    "bias": make_kernel_problem(1, 2, 33, 50, 16, kv_heads=1, bias="per_score", causal=True, bias_grad=True),
}


DECODING = make_kernel_problem(1, 2, 1, 64, 32, kv_heads=1, cores=2, pages=(3, 16))
ENTRIES_OF = [(name, stage) for name in PROBLEMS for stage in STAGES] + [("decoding", stage) for stage in DECODE_STAGES]
PROBLEMS["decoding"] = DECODING


# CANN imports an entry in a process that has only the copy of flash_attention inside the package. It calls the entry as
# op_func(*inputs, *outputs, *attributes, kernel_name=..., impl_mode=...).
CALLS = """
import importlib, sys, numpy
sys.path[:0] = [EMULATOR, FOLDER]
import tikemu
tikemu.install(soc="Ascend910A")
for name, tensors, text, feed, results in CALLED:
    entry = getattr(importlib.import_module(name), name)
    entry(*tensors, text, kernel_name="compiled")
    from flash_attention.kernels.tik import signatures
    assert signatures.__file__.startswith(FOLDER), signatures.__file__
    kernel = entry(*tensors, text, kernel_name="compiled", impl_mode="high_precision")
    options = tikemu.Options(strict=True, progress=False)
    numpy.savez(results, **tikemu.run(kernel.tik, dict(numpy.load(feed)), timing=False, options=options).outputs)
    try:
        entry(None, *tensors[1:], text, kernel_name="compiled")
    except ValueError as error:
        print("refused:", results, error)
"""


@pytest.fixture(scope="module")
def called(package, tmp_path_factory):
    """Return the calls of entries by problem and stage: inputs, file of results, and if it refused a missing tensor.

    One process calls all entries; it has only the copy of flash_attention inside the package.
    """
    folder = tmp_path_factory.mktemp("entries")
    entries, found = [], {}
    for name, stage in ENTRIES_OF:
        operator, signature = signatures.arguments(stage, PROBLEMS[name])
        called = operator.fill(signature)
        feed = signature.feed(**{t.name: _array(t) for t in signature.inputs if t.constant is None})
        files = [str(folder / f"{name}-{stage}-{what}.npz") for what in ("feed", "results")]
        absent = {t.name: np.zeros(t.shape, t.dtype) for t in called.inputs if t.absent}
        np.savez(files[0], **feed, **absent)
        tensors = [
            {"shape": t.shape, "dtype": t.dtype, "format": t.format, "ori_shape": t.shape, "ori_format": "ND"}
            for t in (*called.inputs, *called.outputs)
        ]
        entries.append((operator.name, tensors, PROBLEMS[name].to_text(), *files))
        found[name, stage] = feed, files[1]
    values = {
        "CALLED": entries,
        "FOLDER": str(package / "vendors/flash_attention" / ENTRIES),
        "EMULATOR": str(Path(tikemu.__file__).resolve().parents[1]),
    }
    script = re.sub(r"\b[A-Z]{4,}\b", lambda name: repr(values[name.group()]), CALLS)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {key: (feed, results, f"refused: {results} " in done.stdout) for key, (feed, results) in found.items()}


@pytest.mark.parametrize(("name", "stage"), ENTRIES_OF)
def test_an_entry_works_without_the_python_package(tik, called, name, stage):
    """The entry's kernel gives the same bits as this process's kernel."""
    feed, file, refused = called[name, stage]
    assert refused
    kernel = build(stage, PROBLEMS[name], tik, "same", True)
    options = tikemu.Options(strict=True, progress=False)
    expected = tikemu.run(kernel.tik, feed, timing=False, options=options).outputs
    with np.load(file) as results:
        assert set(results) >= set(expected)
        for one, array in expected.items():
            np.testing.assert_array_equal(results[one], array)


def _array(tensor):
    """Return some numbers for an input. Masks and keep decisions are zeros and ones."""
    random = np.random.default_rng(len(tensor.name))
    if tensor.dtype == "uint8" or "mask" in tensor.name:
        return random.integers(0, 2, tensor.shape).astype(tensor.dtype)
    return random.standard_normal(tensor.shape).astype(tensor.dtype)


def test_unknown_chip_and_used_folder_are_refused(package, tmp_path, capsys):
    assert cli.main(["opp", "--soc", "ascend310p", "--out", str(tmp_path / "new")]) == 2
    assert "soc: got 'ascend310p', allowed are ascend910" in capsys.readouterr().err
    assert cli.main(["opp", "--out", str(package)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_command_counts_the_files(tmp_path, capsys):
    assert cli.main(["opp", "--out", str(tmp_path)]) == 0
    files = sum(path.is_file() for path in tmp_path.rglob("*"))
    assert f": {files} files\n" in capsys.readouterr().out
