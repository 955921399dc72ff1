"""Context parallelism on several cards: card_gather.py NAME... Prints card, name, verdict and detail.

Names are cases of parallel_gather.py, here with the operators in TIK.
"""

import sys

from flash_attention.context_parallel import initialize
from parallel_gather import run

from tests.train.flash_attention.st.support.card_program import on_the_card, report


def check(name):
    """Check a case."""
    wrong = run(name, *PLACE, dtype="float16", backend="tik")
    assert not wrong, "; ".join(wrong)


if __name__ == "__main__":
    on_the_card("graph")
    PLACE = initialize()
    report(sys.argv[1:], check, PLACE[0])
