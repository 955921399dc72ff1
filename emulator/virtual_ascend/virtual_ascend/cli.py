"""``virtual-ascend``: runs a program on the virtual card, and says what is there."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tikemu

from . import __version__, cards, folders, library
from .device.operators import TABLE
from .errors import SetupError
from .installation import Installation, find

CANN = Path(__file__).parent / "cann"
#: AI cores of the first generation, and the chip that has them.
CHIPS = {32: "Ascend910A", 30: "Ascend910ProB"}
#: GiB, many times what any card has and less than what a process can address.
MOST_MEMORY = 1024
DESCRIPTION = """\
Runs a program that says device_target="Ascend" on MindSpore's own Ascend backend and a stand-in for CANN and the chip.

  virtual-ascend -- python train.py --epochs 1
  virtual-ascend --seed 3 -- pytest tests
  virtual-ascend --cards 2 -- python train.py
  virtual-ascend info

`python` means the interpreter that virtual-ascend runs in, which has to have MindSpore 2.0.0, 2.5 or 2.6."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. A program on one card takes the place of this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options, unknown = _parser().parse_known_args(own)
    if options.action not in (None, "info"):
        _parser().error(f"got {options.action} before --; programs belong behind it: virtual-ascend -- python PROGRAM")
    if unknown:
        _parser().error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if options.action == "info":
            print(describe(find()))
            return 0
        if not command:
            _parser().error("no program: virtual-ascend -- python PROGRAM")
        _check(options)
        installation = find()
        variables = environment(options, installation, library.prepare(installation))
        if command[0] == "python":
            command[0] = str(installation.python)
        if os.sep not in command[0] and (installation.python.parent / command[0]).exists():
            command[0] = str(installation.python.parent / command[0])  # PATH may lead to another environment's
        sys.stdout.flush()
        if options.cards:
            return cards.run(command, options.cards, variables)
        os.execvpe(command[0], command, variables)
    except SetupError as error:
        print(f"virtual-ascend: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"virtual-ascend: {place}{error.strerror}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> None:
    """End with an error that names the option, what came and what is allowed."""
    for name, least in (("cards", 1), ("processes", 1), ("seed", 0), ("patience", 1)):
        given = getattr(options, name)
        if given is not None and given < least:
            _parser().error(f"--{name}: got {given}, allowed is {least} or more")
    if not 0 < options.memory <= MOST_MEMORY:
        _parser().error(f"--memory: got {options.memory}, allowed is more than 0 and at most {MOST_MEMORY} (GiB)")
    for given in filter(None, ";".join(options.formats).split(";")):
        entry, _, formats = given.partition("=")
        if not formats:
            _parser().error(f"--formats: got {given}, allowed is ENTRY=FORMAT,...")
        if entry not in TABLE:
            near = ", ".join(difflib.get_close_matches(entry, TABLE)) or "softmax_v2, say"
            _parser().error(f"--formats: got {entry}, allowed is the entry of a built-in operator: {near}")
    if options.report:
        try:
            options.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _parser().error(f"--report: got {options.report}, allowed is a folder that can be made: {error.strerror}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="virtual-ascend",
        usage="virtual-ascend [options] -- python PROGRAM [ARGUMENTS]\n       virtual-ascend info",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", metavar="info", help="say what is there, and run nothing")
    parser.add_argument(
        "--cards",
        type=int,
        help="run the program once for each of so many cards, with RANK_ID, RANK_SIZE, DEVICE_ID and RANK_TABLE_FILE",
    )
    parser.add_argument(
        "--cores", type=int, choices=tuple(CHIPS), default=32, help="AI cores of the chip (default: 32)"
    )
    parser.add_argument("--memory", type=float, default=32, help="GiB of memory on the card (default: 32)")
    parser.add_argument(
        "--seed", type=int, default=0, help="shuffles what nothing orders, and draws random numbers (default: 0)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="of this computer, which all cards share, for the blocks of an operator in TIK if that is quicker "
        "(default: one per core)",
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="SECONDS",
        default=60,
        help="how long the card waits for an event or for the next batch of a sunk dataset while nothing else happens, "
        "before that is an error, and how long a kernel runs before a line names it (default: 60)",
    )
    parser.add_argument(
        "--formats",
        metavar="ENTRY=FORMAT,...",
        action="append",
        default=[],
        help="formats besides ND of a built-in operator, such as softmax_v2=FRACTAL_NZ; may be given several times",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write what was launched to DIR: op_summary.csv and trace.json"
    )
    parser.add_argument("--version", action="version", version=f"virtual_ascend {__version__}")
    return parser


def environment(options: argparse.Namespace, installation: Installation, cann: Path) -> dict[str, str]:
    """Return the variables of a program on the virtual card."""
    packages = sys.modules[__package__], tikemu
    ours = list(dict.fromkeys(str(Path(str(package.__file__)).parents[1]) for package in packages))
    variables = dict(os.environ)
    own: dict[str, object] = {
        "VIRTUAL_ASCEND_SOC": CHIPS[options.cores],
        "VIRTUAL_ASCEND_CORES": options.cores,
        "VIRTUAL_ASCEND_MEMORY": int(options.memory * 2**30),
        "VIRTUAL_ASCEND_SEED": options.seed,
        "VIRTUAL_ASCEND_PROCESSES": options.processes,
        "VIRTUAL_ASCEND_PATIENCE": options.patience,
        "VIRTUAL_ASCEND_FORMATS": ";".join(options.formats),
        "VIRTUAL_ASCEND_CANN": "7.6" if installation.ge else "6.3",  # as its package te says
        "VIRTUAL_ASCEND_PYTHON": sys.executable,
        "VIRTUAL_ASCEND_PYTHONPATH": os.pathsep.join(ours),
        "ASCEND_HOME_PATH": cann,
        "ASCEND_OPP_PATH": cann / "opp",
        "MINDSPORE_OP_INFO_PATH": cann / "registrations.json",
    }
    if options.report:
        own["VIRTUAL_ASCEND_REPORT"] = options.report.resolve()
    variables.update({name: str(value) for name, value in own.items()})
    # Compiled kernels belong to this run alone: the sources of an operator may change between two runs.
    if "MS_COMPILER_CACHE_PATH" not in variables:
        variables["MS_COMPILER_CACHE_PATH"] = str(folders.make(Path(tempfile.gettempdir())))
    # The libraries lie in lib64; MindSpore warns if the other places are not named, though it needs nothing there.
    _put_first(variables, "LD_LIBRARY_PATH", [str(cann / "lib64"), str(cann / "add-ons")])
    _put_first(variables, "PATH", [str(cann / "compiler/ccec_compiler/bin")])
    _put_first(variables, "PYTHONPATH", [str(CANN), *ours, str(cann / "opp/built-in/op_impl/ai_core/tbe")])
    return variables


def _put_first(variables: dict[str, str], name: str, entries: Sequence[str]) -> None:
    variables[name] = os.pathsep.join([*entries, *filter(None, [variables.get(name)])])


def describe(installation: Installation) -> str:
    """Return the text of ``virtual-ascend info``."""
    folder = library.prepare(installation)
    names, wanted = library.missing(installation)
    return "\n".join(
        [
            f"virtual_ascend {__version__}, tikemu {tikemu.__version__}",
            f"python   {installation.python}",
            f"plugin   {installation.plugin}",
            f"         wants {len(wanted)} symbols of {len(names)} libraries of CANN",
            f"stand-in {folder}",
            f"cards    one, or --cards N: a process for each, which exchange tensors through {cards.exchange_place()}",
        ]
    )
