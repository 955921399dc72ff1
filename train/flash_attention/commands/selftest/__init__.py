"""run small experiments that show if a card does what the TIK operators need"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.address import destination
from flash_attention.commands.info import require_numpy
from flash_attention.commands.selftest.report import write
from flash_attention.files import require_writable

DEVICES = ("ascend", "emulator", "cann")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, default="emulator", help="where programs run; cann: --compile")
    parser.add_argument(
        "--through",
        choices=("mindspore", "acl", "runtime"),
        default="mindspore",
        help="what --device ascend calls: MindSpore, CANN's pyACL, or its compiler and runtime alone",
    )
    parser.add_argument("--report", type=Path, help="JSON file for the results, to be sent back")
    parser.add_argument("--only", default="", help="run the experiments or kernels whose name contains this text")
    parser.add_argument(
        "--compile",
        action="store_const",
        dest="device",
        const="cann",
        default=argparse.SUPPRESS,
        help="compile kernels with CANN's toolkit; needs no card",
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds that --compile gives each kernel")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="folder for what --compile generates (.cce, .o, .json)"
    )


def unread(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    names = {"emulator": ("through", "limit", "keep"), "ascend": ("limit", "keep"), "cann": ("through",)}
    return f"with --device {options.device}", names[options.device]


def run(options: argparse.Namespace) -> int:
    require_numpy()
    if options.device == "cann":
        from flash_attention.commands.selftest import compiling

        return compiling.run(options)
    from flash_attention.commands.selftest import card, experiments

    chosen = [one for one in experiments.EXPERIMENTS if options.only in one.name]
    if not chosen:
        names = "; ".join(one.name for one in experiments.EXPERIMENTS)
        raise ValueError(f"--only: got {options.only!r}, allowed is a part of an experiment's name: {names}")
    if options.device == "emulator":
        device: card.Device = card.Emulator()
    elif options.through == "acl":
        from flash_attention.commands.selftest.pyacl import Acl

        device = Acl()
    elif options.through == "runtime":
        from flash_attention.commands.selftest.runtime import Runtime

        device = Runtime()
    else:
        device = card.Ascend()
    if options.report is not None:
        require_writable("--report", options.report, folder=False)
    described = device.description()
    print(f"device {options.device}: {', '.join(f'{name} {what}' for name, what in described.items())}\n")
    results: list[dict] = []
    try:
        for experiment in chosen:
            result = experiments.perform(experiment, device)
            results.append(result)
            print(f"{result['result']:8}{experiment.name}: {result['found']}", flush=True)
            if result["result"] == "FAILED":
                print(f"        expected: {experiment.expected}\n        what to change: {experiment.change}")
            if options.report is not None:
                write(options.report, {"device": options.device, **described, "experiments": results})
    except KeyboardInterrupt:
        print(f"\nstopped after {len(results)} of {len(chosen)} experiments")
        return 130
    if options.report is not None:
        print(f"\nwritten: {options.report}")
        if options.device == "ascend":
            print(f"please send it to {destination()}, even if all is as expected")
    failed = sum(result["result"] == "FAILED" for result in results)
    asked = "; no chip was asked: --device ascend asks one" if options.device == "emulator" else ""
    print(("\nall as expected" if failed == 0 else f"\nFAILED: {failed}") + asked)
    return int(failed > 0)
