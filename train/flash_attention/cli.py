"""Command line: `flash-attention COMMAND`, also `python -m flash_attention.cli COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from types import ModuleType

from flash_attention import __version__, commands
from flash_attention.commands.info import mindspore_fault


def command_modules() -> dict[str, ModuleType]:
    """Return the modules of `flash_attention.commands` by command name. That package says what a command is."""
    names = sorted(info.name for info in pkgutil.iter_modules(commands.__path__) if not info.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{commands.__name__}.{name}") for name in names}


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults, but not that nothing is the default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False, "") else action.help


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    result = argparse.ArgumentParser(prog="flash-attention", description="FlashAttention for MindSpore.")
    result.add_argument("--version", action="version", version=f"flash_attention {__version__}")
    choices = result.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in command_modules().items():
        help_line = (module.__doc__ or "").split("\n")[0]
        child = choices.add_parser(name, help=help_line, description=help_line, formatter_class=_Help)
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is its result."""
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(f"flash-attention {options.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError:
        fault = mindspore_fault()
        if fault is None:
            raise
        print(f"flash-attention {options.command}: {fault}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
