"""Check how MindSpore's compiler reaches the operators' entries: card_entries.py TRAIN file|copied CASE...

This process alone has TRAIN, the folder of the package, on its path; who compiles finds the package by what stands in
the entries. "copied": as where MindSpore cannot import an entry from its file, and takes a copy of the function.
Prints what card_cases.py does; the detail is how many functions were copied.
"""

import sys

sys.path.insert(0, sys.argv[1])

from mindspore import ops

from tests.train.flash_attention.st.support.card_cases import check
from tests.train.flash_attention.st.support.card_program import on_the_card, report


class Everything(list):
    """Paths of which every one is among those that cannot be imported."""

    def __contains__(self, path):
        return True


def copies(case):
    """Check a case and return the number of functions that MindSpore has copied."""
    check(case)
    return str(len(ops.Custom.op_path_in_cache))


if __name__ == "__main__":
    if sys.argv[2] == "copied":
        ops.Custom.tbe_path_failed = Everything()
    on_the_card("graph")
    report(sys.argv[3:], copies)
