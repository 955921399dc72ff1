"""Memory that new shapes keep in PYNATIVE: most of it is what MindSpore keeps of a Custom operator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

#: Of two bare operators and attention: KB of malloc for each new shape, all caches of this package full.
PROGRAM = """
import ctypes, gc, sys
import mindspore as ms
import numpy as np
from flash_attention import flash_attention
from mindspore import Tensor, ops

class Used(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b blocks mapped c d used e f".split()]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Used

def kilobytes():
    gc.collect()
    now = libc.mallinfo2()
    return (now.used + now.mapped) / 1024

def attention(length):
    x = Tensor(np.ones((1, 1, length, 8), np.float32))
    flash_attention(x, x, x, backend="cpu").asnumpy()

def bare(length):
    operator = ops.Custom(sys.argv[1] + ":nothing", lambda *shapes: shapes[0], lambda *dtypes: dtypes[0], "aot")
    operator.add_prim_attr("number", length)
    operator(*[Tensor(np.ones((1, 1, length, 8), np.float32)) for _ in range(14)]).asnumpy()

def each(call, lengths):
    before = kilobytes()
    for length in lengths:
        call(length)
    return (kilobytes() - before) / len(lengths)

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU", pynative_synchronize=True)
each(attention, range(1, 600)), each(bare, range(1, 40))
print(each(bare, range(1000, 1150)), each(attention, range(1000, 1150)))
"""


@pytest.mark.slow
def test_a_new_shape_keeps_little_beyond_what_mindspore_keeps(tmp_path: Path, run_python) -> None:
    library = tmp_path / "nothing.so"
    source = "int nothing(int, void **, int *, long **, const char **, void *, void *) { return 0; }"
    compiler = ["g++", "-xc++", "-shared", "-fPIC", "-o", library, "-"]
    subprocess.run(compiler, input=f'extern "C" {source}', text=True, check=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    bare, attention = map(float, run_python(str(tmp_path / "program.py"), str(library)).split())
    assert attention - bare <= 16, (bare, attention)
