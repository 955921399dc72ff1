"""Shared cases on the virtual card: card_cases.py MODE CASE... Prints name, verdict and largest error of each case.

A case is written as its id. Its dropout is given by bits: the card draws its own where a seed is given.
"""

import sys
import traceback
from dataclasses import replace

import mindspore as ms
from flash_attention import reference
from flash_attention.dropout import philox

from tests.train.flash_attention import case_list, cases
from tests.train.flash_attention.run import run_case


def measured(case):
    """Verdict and, as a multiple of what is allowed, the largest error of all results."""
    keep = philox.keep_bits(case.problem, cases.SEED) if case.dropout else None
    actual = run_case(case, "tik", keep_bits=keep)
    errors = reference.compare(actual, *case.expected())
    worst = max(error.max / error.allowed_max if error.allowed_max else error.max for error in errors)
    cases.check(case, actual)
    return "right", f"{worst:.3f}"


def main(mode, *names):
    """Runs the cases of these names, all in float16."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, device_target="Ascend")
    known = {str(case): case for case in (replace(case, dtype="float16") for case in case_list.CASES)}
    for name in names:
        try:
            verdict, detail = measured(known[name])
        except AssertionError as error:
            verdict, detail = "WRONG", " ".join(str(error).split())
        except Exception as error:
            traceback.print_exc()
            verdict, detail = "FAILED", " ".join(f"{type(error).__name__}: {error}".split())
        print(name, verdict, detail, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
