#!/usr/bin/env bash
# Sets up an environment, builds and installs the package, and trains a small GPT with FlashAttention and, for comparison,
# with composed attention. Options go to examples/compare_attention.py, e.g. ./quickstart.sh --steps 1000
# FLASH_ATTENTION_VENV: the virtual environment, reused between runs (default ~/.cache/flash-attention/venv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/environment.sh

prepare_environment examples/requirements.txt

echo "== build and install"
PYTHON="$VENV_PYTHON" bash train/build.sh
"$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall train/dist/flash_attention-*.whl

echo "== flash-attention info"
# In the environment's own folder: what runs is the installed package, not this checkout.
"$FLASH_ATTENTION_VENV/bin/flash-attention" info

echo "== train"
"$VENV_PYTHON" examples/compare_attention.py "$@"
