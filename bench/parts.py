"""Runs the parts of a package of benchmarks: measure, show, keep.

Every module of the package that has a function `run(folder, quick)` is a part; it returns figures,
or an awaitable of them. A part that lacks something on this machine raises MissingTool, which is
shown and counts as not measured.

    ONLY=block_wal  some parts alone, by module name, comma-separated
    QUICK=1         short runs, to see that they work
    KEEP=PATH       where the JSON goes (default: bench/results/raw/PACKAGE-TIME.json)
    FOLDER=PATH     the disk to measure on (default: the folder for temporary files)
"""

import importlib
import inspect
import os
import pkgutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType

import uvloop
from rich.console import Console

from bench.figures import Figure, save, show
from bench.maven import MissingTool
from bench.process import CUT_SHORT
from bench.report import machine

Figures = Sequence[Figure]
Run = Callable[[Path, bool], Figures | Awaitable[Figures]]


def parts(package: ModuleType) -> dict[str, Run]:
    """Every part by its name, limited to those in ONLY."""
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    found: dict[str, Run] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_") or (only and module.name not in only):
            continue
        run = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "run", None)
        if run is not None:
            found[module.name] = run
    if missing := set(only) - set(found):
        raise SystemExit(f"ONLY={','.join(sorted(missing))}: no such part")
    return found


def measure(run: Run, *, quick: bool) -> Figures:
    """Run one part in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("FOLDER")) as folder:
        result = run(Path(folder), quick)
        if inspect.isawaitable(result):

            async def waited() -> Figures:
                return await result

            return uvloop.run(waited())
        return result


def main(package: ModuleType) -> None:
    """Measure, show, keep. A goal that is missed does not fail the run; an error does."""
    name = package.__name__.rpartition(".")[2]
    console = Console(highlight=False)
    console.width = max(console.width, 120)
    quick = os.environ.get("QUICK", "") not in ("", "0")
    figures: list[Figure] = []
    began = time.monotonic()
    for part, run in parts(package).items():
        console.print(f"measuring {part} ...")
        try:
            figures.extend(measure(run, quick=quick))
        except MissingTool as error:
            console.print(f"bench: {part} is not measured: {error}", markup=False)
        except KeyboardInterrupt:
            console.print(f"bench: {part} was cut short")
            sys.exit(CUT_SHORT)
    if not figures:
        sys.exit(1)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = Path(os.environ.get("KEEP") or f"bench/results/raw/{name}-{stamp}.json")
    save(figures, machine(quick=quick), path)
    show(name.capitalize(), figures, console)
    console.print(f"{time.monotonic() - began:.0f} s in all; every figure is in {path}")
