"""Run a sample of the shared cases on backend cpu, in both modes, without pytest.

    PYTHONPATH=train:. python tests/train/flash_attention/st/support/sampled_cases.py ONE_IN

PYNATIVE runs one case in ONE_IN. Graphs run one case in GRAPHS * ONE_IN, since each is compiled.
"""

import sys

import mindspore as ms

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case

GRAPHS = 4
MODES = {"pynative": (ms.PYNATIVE_MODE, 1), "graph": (ms.GRAPH_MODE, GRAPHS)}


def main() -> None:
    """Check every chosen case against the float64 truth, and say how many there were."""
    one_in = int(sys.argv[1])
    for mode, (number, factor) in MODES.items():
        ms.set_context(mode=number)
        chosen = [case for case in case_list.CASES if not case.slow and case_list.sample(case, one_in * factor)]
        for case in chosen:
            cases.check(case, run_case(case, "cpu"))
            print(f"ok {mode} {case}", flush=True)
        print(f"{mode}: {len(chosen)} cases", flush=True)


if __name__ == "__main__":
    main()
