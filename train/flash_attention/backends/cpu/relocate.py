"""Make a MindIR file use the native kernel of this installation: python -m flash_attention.backends.cpu.relocate FILE

MindSpore stores the absolute path of a Custom operation's library in the file (`mindspore.export`) and looks nowhere
else: on another machine, or after the package has moved, `mindspore.load` ends in "couldn't find the AOT binary file".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flash_attention.backends.cpu.build import LIBRARY
from flash_attention.files import write_whole


def relocate(path: Path, library: Path = LIBRARY) -> None:
    """Replace the path of the native library in a MindIR file by `library`.

    Raises:
        FileNotFoundError: there is no such library.
        OSError: the file cannot be read or written. It then is as it was.
        ValueError: the file is damaged, or no operation in it uses the native kernel.
    """
    from mindspore.train.mind_ir_pb2 import ModelProto

    if not library.exists():
        raise FileNotFoundError(f"library: got {library}, which does not exist")
    model, data = ModelProto(), path.read_bytes()
    try:
        model.ParseFromString(data)
    except Exception as error:  # of protobuf, whose types have no stubs
        raise ValueError(f"{path}: got no whole MindIR file: {error}") from None
    nodes = [node for graph in (model.graph, *model.functions) for node in graph.node]
    if not sum(_relocate(node, library) for node in (*nodes, *model.primitives)):
        raise ValueError(f"{path}: got a model without operations of the native kernel ({LIBRARY.name})")
    write_whole(path, model.SerializeToString())


def _relocate(node, library: Path) -> bool:
    """Rename the library in the attributes of an operation: `path:function`, some with words before the path."""
    found = False
    for attribute in node.attribute:
        text = attribute.s.decode(errors="replace")
        before, name, function = text.partition(f"{LIBRARY.name}:")
        if name and "/" in before:
            attribute.s = f"{before[: before.index('/')]}{library}:{function}".encode()
            found = True
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a MindIR file use the native kernel of this installation.")
    parser.add_argument("file", type=Path, help="what mindspore.export wrote")
    arguments = parser.parse_args()
    try:
        relocate(arguments.file)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.file} uses {LIBRARY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
