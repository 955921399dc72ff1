"""The operator package (OPP) for CANN: what MindSpore from 2.3 on needs to find the TIK operators by their types.

Layout and file formats: CANN's documentation on custom operator development, chapters operator information library and
deployment of custom operators. Files and functions have the snake-case name that CANN derives from a type.
MindSpore's Python functions have the type as their name, and MindSpore registers prototypes of such types itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import flash_attention
from flash_attention.backends.tik import entries, prototype_library
from flash_attention.backends.tik.environment import TBE_PACKAGES, VENDOR
from flash_attention.kernels.tik.signatures import OPERATORS, Operator

SOCS = ("ascend910",)
# Modules that the kernels need, copied beside the entries: operators are compiled in processes without this package.
_BUNDLED = ("call", "kernels")
_NOT_BUNDLED = ("__pycache__",)


def write(soc: str, out: Path, prototypes: bool = False) -> Path:
    """Write the package.

    Args:
        soc: lower-case name of the chip.
        out: a folder that does not exist, or is empty.
        prototypes: also compile a library of prototypes.

    Returns:
        The vendor folder inside `out`, as it is to be installed.

    Raises:
        ValueError: soc is none of SOCS, or the folder is not empty.
        RuntimeError: the prototypes cannot be compiled. Nothing is left in the folder.
        OSError: the folder cannot be written. Nothing is left in it.
    """
    if soc not in SOCS:
        raise ValueError(f"soc: got {soc!r}, allowed are {', '.join(SOCS)}: the operators are written for this chip")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"out: {out} is not empty, allowed is a new or empty folder")
    existed = out.exists()
    try:
        return _write(soc, out, prototypes)
    except BaseException as error:
        if out.is_dir():
            shutil.rmtree(out, ignore_errors=True)
            if existed:
                out.mkdir(exist_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or error.args[0][-1][-1]  # of a copied folder: a list of files
            raise OSError(f"out: {out} cannot be written: {reason}") from error
        raise


def _write(soc: str, out: Path, prototypes: bool) -> Path:
    """Write the package into an empty folder; return the vendor folder."""
    vendor = out / "vendors" / VENDOR
    if prototypes:
        prototype_library.write(vendor)
    tbe = vendor / "op_impl" / "ai_core" / "tbe"
    sources = tbe / f"{VENDOR}_impl"
    _bundle(sources / "bundle")
    for operator in OPERATORS:
        _text(sources / f"{operator.name}.py", entry_source(operator))
        _text(out / "op_info_cfg" / "ai_core" / soc / f"{operator.name}.ini", information_ini(operator))
    information = {operator.type: _information(operator) for operator in OPERATORS}
    _text(tbe / "config" / soc / f"aic-{soc}-ops-info.json", json.dumps(information, indent=2) + "\n")
    _text(out / "install.sh", _INSTALL.replace("VENDOR", VENDOR).replace("PACKAGES", TBE_PACKAGES))
    (out / "install.sh").chmod(0o755)
    _text(out / "README.md", _README.replace("VENDOR", VENDOR).replace("VERSION", flash_attention.__version__))
    return vendor


def information_ini(operator: Operator) -> str:
    """Return the operator's section of the operator information library, as source."""
    lines = [f"[{operator.type}]"]
    for section, fields in _information(operator).items():
        lines += [f"{section}.{key}={value}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _information(operator: Operator) -> dict[str, dict[str, str]]:
    result = {}
    for side, arguments in (("input", operator.inputs), ("output", operator.outputs)):
        for index, argument in enumerate(arguments):
            result[f"{side}{index}"] = {
                "name": argument.name,
                "paramType": "required",
                "dtype": argument.dtype,
                "format": argument.format,
            }
    result["attr"] = {"list": "problem"}
    result["attr_problem"] = {"type": "str", "paramType": "required", "value": "all"}
    result["opFile"] = {"value": operator.name}
    result["opInterface"] = {"value": operator.name}
    return result


def entry_source(operator: Operator) -> str:
    """Return the source of an operator's entry that CANN calls."""
    bundle = 'os.path.join(os.path.dirname(os.path.abspath(__file__)), "bundle")'
    return entries.source(operator, operator.name, bundle, "0", "problem")


def _bundle(folder: Path) -> None:
    source = Path(flash_attention.__file__).parent
    target = folder / "flash_attention"
    for name in _BUNDLED:
        shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns(*_NOT_BUNDLED))
    _text(
        target / "__init__.py",
        f'"""What the operators of flash_attention need of it."""\n\n__version__ = "{flash_attention.__version__}"\n',
    )


def _text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


_INSTALL = """#!/usr/bin/env bash
# Installs the operator package:  bash install.sh [--install-path=DIR]
# and takes it away again:        bash install.sh --uninstall [--install-path=DIR]
# Without a path it goes to $ASCEND_OPP_PATH/vendors, CANN's folder for custom operators.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=""
uninstall=0
for argument in "$@"; do
  case "$argument" in
    --install-path=?*) root=${argument#--install-path=} ;;
    --uninstall) uninstall=1 ;;
    *)
      echo "install.sh: unknown argument $argument; usage: bash install.sh [--uninstall] [--install-path=DIR]" >&2
      exit 2
      ;;
  esac
done
custom=$root
if [ -z "$root" ]; then
  if [ -z "${ASCEND_OPP_PATH:-}" ]; then
    echo "install.sh: ASCEND_OPP_PATH is not set (source CANN's set_env.sh), and no --install-path was given" >&2
    exit 1
  fi
  root=$ASCEND_OPP_PATH
fi
target=$root/vendors/VENDOR
priority=$root/vendors/config.ini
if [ "$target" -ef "$here/vendors/VENDOR" ]; then
  echo "install.sh: --install-path: got $root, which is this package itself; name another folder" >&2
  exit 2
fi
rm -rf "$target"
if [ "$uninstall" = 1 ]; then
  if [ -z "$custom" ] && [ -f "$priority" ]; then
    # Its name goes from the list of vendors, and the file with it when no other is left.
    sed -i -E '/^load_priority=/{s/(=|,)VENDOR(,|$)/\\1\\2/; s/=,/=/; s/,,/,/; s/,$//}' "$priority"
    if [ "$(cat "$priority")" = "load_priority=" ]; then rm "$priority"; fi
  fi
  echo "removed $target"
  exit
fi
# What MindSpore from 2.3 on asks of CANN before it takes a card.
if ! problem=$(python3 -c "import te.version, te.tik, tbe.tik" 2>&1); then
  echo "install.sh: python3 cannot import te and tbe, which CANN compiles operators with: ${problem##*$'\\n'}" >&2
  echo "install.sh: source CANN's set_env.sh; pip install \\"numpy<2\\" PACKAGES" >&2
fi
kernels=${ASCEND_OPP_PATH:-}
kernels=${kernels//opp/opp_kernel}
if [ -n "$kernels" ] && [ ! -d "$kernels" ]; then
  mindspore=$(python3 -c "from importlib import metadata; print(*(one.version for one in metadata.distributions()
    if one.metadata['Name'] in ('mindspore', 'mindspore-dev')))")
  case "$mindspore" in
    2.[67].*)
      echo "install.sh: there is no $kernels, which MindSpore $mindspore wants: install CANN's kernels package" >&2
      ;;
  esac
fi
mkdir -p "$root/vendors"
cp -R "$here/vendors/VENDOR" "$target"

if [ -z "$custom" ]; then
  if [ ! -f "$priority" ]; then
    echo "load_priority=VENDOR" > "$priority"
  elif ! grep -Eq '^load_priority=(.*,)?VENDOR(,|$)' "$priority"; then
    sed -i 's/^load_priority=/load_priority=VENDOR,/' "$priority"
  fi
  echo "installed in $target"
else
  echo "installed in $target; now set"
  printf '  export ASCEND_CUSTOM_OPP_PATH=%q:$ASCEND_CUSTOM_OPP_PATH\\n' "$target"
fi
"""

_README = """# FlashAttention operators for Ascend 910 (first generation)

Operator package of flash_attention VERSION for MindSpore 2.3 and later, which find TBE operators in such a package.

    bash install.sh                       # into $ASCEND_OPP_PATH/vendors/VENDOR
    bash install.sh --install-path=DIR    # into DIR/vendors/VENDOR; then set ASCEND_CUSTOM_OPP_PATH as it prints
    bash install.sh --uninstall           # takes it away again; with the same --install-path

What is inside: the operators' Python sources, which CANN compiles when a network needs them
(`vendors/VENDOR/op_impl/ai_core/tbe/VENDOR_impl`), and the operator information library (`config/ascend910`, its
sources in `op_info_cfg`). Nothing is compiled when it is installed: MindSpore registers the prototypes itself.

The kernels were run by the emulator tikemu on CPUs; this package was not installed on an Ascend device.
"""
