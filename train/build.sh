#!/usr/bin/env bash
# Builds train/dist/flash_attention-<version>-py3-none-<platform>.whl with the compiled CPU kernel inside.
# Needs g++ and a Python 3.9+ with pip; PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3}"

# Files of earlier builds would travel into the wheel.
rm -rf build ./*.egg-info dist/flash_attention-*.whl
options=(--no-deps --wheel-dir dist)
# With setuptools and wheel at hand nothing has to be downloaded.
if "$python" -c 'import setuptools, wheel' 2>/dev/null; then options+=(--no-build-isolation); fi
"$python" -m pip wheel "${options[@]}" .
rm -rf build ./*.egg-info

wheel="$(echo dist/flash_attention-*.whl)"
files="$("$python" -m zipfile -l "$wheel")"
if [[ "$files" != *backends/cpu/lib/*.so* ]]; then
    echo "error: no compiled kernel in train/$wheel" >&2
    exit 1
fi
echo "built train/$wheel"
