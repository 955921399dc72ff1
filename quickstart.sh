#!/usr/bin/env bash
# Sets up an environment, builds and installs the package and tikemu, and trains a small GPT with FlashAttention and, for
# comparison, with composed attention. Options go to examples/compare_attention.py, e.g. ./quickstart.sh --steps 1000
# FLASH_ATTENTION_VENV: the virtual environment, reused between runs (default ~/.cache/flash-attention/venv).
set -euo pipefail
case "${PYTHON:-}" in */*) PYTHON="$(realpath -ms "$PYTHON")" ;; esac # of the folder it was named in
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/environment.sh
case " $* " in *" -h "* | *" --help "*) usage quickstart.sh ;; esac

prepare_environment examples/requirements.txt

echo "== build and install"
PYTHON="$VENV_PYTHON" bash train/build.sh
rm -rf emulator/build emulator/*.egg-info # files of earlier builds would travel into the wheel
TIKEMU_HELPER="$(uname -m)" "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    --no-build-isolation train/dist/flash_attention-*.whl ./emulator
rm -rf emulator/build emulator/*.egg-info

echo "== flash-attention info"
# In the environment's own folder: what runs is the installed package, not this checkout.
"$FLASH_ATTENTION_VENV/bin/flash-attention" info

echo "== train"
"$VENV_PYTHON" examples/compare_attention.py "$@"
