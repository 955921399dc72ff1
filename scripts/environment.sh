# Sourced by the scripts: finds a Python, and keeps one virtual environment outside the checkout.
# shellcheck shell=bash

# usage SCRIPT [OPTION]: prints the comment at the head of a script and ends; with an unknown option as an error.
usage() {
    if [ $# -gt 1 ]; then
        exec >&2
        echo "error: unknown option $2"
    fi
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1"
    exit $((2 * ($# > 1)))
}

FLASH_ATTENTION_VENV="${FLASH_ATTENTION_VENV:-${XDG_CACHE_HOME:-${HOME:?set it, or FLASH_ATTENTION_VENV}/.cache}/flash-attention/venv}"

# find_python [VERSIONS]: prints a Python of one of these versions, the first that there is; of those for which MindSpore
# 2.10 has wheels, 3.11 first, when none are given. $PYTHON, when set, is the only candidate.
find_python() {
    local versions="${1:-3.11 3.10 3.12}" version candidate candidates=()
    for version in $versions; do
        candidates+=("python$version" "${HOME:-}/.pyenv/versions/$version".*/bin/python)
    done
    candidates+=(python3 python)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        # shellcheck disable=SC2086  # one argument for each version
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' \
            $versions >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python ${versions// /, } with the venv module found (tried ${PYTHON:-PATH and ~/.pyenv})." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python${versions%% *} $0" >&2
    return 1
}

# python_versions MINDSPORE: prints those Python versions for which the release has wheels and the tests run.
python_versions() {
    case "$1" in
        2.0.*) echo "3.9" ;;
        2.7.[01]) echo "3.11 3.10" ;;
        *) echo "3.11 3.10 3.12" ;;
    esac
}

# prepare_environment REQUIREMENTS [VERSIONS]: creates the environment if needed, with a Python of these versions, and
# installs the requirements file into it. A stamp holds what was installed, so that the next call takes no time. Sets VENV_PYTHON.
prepare_environment() {
    local requirements="$1" stamp wanted interpreter
    VENV_PYTHON="$FLASH_ATTENTION_VENV/bin/python"
    stamp="$FLASH_ATTENTION_VENV/.installed-for-$(basename "$(dirname "$requirements")")"
    mkdir -p "$(dirname "$FLASH_ATTENTION_VENV")"
    exec 9>"$FLASH_ATTENTION_VENV.lock"
    if command -v flock >/dev/null; then flock 9; fi
    if ! "$VENV_PYTHON" -c '' 2>/dev/null; then
        interpreter="$(find_python "${2:-}")"
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
