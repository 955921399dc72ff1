"""Shared cases on the virtual card: card_cases.py MODE CASE... Prints name, verdict and largest error of each case.

PART/PARTS instead of the names stands for one part of all cases that the operators take.

A case is written as its id; a layout other than BNSD stands before the id, with a colon. Dropout is given by bits,
because the card draws its own bits if it gets a seed.
"""

import re
import sys
from dataclasses import replace

from flash_attention import reference
from flash_attention.backends import registry
from flash_attention.dropout import philox

from tests.train.flash_attention.st.support.card_program import on_the_card, report
from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case

# All in float16; MindSpore 2.0 has no masks in bfloat16.
KNOWN = {
    str(case): case
    for case in (replace(case, dtype="float16", slow=False) for case in case_list.CASES)
    if case.mask_dtype != "bfloat16"
}


def check(name):
    """Return the largest error of all results as a multiple of what is allowed."""
    layout, _, case = name.rpartition(":")
    case = KNOWN[case]
    keep = philox.keep_bits(case.call, cases.SEED) if case.dropout else None
    actual = run_case(case, "tik", layout or "BNSD", keep_bits=keep)
    cases.check(case, actual)
    errors = reference.compare(actual, *case.expected())
    return f"{max(error.max / error.allowed_max if error.allowed_max else error.max for error in errors):.3f}"


def chosen(words):
    """Return the names of cases. A part has every so many-th case that the operators take."""
    part = re.fullmatch(r"(\d+)/(\d+)", words[0])
    if part is None:
        return words
    taken = [name for name, case in KNOWN.items() if registry.refusal("tik", case.call) is None]
    return taken[int(part[1]) :: int(part[2])]


if __name__ == "__main__":
    on_the_card(sys.argv[1])
    report(chosen(sys.argv[2:]), check)
