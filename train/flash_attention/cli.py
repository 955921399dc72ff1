"""Command line: `flash-attention COMMAND`, also `python -m flash_attention.cli COMMAND`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from flash_attention import __version__, commands
from flash_attention.commands.info import mindspore_fault
from flash_attention.variables import check_variables


def command_modules() -> dict[str, ModuleType]:
    """Return the modules of `flash_attention.commands` by command name. That package says what a command is."""
    names = sorted(info.name for info in pkgutil.iter_modules(commands.__path__) if not info.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{commands.__name__}.{name}") for name in names}


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults, but not that nothing is the default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
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
        child.set_defaults(run=module.run, refuse=functools.partial(_refuse_unread, child, module))
    return result


def _refuse_unread(child: argparse.ArgumentParser, module: ModuleType, options: argparse.Namespace) -> None:
    """Raise if options are given that the chosen way of a command does not read."""
    way, names = module.unread(options) if hasattr(module, "unread") else ("", ())
    for name in names:
        given = getattr(options, name)
        if given != child.get_default(name):
            option = f"--{name.replace('_', '-')}" if name != "case" else "CASE"
            raise ValueError(f"{option}: got {given}, allowed is none {way}")


def main(arguments: list[str] | None = None) -> int:
    """Run one command, and return its exit status: 2 for an error, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)

    def end(reason: object, status: int = 2) -> int:
        print(f"flash-attention {options.command}: {reason}", file=sys.stderr)
        return status

    try:
        with _stopped_by_signals():
            check_variables()
            options.refuse(options)
            status = options.run(options)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        return end("stopped", 130)
    except BrokenPipeError:  # the reader has ended, as `head` does; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        if KeyboardInterrupt.__name__ in str(error):  # out of a Python operator of MindSpore
            return end("stopped", 130)
        return end(error)
    except ModuleNotFoundError:
        fault = mindspore_fault()
        if fault is None:
            raise
        return end(fault)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C and SIGTERM, each second until the command ends.

    MindSpore, once used, answers Ctrl-C by sending SIGTERM to its process. It drops an exception that is raised in some
    of its calls back into Python, as Python itself does in `__del__`.
    """

    before: dict[signal.Signals, Any] = {}

    def hear(number: signal.Signals) -> None:
        before.setdefault(number, signal.getsignal(number))
        signal.signal(number, stop)

    def stop(*_: object) -> None:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):  # else the command is ending
            hear(signal.SIGALRM)  # not before: the caller may have a timer
            signal.setitimer(signal.ITIMER_REAL, 1)
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hear(signal.SIGTERM)
    # Else the caller does not want it, or has its own.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        hear(signal.SIGINT)
    try:
        yield
    finally:
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
