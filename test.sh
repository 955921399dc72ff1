#!/usr/bin/env bash
# Sets up the test environment, builds the native library, checks style and types, and runs the tests.
#   ./test.sh                     the tests of every day
#   ./test.sh --all               every test but those of the virtual Ascend card (hours)
#   ./test.sh --card              those of the virtual Ascend card; with --all the slow ones too
#   ./test.sh -m builds           one kind alone: system, distributed, builds, versions, clients, arm, slow (pytest.ini)
#   ./test.sh --fresh             first removes what is compiled and cached, as in a new clone, but for the environment;
#                                 then any of the others
#   ./test.sh emulator/tests -k vadd   anything else goes to pytest; tests that are named run without style and types
#   ./test.sh --card --mindspore 2.6   MindSpore 2.5 and 2.6 on the virtual card; with --all all of it
#   ./test.sh --mindspore 2.0.0   ut and the shared cases on another MindSpore, without style and types (2.0.0 or 2.7.1)
# FLASH_ATTENTION_VENV: the virtual environment, reused between runs (default ~/.cache/flash-attention/venv).
# FLASH_ATTENTION_TEST_PROCESSES: pytest processes (default 2; 0 runs in one process, as -s and --pdb want).
set -euo pipefail
case "${PYTHON:-}" in */*) PYTHON="$(realpath -ms "$PYTHON")" ;; esac # of the folder it was named in
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/environment.sh
if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
    usage test.sh
fi

# Starts a part of the run, and says how long it has taken so far.
part() { echo "== $1 (${SECONDS} s)"; }

if [ "${1:-} ${2:-}" = "--card --mindspore" ]; then  # 2.5 and 2.6, in environments that the tests keep
    shift 3
    set -- --card -k "2.6.0 or 2.5.0" tests/train/flash_attention/st/test_card_{cases,commands,parallel}.py "$@"
fi

library=train/flash_attention/backends/cpu/lib/libflash_attention_cpu.so
if [ "${1:-}" = "--fresh" ]; then
    shift
    caches="${XDG_CACHE_HOME:-$HOME/.cache}"
    find . -name __pycache__ -prune -exec rm -rf {} +
    rm -rf "$library" .mypy_cache .ruff_cache "$caches"/tikemu/*.so "$caches/flash-attention/entries"
fi

mindspore=""
if [ "${1:-}" = "--mindspore" ]; then
    mindspore="${2:?--mindspore: name a release, 2.0.0 or 2.7.1}"
    shift 2
    FLASH_ATTENTION_VENV="$(dirname "$FLASH_ATTENTION_VENV")/tests-mindspore-$mindspore"
    mkdir -p "$FLASH_ATTENTION_VENV.requirements"
    requirements="$FLASH_ATTENTION_VENV.requirements/requirements.txt"
    # What checks style and types and builds the documentation stays out; the last numpy and Pillow that 2.0 works with.
    grep -vE '^(#|mindspore|ruff|mypy|mkdocs|jieba|playwright|matplotlib)' tests/requirements.txt >"$requirements"
    printf '%s\n' "mindspore==$mindspore" 'pillow<10' >>"$requirements"
    prepare_environment "$requirements" "$(python_versions "$mindspore")"
else
    prepare_environment tests/requirements.txt
fi
export PYTHONPATH="$PWD/train:$PWD/emulator:$PWD/emulator/virtual_ascend"

part "native library"
if [ ! -f "$library" ] || [ -n "$(find train/flash_attention/backends/cpu -newer "$library" \
    \( -name '*.cpp' -o -name '*.h' -o -name build.py \))" ]; then
    "$VENV_PYTHON" -m flash_attention.backends.cpu.build
else
    echo "up to date"
fi

"$VENV_PYTHON" -m tikemu.build_native

status=0
# Whoever names tests wants their answer, not eleven seconds of style and types before it.
case " $* " in *" tests/"* | *" ./tests/"* | *" emulator/"*) named=1 ;; *) named="" ;; esac
if [ -n "$mindspore" ]; then
    cases="tests/train/flash_attention/ut tests/train/flash_attention/st/test_emulator_cases.py
        tests/train/flash_attention/st/test_mindspore_faults.py"
    # shellcheck disable=SC2086  # one argument for each path
    [ -n "$named" ] || set -- -m "system or not system" $cases "$@"
elif [ -z "$named" ]; then
    part style
    "$VENV_PYTHON" -m ruff check --output-format concise . || status=$?
    "$VENV_PYTHON" -m ruff format --check --quiet . || { status=$?; echo "format: run $VENV_PYTHON -m ruff format ." >&2; }

    part types
    "$VENV_PYTHON" -m mypy || status=$?
fi

# A MindSpore that the index does not have any more is said.
case " $* " in *" --card "*) set -- -rs "$@" ;; esac

part tests
# Two processes share the cores: one OpenMP thread each, unless a test asks for more.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# MindSpore's compiler makes millions of small objects, which stay in glibc's quick lists and its memory in the process:
# graphs compile in a tenth to a fifth less time.
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.tcache_count=60000:glibc.malloc.trim_threshold=268435456:\
glibc.malloc.top_pad=67108864}"
# Both collect the same tests in the same order.
export PYTHONHASHSEED=0
# Both compile some 700 modules, and tests start some 60 programs: what is compiled is kept, beside the sources. With a
# folder for all of it Python would not find that of the environment, and compile MindSpore again.
unset PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX
"$VENV_PYTHON" -m pytest -q --durations=10 --durations-min=5 \
    -n "${FLASH_ATTENTION_TEST_PROCESSES:-2}" --dist worksteal "$@" || status=$?
part end
exit "$status"
