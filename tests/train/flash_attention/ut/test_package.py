"""The package as a whole: public names with types, what an import does, other copies on the path."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import get_args

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, __version__, cli, functional, varlen
from flash_attention.backends import registry
from flash_attention.call import AttentionRules, literals
from flash_attention.call.layout import CALL_LAYOUTS
from mindspore import Tensor, nn

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("name", ("flash_attention", "flash_attention.context_parallel"))
def test_the_stub_has_every_public_name_from_where_it_is(name: str) -> None:
    package = importlib.import_module(name)
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = {
        alias.asname: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert found == package._EXPORTS
    assert (Path(flash_attention.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "name", ("flash_attention", "flash_attention.context_parallel", "flash_attention.compat.flash_attn")
)
def test_public_signatures_name_every_argument(name: str) -> None:
    package = importlib.import_module(name)
    functions = [getattr(package, one) for one in package.__all__ if one not in ("__version__", "PeerError")]
    functions += [one.construct for one in functions if isinstance(one, type) and issubclass(one, nn.Cell)]
    signatures = {one.__qualname__: str(inspect.signature(one)) for one in functions}
    assert not [one for one, signature in signatures.items() if "*args" in signature or "**" in signature]


def test_types_of_words_are_what_is_allowed() -> None:
    assert get_args(literals.BackendName) == registry.backend_names()
    assert get_args(literals.LayoutName) == tuple(CALL_LAYOUTS)
    for alignment in get_args(literals.Alignment):
        AttentionRules(causal_alignment=alignment)


@pytest.mark.parametrize(
    ("function", "options"),
    [(functional.flash_attention, functional.DenseOptions), (varlen.flash_attention_varlen, varlen.PackedOptions)],
)
def test_overloads_have_the_options_of_the_function(function, options) -> None:
    named = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    types = {name: type_.__forward_arg__ for name, type_ in options.__annotations__.items()}
    assert types == {one.name: one.annotation for one in named if one.name != "return_lse"}


CALLS = """
from typing import Any
from flash_attention import FlashAttention, flash_attention, flash_attention_varlen
x: Any = None
reveal_type(flash_attention(x, x, x, causal=True))
reveal_type(flash_attention(x, x, x, return_lse=True))
reveal_type(flash_attention_varlen(x, x, x, (3,), (3,), return_lse=False))
reveal_type(flash_attention_varlen(x, x, x, (3,), (3,), return_lse=True, scale=1.0))
flash_attention(x, x, x, causal_alignment="bottom")
flash_attention(x, x, x, return_lse=True, is_causal=True)
FlashAttention(32, input_layout="NBSD")
flash_attention_varlen(x, x, x, (3,), (3,), backend="cuda")
reveal_type(FlashAttention)
reveal_type(FlashAttention(32).construct)
"""
#: Lines of CALLS with an error.
WRONG = [9, 10, 11, 12]


@pytest.mark.system
def test_type_checkers_know_the_results_and_refuse_wrong_words(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    options = "--config-file", ROOT / "mypy.ini", "--cache-dir", tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, tmp_path / "calls.py"], cwd=ROOT, capture_output=True, text=True
    )
    revealed = re.findall(r'Revealed type is "(tuple|Any)', done.stdout)
    assert revealed == ["Any", "tuple", "Any", "tuple"], done.stdout
    wrong = dict.fromkeys(re.findall(r":(\d+): error", done.stdout))
    assert list(map(int, wrong)) == WRONG, done.stdout


@pytest.mark.builds
def test_pyright_knows_the_results_and_the_layer(tmp_path: Path) -> None:
    """Check what mypy does not see: a decorator may lose the class of the layer.

    basedpyright is pyright with node in a wheel; pyright itself fetches node.
    """
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    python = tmp_path / "tools" / "bin" / "python"
    install = "install", "--quiet", "--disable-pip-version-check", "basedpyright==1.40.2"
    subprocess.run([python, "-m", "pip", *install], check=True)
    (tmp_path / "calls.py").write_text(CALLS)
    settings = {"extraPaths": [str(ROOT / "train")], "typeCheckingMode": "basic", "include": ["calls.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    options = "--outputjson", "--project", tmp_path, "--pythonpath", sys.executable
    done = subprocess.run([python, "-m", "basedpyright", *options], cwd=tmp_path, capture_output=True, text=True)
    said = json.loads(done.stdout)["generalDiagnostics"]
    revealed = [re.search(r' is "(.*)"', one["message"], re.DOTALL) for one in said if one["severity"] == "information"]
    *results, layer, construct = [one[1] for one in revealed if one]
    assert results == ["Tensor", "tuple[Tensor, Tensor]"] * 2
    assert layer == "type[FlashAttention]"
    assert construct.startswith("(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None")
    wrong = [one["range"]["start"]["line"] + 1 for one in said if one["severity"] == "error"]
    assert wrong == WRONG, done.stdout


def test_an_argument_by_the_name_of_another_library_is_python_s_error() -> None:
    query, layer = Tensor(np.ones((1, 2, 8, 16)), ms.float32), FlashAttention(16)
    for function in (flash_attention.flash_attention, layer):
        with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
            function(query, query, query, is_causal=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
        FlashAttention(16, is_causal=True)


def test_importing_the_package_imports_neither_mindspore_nor_numpy(run_python):
    code = (
        "import sys, flash_attention, flash_attention.context_parallel as parallel; assert flash_attention.__version__;"
        "assert 'FlashAttention' in dir(flash_attention) and 'GatherAttention' in dir(parallel);"
        "print('mindspore' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run_python("-c", code).split() == ["False", "False"]


def test_public_names_resolve_and_others_do_not():
    with pytest.raises(AttributeError, match="no attribute 'FlashAttentionn'"):
        _ = flash_attention.FlashAttentionn
    for name in flash_attention.__all__:
        assert getattr(flash_attention, name) is not None


IMPORTS = """
import importlib, pkgutil
import mindspore as ms

made = []

def watched(kind, function):
    def call(*arguments, **named):
        made.append(kind)
        return function(*arguments, **named)
    return call

for kind, owner, name in (
    ("Cell", ms.nn.Cell, "__init__"), ("Tensor", ms.Tensor, "__init__"), ("context", ms, "set_context"),
):
    setattr(owner, name, watched(kind, getattr(owner, name)))

import flash_attention

for module in pkgutil.walk_packages(flash_attention.__path__, "flash_attention."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # a client's library that is not installed
        assert not error.name.startswith(("flash_attention", "mindspore")), error
print("made:", made)
"""


@pytest.mark.system
def test_no_cell_tensor_or_context_at_import():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert "made: []" in done.stdout, done.stdout + done.stderr


TRAIN = Path(flash_attention.__file__).resolve().parents[1]


def package(folder: Path, version: str) -> None:
    """Write a package of our name that knows only its version."""
    (folder / "flash_attention").mkdir(parents=True)
    (folder / "flash_attention/__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")


def distribution(
    folder: Path, name: str, version: str, *, lists_files: bool = False, packages: str = "flash_attention"
) -> None:
    """Write metadata of an installed distribution that provides a package, of our name by default."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    if lists_files:
        (metadata / "RECORD").write_text("flash_attention/__init__.py,,\n", encoding="utf-8")
    else:
        (metadata / "top_level.txt").write_text(f"{packages}\n", encoding="utf-8")


def python(program: str, *folders: Path) -> subprocess.CompletedProcess:
    """Run a program with these folders behind this copy on the path, and no others."""
    program = f"import sys; sys.path[1:1] = {[str(TRAIN), *map(str, folders)]}; {program}"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    return done


def warned_with(*folders: Path) -> str:
    """Return the package's warnings when these folders follow this copy on the path."""
    said = (
        "from flash_attention import __version__, duplicate_installs as it; it.warn_of_duplicate_installs(__version__)"
    )
    return python(said, *folders).stderr


def same_version(folder: Path) -> None:
    """Write a copy of this version, with metadata."""
    package(folder, __version__)
    distribution(folder, "flash_attention", __version__)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda folder: None, ""),
        (same_version, ""),
        (lambda folder: distribution(folder, "numpy", "1.26.4", packages="numpy"), ""),
        (lambda folder: package(folder, "1.0.0"), "version 1.0.0 in {folder}/flash_attention"),
        *(
            (
                partial(distribution, name=name, version=version, lists_files=lists_files),
                f"distribution {name} {version}",
            )
            for name, version in (("flash-attention", "23.12.11"), ("somebody-s-attention", __version__))
            for lists_files in (False, True)
        ),
    ],
)
def test_strangers_on_the_path_are_named(write, said: str, tmp_path: Path) -> None:
    """Entries of the path that are no folders hide nothing."""
    folder = tmp_path / "readable"
    folder.mkdir()
    write(folder)
    (tmp_path / "archive.zip").touch()
    found = warned_with(*(tmp_path / name for name in ("x" * 300, "not_here", "archive.zip", "readable")))
    assert said.format(folder=folder) in found and bool(found) == bool(said)
    if said:
        assert (
            "RuntimeWarning" in found and f"imported is version {__version__} in {TRAIN / 'flash_attention'}" in found
        )
        assert str(folder) in found


def test_the_import_reads_no_metadata(tmp_path: Path) -> None:
    """The import also prints nothing. Metadata would take long: a path may have hundreds of distributions."""
    distribution(tmp_path, "flash-attention", "1.0.0")
    watch = "sys.addaudithook(lambda event, given: print(given[0]) if event == 'open' else None)"
    done = python(f"{watch}; import flash_attention", tmp_path)
    assert done.stderr == "" and "flash_attention" in done.stdout and "dist-info" not in done.stdout


def test_the_first_call_warns_and_later_ones_do_not(tmp_path: Path, monkeypatch) -> None:
    package(tmp_path, "1.0.0")
    monkeypatch.syspath_prepend(tmp_path)
    registry._warn_of_duplicate_installs.cache_clear()
    for length in (23, 29):  # shapes that no other test calls
        tensor = Tensor(np.zeros((1, 1, length, 8), np.float32))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            FlashAttention(8)(tensor, tensor, tensor)
        strangers = [warning for warning in said if "version 1.0.0 in" in str(warning.message)]
        assert len(strangers) == (length == 23)


def test_info_lists_every_copy(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    package(tmp_path, __version__)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["info"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line]
    assert line.split()[:4] == ["also", "on", "the", "path"] and f"version {__version__}" in line
