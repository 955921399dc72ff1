"""``python -m tikemu``: run a TIK program, list the APIs, list the SoCs."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__, environment, native, shim
from .api import run as run_kernel
from .errors import TikEnvironmentError, TikError
from .findings import CLASSES
from .frontend import build, platform_info
from .frontend.dsl import Tik
from .options import FINDINGS, SYNC_VARIANTS, Options, use_options
from .program import ir
from .program.dtypes import BITS, is_float
from .program.printer import dump
from .soc import ON_CHIP, PROFILES


class CommandError(Exception):
    """A wrong command line; the text is for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        The exit code: 0, 1 if the program breaks a rule, 2 for a wrong command line, environment or file, 130 after
        Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    try:
        environment.check()
        return options.command(options)
    except KeyboardInterrupt:
        print("tikemu: interrupted", file=sys.stderr)
        return 130
    except TikEnvironmentError as error:
        print(f"tikemu: {error}", file=sys.stderr)
        return 2
    except CommandError as error:
        print(f"tikemu: {error}", file=sys.stderr)
        return 2
    except TikError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a list left early, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tikemu", description="TIK programs of the Ascend 910 on a CPU.")
    parser.add_argument("--version", action="version", version=f"tikemu {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="build and run a TIK program",
        description=("Calls FUNCTION of FILE, which builds a kernel with BuildCCE, and runs the kernel."),
    )
    run.set_defaults(command=_run)
    run.add_argument("target", metavar="FILE:FUNCTION")
    run.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="argument of FUNCTION, a Python literal or else a string; repeat in order",
    )
    run.add_argument(
        "--feed",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="input of the kernel; a number for an InputScalar",
    )
    run.add_argument("--random", type=int, metavar="SEED", help="random values for inputs without --feed")
    run.add_argument("--out", type=Path, metavar="DIR", help="write every output to DIR/NAME.npy")
    run.add_argument("--soc", default="Ascend910A", choices=sorted(PROFILES), help="default: %(default)s")
    run.add_argument("--strict", action="store_true", help="every questionable or undefined use is an error")
    run.add_argument(
        "--findings", choices=FINDINGS, default="first", help="strict mode: stop at the first, or list all"
    )
    run.add_argument(
        "--leave-out",
        action="append",
        default=[],
        choices=sorted(CLASSES),
        metavar="CLASS",
        help="strict mode: a class of findings to judge as in default mode (see `tikemu findings`); repeat",
    )
    run.add_argument("--report", action="store_true", help="print the time estimate")
    run.add_argument("--trace", type=Path, metavar="FILE.json", help="write a Chrome/Perfetto trace")
    run.add_argument("--dump", action="store_true", help="print the recorded program")
    run.add_argument("--no-numerics", action="store_true", help="estimate the time only")
    run.add_argument("--processes", type=int, metavar="N", help="processes that execute the blocks; default: 1")
    run.add_argument(
        "--sync",
        default="auto",
        choices=SYNC_VARIANTS,
        help="what the automatic synchronisation knows; default: %(default)s",
    )

    apis = commands.add_parser("apis", help="list what is supported on which SoC")
    apis.set_defaults(command=_apis)
    apis.add_argument("pattern", nargs="?", default="", help="only names that contain this")

    findings = commands.add_parser("findings", help="list the classes of findings of strict mode")
    findings.set_defaults(command=_findings)

    socs = commands.add_parser("socs", help="list the SoCs")
    socs.set_defaults(command=_socs)

    info = commands.add_parser("info", help="versions, and whether the native helper is in use")
    info.set_defaults(command=_info)
    return parser


# ------------------------------------------------------------------------------------------------ run
def _run(options: argparse.Namespace) -> int:
    file, _, function_name = options.target.rpartition(":")
    if not file:
        raise CommandError(f"the target must be FILE:FUNCTION, got {options.target!r}")
    if not options.strict and (options.leave_out or options.findings != "first"):
        raise CommandError("--findings and --leave-out need --strict")
    if options.processes is not None and options.processes < 1:
        raise CommandError(f"--processes must be at least 1, got {options.processes}")
    settings = Options(
        strict=options.strict,
        findings=options.findings,
        leave_out=tuple(options.leave_out),
        sync=options.sync,
        trace=options.trace is not None,
        processes=options.processes,
    )
    feed = _given(options.feed)
    outputs = options.out if not options.no_numerics else None
    if options.out is not None and outputs is None:
        print("tikemu: --out writes nothing: with --no-numerics no outputs are computed", file=sys.stderr)
    _check_writable(outputs, options.trace)
    shim.install(soc=options.soc, force=True)
    with use_options(settings):
        program = _build(Path(file), function_name, options.arg)
        if options.dump:
            print(dump(program))
        if options.random is not None:
            _fill(feed, program, options.random)
        result = run_kernel(program, feed, numerics=not options.no_numerics, options=settings)
    for name, value in result.outputs.items() if not options.no_numerics else ():
        spread = f", from {value.min()} to {value.max()}, mean {value.mean(dtype=np.float64):.6g}" if value.size else ""
        print(f"{name}: {value.dtype}{value.shape}{spread}")
        if outputs is not None:
            with _reason("--out", outputs):
                np.save(outputs / f"{name}.npy", value)
    print(f"estimate: {result.duration(result.cycles)}")
    if options.report:
        print(result.report())
    elif not options.no_numerics:
        print(result.overflow)
    if options.trace is not None:
        with _reason("--trace", options.trace):
            result.save_trace(options.trace)
    if result.findings:
        print(f"{len(result.findings)} findings of strict mode", *result.findings, sep="\n", file=sys.stderr)
    return int(bool(result.findings))


def _build(path: Path, function_name: str, texts: Sequence[str]) -> Any:
    """Import a file, call its function and return the kernel, or the last one built."""
    if not path.is_file():
        raise CommandError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))  # the file can import modules beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise CommandError(f"{str(path)!r} is no Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise CommandError(f"{module.__file__} has no function {function_name!r}")
    positional, named = [], {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            named[name] = _literal(value)
        else:
            positional.append(_literal(text))
    before = build.latest()
    returned = function(*positional, **named)
    if isinstance(returned, Tik):
        return returned
    latest = build.latest()
    if latest is None or latest is before:
        raise CommandError(f"{function_name} neither returned a Tik instance nor called BuildCCE")
    return latest


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _given(texts: Sequence[str]) -> dict[str, Any]:
    """Return what --feed gives, by name."""
    feed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--feed takes NAME=FILE.npy or NAME=NUMBER, got {text!r}")
        if Path(value).suffix != ".npy":
            feed[name] = _literal(value)
            if not isinstance(feed[name], (int, float)):
                raise CommandError(f"--feed {name}: {value!r} is neither a number nor a file NAME.npy")
            continue
        if not Path(value).is_file():
            raise CommandError(f"--feed {name}: there is no file {value!r}")
        try:
            feed[name] = np.load(value, allow_pickle=False)
        except (OSError, EOFError, ValueError, MemoryError) as error:
            raise CommandError(f"--feed {name}: {value!r} holds no array: {_one_line(error)}") from None
    return feed


def _fill(feed: dict[str, Any], program: Any, seed: int) -> None:
    """Add random values for the tensors that --feed does not give."""
    generator = np.random.default_rng(seed)
    recorded = program if isinstance(program, ir.Program) else program._recorder.program
    for node in recorded.inputs:
        if isinstance(node, ir.View) and node.tensor.name not in feed:
            shape: tuple[Any, ...] = node.shape
            if not all(isinstance(extent, int) for extent in shape):
                raise CommandError(
                    f"--random cannot fill {node.tensor.name!r}, whose shape is known only at run time; use --feed"
                )
            array: np.ndarray
            if is_float(node.dtype):
                array = generator.standard_normal(shape, np.float32)
            else:
                array = generator.integers(0, 1 << min(BITS[node.dtype] - 1, 15), shape)
            feed[node.tensor.name] = array.astype(node.dtype)


# ------------------------------------------------------------------------------------------------ files
def _check_writable(folder: Path | None, trace: Path | None) -> None:
    """Make sure that outputs and trace can be written, before anything is computed."""
    if folder is not None:
        with _reason("--out", folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    if trace is not None:
        with _reason("--trace", trace):
            there = trace.exists()
            trace.open("ab").close()
            if not there:
                trace.unlink()


@contextlib.contextmanager
def _reason(option: str, path: Path) -> Iterator[None]:
    """Report a file that cannot be written in one line."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{option} {path}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------ lists
def _apis(options: argparse.Namespace) -> int:
    socs = [name.replace("Ascend", "") for name in PROFILES]
    rows = [
        ("API", "family", *socs, "pipe", "dtypes or reason"),
        *(row for row in api_rows() if options.pattern in row[0]),
    ]
    _print_table(rows)
    return 0


def api_rows() -> Iterator[tuple[str, ...]]:
    """Yield one row per API: name, family, yes or no per SoC, pipe, dtypes (of the operands in order) or why not."""
    from .isa import registry

    every = len(PROFILES)
    rows = [(name, "container", *["yes"] * every, "", "") for name in platform_info.CONTAINER_APIS]
    for name, spec in registry.specs().items():
        dtypes = " ".join(entry if isinstance(entry, str) else "/".join(entry) for entry in spec.dtypes)
        family = next(family for family, starts in _FAMILIES.items() if name.startswith(starts))
        rows.append((name, family, *["yes"] * every, spec.pipe, dtypes))
    for name, reason in registry.unsupported().items():
        rows.append((name, "", *["no"] * every, "", reason))
    yield from sorted(rows, key=lambda row: (row[1] == "", row[1], row[0]))


#: Families of APIs with the starts of their names; the first that fits.
_FAMILIES = {
    "vec": ("vec_",),
    "whole tensor": ("h_",),
    "scalar": ("scalar_",),
    "legacy v": ("v", "mov_"),
    "cube": ("load", "mmad", "matmul", "fixpipe"),
    "synchronisation": ("pipe_", "block_", "set_flag", "wait_"),
    "movement": ("",),
}


def _findings(options: argparse.Namespace) -> int:
    _print_table([("class", "what"), *CLASSES.items()])
    return 0


def _socs(options: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = [("SoC", "cores", "MHz", "UB", "L1", "L0A", "L0B", "L0C", "L2", "float16 TFLOPS")]
    for soc in PROFILES.values():
        sizes = [*map(soc.capacity, ON_CHIP), soc.l2_size]
        shown = [f"{size // 1024} KiB" for size in sizes]
        rows.append((soc.name, str(soc.core_count), str(soc.clock_mhz), *shown, f"{soc.peak_f16_flops / 1e12:.1f}"))
    _print_table(rows)
    return 0


def _info(options: argparse.Namespace) -> int:
    print(f"tikemu {__version__}, NumPy {np.__version__}, Python {platform.python_version()}")
    if native.available():
        print("native helper: in use")
    else:
        print(
            "native helper: not in use; everything works, vector instructions run slower. To compile it: "
            "python -m tikemu.build_native (needs a C compiler)"
        )
    return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        print("  ".join([*cells, row[-1]]).rstrip())
