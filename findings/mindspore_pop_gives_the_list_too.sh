#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU, in a graph: list.pop inside an expression gives a tuple of the rest and the element.
# Expected: the element, as for a = x.pop(0), which is right; the documentation says that pop returns the element.
# Seen: x.append(x.pop(0)), which rotates a list, makes [1, 2, 3] into [1, 2, 3, ([2, 3], 1)]; return x.pop() returns
# ([1, 2], 3). Nor do x.sort() and x.remove(2) change the list, though neither is refused. 2.0.0 does the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms


def rotate():
    x = [1, 2, 3]
    x.append(x.pop(0))
    return x


def last():
    x = [1, 2, 3]
    return x.pop()


def assigned():
    x = [1, 2, 3]
    element = x.pop(0)
    x.append(element)
    return x


def in_order():
    x = [3, 1, 2]
    x.sort()
    return x


def without_two():
    x = [3, 1, 2]
    x.remove(2)
    return x


print("MindSpore", ms.__version__)
seen = {}
for function in (rotate, last, assigned, in_order, without_two):
    seen[function] = ms.jit(function)()
    print(f"{function.__name__}: in a graph {seen[function]}, in Python {function()}")
assert seen[assigned] == [2, 3, 1]
assert seen[rotate] == [1, 2, 3, ([2, 3], 1)] and seen[last] == ([1, 2], 3), "pop gives the element now"
assert seen[in_order] == seen[without_two] == [3, 1, 2], "sort and remove work now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
