"""Shares of attention and conversions in the time of a report of the virtual card: card_shares.py DIR CALLS

CALLS is the number of calls in the program, which differ only in their data; the last call counts. Times are the
report's estimates.
"""

import collections
import sys
from pathlib import Path

from tests.train.flash_attention.st.support.card_kernels import TRANSPOSES, launched

OURS = "flash_attention"


def group(row):
    """Return the group of a launch. Composed attention is not told from the rest."""
    kind = row["OP Type"]
    if kind.startswith(OURS):
        return "attention"
    if kind == "TransData" or kind in TRANSPOSES:
        return "conversions"
    return "matrix products" if "MatMul" in kind else "others"


def main(folder, calls):
    """Print launches, microseconds and share of each group, and the largest kinds."""
    rows = launched(Path(folder))
    rows = rows[-(len(rows) // calls) :]
    for key in (group, lambda row: row["OP Type"]):
        times, counts = collections.Counter(), collections.Counter()
        for row in rows:
            times[key(row)] += float(row["Task Duration(us)"])
            counts[key(row)] += 1
        total = sum(times.values())
        print(f"{'all':40} {len(rows):5} launches {total:10.1f} us")
        for name, time in times.most_common(12):
            print(f"{name:40} {counts[name]:5} launches {time:10.1f} us {time / total:6.1%}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
