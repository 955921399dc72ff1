"""Context parallelism on several cards: card_gather.py NAME... Prints card, name, "right" or what is wrong.

Names are cases of parallel_gather.py, here with the operators in TIK.
"""

import sys
import traceback

import mindspore as ms
from flash_attention.context_parallel import initialize
from parallel_gather import run


def check(name, rank, world):
    """Return the errors of a case."""
    return "; ".join(run(name, rank, world, dtype="float16", backend="tik"))


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
    place = initialize()
    for name in sys.argv[1:]:
        try:
            found = check(name, *place) or "right"
        except Exception as error:
            traceback.print_exc()
            found = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stdout.write(f"{place[0]}\t{name}\t{found}\n")
        sys.stdout.flush()
