# Sourced by test.sh and quickstart.sh: finds a Python, and keeps one virtual environment outside the checkout.
# shellcheck shell=bash

FLASH_ATTENTION_VENV="${FLASH_ATTENTION_VENV:-${XDG_CACHE_HOME:-${HOME:?set it, or FLASH_ATTENTION_VENV}/.cache}/flash-attention/venv}"

# Prints a Python 3.10-3.12 (what MindSpore 2.10 has wheels for), 3.11 first. $PYTHON, when set, is the only candidate.
find_python() {
    local candidate candidates=(python3.11 python3.10 python3.12 python3 python
        "${HOME:-}"/.pyenv/versions/3.11.*/bin/python "${HOME:-}"/.pyenv/versions/3.1[02].*/bin/python)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python 3.10, 3.11 or 3.12 with the venv module found (tried ${PYTHON:-python3.11, python3.10, python3.12, python3, python and ~/.pyenv})." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3.11 $0" >&2
    return 1
}

# prepare_environment REQUIREMENTS: creates the environment if needed and installs the requirements file into it.
# A stamp holds what was installed, so that the next call takes no time. Sets VENV_PYTHON.
prepare_environment() {
    local requirements="$1" stamp wanted interpreter
    VENV_PYTHON="$FLASH_ATTENTION_VENV/bin/python"
    stamp="$FLASH_ATTENTION_VENV/.installed-for-$(basename "$(dirname "$requirements")")"
    mkdir -p "$(dirname "$FLASH_ATTENTION_VENV")"
    exec 9>"$FLASH_ATTENTION_VENV.lock"
    if command -v flock >/dev/null; then flock 9; fi
    if ! "$VENV_PYTHON" -c '' 2>/dev/null; then
        interpreter="$(find_python)"
        echo "environment: creating $FLASH_ATTENTION_VENV with $interpreter"
        "$interpreter" -m venv --clear "$FLASH_ATTENTION_VENV"
    fi
    wanted="$(cat "$requirements")"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "environment: installing $(basename "$(dirname "$requirements")")/$(basename "$requirements") (MindSpore is about 800 MB) into $FLASH_ATTENTION_VENV"
        "$VENV_PYTHON" -m pip install --disable-pip-version-check -r "$requirements"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    exec 9>&-
}
