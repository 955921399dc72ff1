"""Compare chip and instructions with the table that MindSpore's AKG has."""

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tikemu import soc
from tikemu.isa import convert, registry

#: Asks the library's global functions by ctypes, in a process of its own: it brings a TVM along.
PROGRAM = textwrap.dedent("""
    import ctypes, json, sys

    path, asked = sys.argv[1], json.loads(sys.argv[2])
    library = ctypes.CDLL(path)

    class Value(ctypes.Union):
        _fields_ = [("integer", ctypes.c_int64), ("text", ctypes.c_char_p)]

    TEXT = 11

    def call(name, *arguments):
        function = ctypes.c_void_p()
        assert library.TVMFuncGetGlobal(name.encode(), ctypes.byref(function)) == 0 and function.value, name
        values = (Value * len(arguments))(*(Value(text=argument.encode()) for argument in arguments))
        codes = (ctypes.c_int * len(arguments))(*[TEXT] * len(arguments))
        result, code = Value(), ctypes.c_int()
        status = library.TVMFuncCall(
            function, values, codes, len(arguments), ctypes.byref(result), ctypes.byref(code)
        )
        assert status == 0, name
        return result.text.decode() if code.value == TEXT else result.integer

    print(json.dumps([call(f"cce.product_conf_{what}", "1.6", key) for what, key in asked]))
""")

#: Element-wise instructions and reductions that both have; AKG's name if it differs.
SHARED = {
    **{name: name for name in ("vabs", "vrelu", "vexp", "vrec", "vsqrt", "vnot", "vadds", "vmuls")},
    **{name: name for name in ("vadd", "vsub", "vmul", "vmax", "vmin", "vand", "vor", "vaxpy", "vmla", "vmadd")},
    **{name: name for name in ("vcadd", "vcmax", "vcmin", "vcgadd", "vcgmax", "vcgmin")},
    "vln": "vlog",
}
_MODES = {"round": "r", "away-zero": "a", "floor": "f", "ceil": "c", "to-zero": "z", "odd": "o", "": ""}
_TYPES = {"float32": "f32", "float16": "f16", "int32": "s32", "int8": "s8", "uint8": "u8"}


@pytest.fixture(scope="module")
def ask():
    """Return a function that asks AKG, if MindSpore brings its library for Ascend."""
    found = importlib.util.find_spec("mindspore")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    libraries = [path for folder in folders for path in Path(folder).glob("lib/plugin/ascend*/libakg.so")]
    if not libraries:
        pytest.skip("no MindSpore with AKG for Ascend is installed")

    def asked(*questions):
        command = [sys.executable, "-c", PROGRAM, str(libraries[0]), json.dumps(questions)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return asked


def test_memories_and_cores(ask):
    """The L2 buffer is the one difference: AKG says 64 MiB, the platform file 32 (D2c)."""
    chip = soc.ASCEND_910A
    sizes = {"Unified": chip.ub_size, "L1": chip.l1_size, "L0A": chip.l0a_size, "L0B": chip.l0b_size}
    sizes |= {"L0C": chip.l0c_size, "L2": 2 * chip.l2_size}
    answers = ask(("core", "Core_num"), *(("buffer", f"{name}_Buffer") for name in sizes))
    assert answers == [chip.core_count, *sizes.values()]


def test_dtypes(ask):
    answers = ask(*(("intrinsic", f"Intrinsic_{name}") for name in SHARED.values()))
    ours = {name: {one for one in registry.named(name).dtypes if isinstance(one, str)} for name in SHARED}
    assert {name: set(answer.split(",")) for name, answer in zip(SHARED, answers)} == ours


def test_conversions(ask):
    """All pairs and rounding modes of AKG are ours; to 8 bits the explicit modes are in its table only (D15a)."""

    def names(table):
        return {
            "deq" if (dst, src) == ("float16", "int32") else f"{_TYPES[src]}2{_TYPES[dst]}{_MODES[mode]}"
            for (dst, src), modes in table.items()
            for mode in modes
            if mode in _MODES
        }

    (answer,) = ask(("intrinsic", "Intrinsic_vconv"))
    assert set(answer.split(",")) == names(convert.PAIRS) | names(convert.UNDOCUMENTED)
