"""Check how MindSpore's compiler reaches the operators' entries: card_entries.py TRAIN file|copied CASE...

Only this process has TRAIN, the folder of the package, on its path. The processes that compile find the package by the
path in the entries. "copied" makes MindSpore take a copy of each function, as it does if it cannot import an entry from
its file. The output has the form of card_cases.py; the detail is the number of copied functions.
"""

import sys

sys.path.insert(0, sys.argv[1])

from mindspore import ops

from tests.train.flash_attention.st.support.card_cases import check
from tests.train.flash_attention.st.support.card_program import on_the_card, report


class Everything(list):
    """A list that claims to contain every path: none can be imported."""

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
