"""Mutate the sources at random places, and count the mutants that the tests find.

    pip install cosmic-ray            # into the environment of ./test.sh
    python scripts/mutants.py --count 200 --seed 0 --revision HEAD

It works on a copy of a revision, so that two revisions can be compared. Annotations stay: nothing evaluates them. The
tests near a mutated module run first, and all tests of every day if these pass. An interrupted run goes on where it
was. A mutant takes minutes.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "train/flash_attention", "emulator/tikemu", "emulator/virtual_ascend/virtual_ascend"
LIBRARIES = "train/flash_attention/backends/cpu/lib"  # Git does not have it; a mutant changes no C++
NEAR = {
    "emulator/tikemu": "emulator/tests",
    "emulator/virtual_ascend": "emulator/virtual_ascend/tests",
    "train/flash_attention": "tests/train/flash_attention/ut",
}


def copy_of(revision: str, folder: Path) -> Path:
    """Return a copy of a revision in the folder, made if it is not there."""
    name = subprocess.run(["git", "rev-parse", revision], cwd=ROOT, check=True, capture_output=True, text=True)
    copy = folder / name.stdout.strip()[:12]
    if not copy.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        subprocess.run(["git", "checkout", "--quiet", name.stdout.strip()], cwd=copy, check=True)
        shutil.copytree(ROOT / LIBRARIES, copy / LIBRARIES, dirs_exist_ok=True)
    return copy


def annotations(module: Path) -> list[tuple[tuple, tuple]]:
    """Return where the annotations of a module begin and end."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    hints = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    return [((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset)) for one in hints if one]


def tests_near(module: Path) -> str:
    """Return the folder of tests that mirrors the deepest folder of a module."""
    part = next(part for part in NEAR if module.is_relative_to(part))
    folder = Path(NEAR[part])
    for name in module.relative_to(part).parts[:-1]:
        if not (folder / name).is_dir():
            break
        folder /= name
    return str(folder)


def command_of(module: Path, processes: int) -> str:
    """Return the command that fails if the tests find a mutant of the module."""
    pytest = f"{sys.executable} -m pytest -q -x -p no:cacheprovider -n {processes} --dist worksteal"
    return f"sh -c '{pytest} {tests_near(module)} && {pytest}'"


def main() -> None:
    """Draw mutants, run the tests on each, and print the share that they find."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--revision", default="HEAD", help="what is mutated (default HEAD)")
    parser.add_argument(
        "--folder", type=Path, default=Path.home() / ".cache/flash-attention/mutants", help="of the copies and results"
    )
    parser.add_argument("--limit", type=float, default=1800, help="seconds for a mutant; who takes longer is found")
    parser.add_argument("--processes", type=int, default=2, help="of pytest (default 2)")
    options = parser.parse_args()

    from cosmic_ray.commands import init
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome

    os.environ["PYTHONHASHSEED"] = "0"
    copy = copy_of(options.revision, options.folder.resolve())
    os.chdir(copy)
    with use_db(str(copy) + ".sqlite", WorkDB.Mode.create) as results:
        draw = random.Random(options.seed)
        modules = sorted(path for part in SOURCES for path in Path(part).rglob("*.py") if path.stat().st_size)
        chosen = draw.choices(modules, [path.stat().st_size for path in modules], k=options.count)
        if not results.num_work_items:
            init(sorted(set(chosen)), results, {})
        items: dict[str, list] = {}
        hints = {str(module): annotations(module) for module in chosen}
        for item in sorted(results.work_items, key=lambda item: repr(item.mutations)):
            module, place = str(item.mutations[0].module_path), item.mutations[0].start_pos
            if not any(first <= place < last for first, last in hints[module]):
                items.setdefault(module, []).append(item)
        done = dict(results.results)
        found = survived = 0
        for item in [draw.choice(items[str(module)]) for module in chosen if str(module) in items]:
            module = Path(item.mutations[0].module_path)
            if item.job_id not in done:
                command = command_of(module, options.processes)
                done[item.job_id] = mutate_and_test(item.mutations, command, options.limit)
                results.set_result(item.job_id, done[item.job_id])
            survives = done[item.job_id].test_outcome == TestOutcome.SURVIVED
            found, survived = found + (not survives), survived + survives
            place = f"{module}:{item.mutations[0].start_pos[0]} {item.mutations[0].operator_name}"
            print(f"{found} found, {survived} survived: {'SURVIVED' if survives else 'found'} {place}", flush=True)
        print(f"{100 * found / (found + survived):.1f} % of {found + survived} mutants are found")


if __name__ == "__main__":
    main()
