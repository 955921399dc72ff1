"""The import makes no Cell or Tensor: in MindSpore 2.5 a device must be chosen before the first Cell."""

import subprocess
import sys

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


def test_no_cell_tensor_or_context_at_import():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert "made: []" in done.stdout, done.stdout + done.stderr
