"""Write formats and dtypes of CANN's built-in operators, a line of JSON each: ``python registrations.py FILE``.

On a server MindSpore reads them from CANN's tables. MindSpore also has registrations of its own for most operators
(``mindspore/ops/_op_impl/tbe``), which are older than its use of the tables. This program writes MindSpore's own
registrations. It runs in a process of its own, because it imports MindSpore and changes it.
"""

import importlib
import json
import sys
from pathlib import Path

# Attributes that MindSpore's registrations ask for and its own fusions leave out: CANN's ClipByValue has none.
SUPERFLUOUS = {"ClipByValue": ("dst_type",)}


def in_cann(kernel: str) -> str:
    """Return CANN's name of the operator with this kernel: StridedSliceD for strided_slice_d."""
    return "".join(part[:1].upper() + part[1:] for part in kernel.split("_"))


def collect() -> list:
    """Return the registrations of all operators that importing MindSpore does not register."""
    import mindspore.ops._op_impl.tbe as package

    loaded = [module for name, module in sys.modules.items() if name.startswith(package.__name__ + ".")]
    values = [value for module in loaded for value in vars(module).values()]
    present = {value["op_name"] for value in values if isinstance(value, dict) and value.get("imply_type") == "TBE"}
    kept: dict = {}

    def keep(info):
        info = json.loads(info) if isinstance(info, str) else info
        superfluous = SUPERFLUOUS.get(info["op_name"], ())
        info["attr"] = [attribute for attribute in info["attr"] if attribute["name"] not in superfluous]
        constant = info["kernel"].endswith("_d")  # of the form that takes attributes in place of tensors
        for name in (info["op_name"], in_cann(info["kernel"]), *([info["op_name"] + "D"] if constant else [])):
            if name not in present:
                kept.setdefault(name, {**info, "op_name": name})
        return lambda function: function

    # The package has a function of this name too; the operators import from the module.
    vars(sys.modules["mindspore.ops.op_info_register"])["op_info_register"] = keep
    names = {path.stem for path in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    # Names of registrations for changing shapes end with ds. They come second: an operator's first registration counts.
    for name in sorted(names, key=lambda name: (name.endswith("_ds"), name)):
        if f"{package.__name__}.{name}" not in sys.modules:
            importlib.import_module(f"{package.__name__}.{name}")
    return list(kept.values())


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        file.writelines(json.dumps(info) + "\n" for info in collect())
