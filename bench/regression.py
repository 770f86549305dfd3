"""`make bench-quick`: this tree beside an earlier commit, in less than three minutes.

Both brokers run at once, and one has a client at any moment. In each round both are measured, one
after the other, and the order flips: A B, B A, A B ... A figure is a regression if this tree was
worse in every round, and by more than ALLOWED in the median of the rounds' ratios. What disturbs
a machine disturbs both of a round, or makes rounds disagree.

    BASE=HEAD~1     the commit to compare with
    ROUNDS=6        rounds; fewer than five cannot tell chance from a regression
    RECORDS=150000  records of 1 KiB of each run
    PIN=1           a core for the brokers, and another one for the client
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from bench import workloads
from bench.apache_kafka.jars import jars_directory
from bench.lakehead_server import ROOT, lakehead_server
from bench.loads import BASE as PRODUCE
from bench.loads import LOADS
from bench.maven import MissingTool
from bench.process import CUT_SHORT, NotEnoughCores, ServerFailed, ServerProcess, cores, on_cores
from bench.report import MORE_IS_BETTER, UNITS, Spread, shown
from bench.workloads import Figures, RunFailed

ALLOWED = 0.05
"""A median may be worse by this share, also if every round was worse."""
ROUNDS, RECORDS = 6, 150_000
ROUNDS_MIN = 5
"""Fewer agree by chance too often: five do so once in 32 runs."""
CONSUME, CONSUME_OLDER = "consume-recent", "consume-older"
CACHE_BYTES = 192 * 2**20
"""Of each broker: a run's topic is in it, and the topic of two runs before is not."""
_OLDER_RUNS = 2
JUDGED = ("mb_per_second", "cpu_seconds_per_gb")
PACKAGES = ("lakehead", "broker", "storage", "lake", "connectors")
_LOAD = next(load for load in LOADS if load.name == PRODUCE)


class NoSuchCommit(Exception):
    """The history does not have the commit to compare with. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A figure of this tree as a multiple of the earlier one's, over the rounds."""

    load: str
    figure: str
    ratio: Spread
    rounds: int

    @property
    def is_regression(self) -> bool:
        """True if enough rounds agree that this tree is worse, and by more than ALLOWED."""
        if self.rounds < ROUNDS_MIN:
            return False
        if self.figure in MORE_IS_BETTER:
            return self.ratio.most < 1 and self.ratio.median < 1 - ALLOWED
        return self.ratio.least > 1 and self.ratio.median > 1 + ALLOWED


Round = Mapping[str, tuple[Figures, Figures]]
"""Figures of a round by load: those of the earlier commit, and those of this tree."""


def compared(rounds: list[Round]) -> list[Comparison]:
    """Return the judged figures that were measured."""
    found = []
    for load in dict.fromkeys(load for one in rounds for load in one):
        for figure in JUDGED:
            pairs = [tuple(getattr(of, figure) for of in one[load]) for one in rounds]
            ratios = [this / base for base, this in pairs if base and this]
            if ratio := Spread.of(ratios):
                found.append(Comparison(load=load, figure=figure, ratio=ratio, rounds=len(ratios)))
    return found


def unpack(commit: str, folder: Path) -> str:
    """Put the packages of a commit into a folder; return its abbreviated id and subject.

    Raises NoSuchCommit.
    """
    named = _git("log", "-1", "--format=%h %s", commit).decode().strip()
    there = _git("ls-tree", "--name-only", commit).decode().split()
    packed = _git("archive", commit, *(name for name in PACKAGES if name in there))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return named


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise NoSuchCommit(done.stderr.decode().strip().splitlines()[0])
    return done.stdout


def measured(server: ServerProcess, run: int, records: int) -> dict[str, Figures]:
    """Produce a topic, consume it, and consume the one of two runs before, which no client has read
    since it left the cache.
    """
    workloads.create_topic(server, _topic(run), {})
    found = {
        PRODUCE: workloads.produce(server, _topic(run), _LOAD, records),
        CONSUME: workloads.consume(server, _topic(run), _LOAD, records),
    }
    if run > _OLDER_RUNS:
        older = _topic(run - _OLDER_RUNS)
        found[CONSUME_OLDER] = workloads.consume(server, older, _LOAD, records)
    return found


def _topic(run: int) -> str:
    return f"run-{run}"


def rounds_of(
    base: ServerProcess, this: ServerProcess, count: int, records: int
) -> Iterator[Round]:
    """Measure both in turn, after runs of each that do not count."""
    for server in (base, this):
        for run in range(1, _OLDER_RUNS + 1):
            measured(server, run, records)
    for number in range(_OLDER_RUNS + 1, _OLDER_RUNS + 1 + count):
        order = (base, this) if number % 2 else (this, base)
        found = {id(server): measured(server, number, records) for server in order}
        yield {load: (found[id(base)][load], found[id(this)][load]) for load in found[id(base)]}


def main() -> None:
    """Measure and show. Ends with status 1 if something has become slower."""
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    count = int(os.environ.get("ROUNDS") or ROUNDS)
    records = int(os.environ.get("RECORDS") or RECORDS)
    began = time.monotonic()
    rounds: list[Round] = []
    try:
        jars_directory()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            named = unpack(os.environ.get("BASE") or "HEAD~1", folder / "tree")
            console.print(f"this tree beside {named}: about two minutes", markup=False)
            servers_cores, clients_cores = cores(int(os.environ.get("PIN") or 0))
            with on_cores(servers_cores):
                base, this = (
                    stack.enter_context(_broker(_made(folder / name), root))
                    for name, root in (("base", folder / "tree"), ("this", ROOT))
                )
            stack.enter_context(on_cores(clients_cores))
            for one in rounds_of(base, this, count, records):
                rounds.append(one)
                console.print(f"round {len(rounds)} of {count}", markup=False)
    except (
        *(MissingTool, NoSuchCommit, NotEnoughCores),
        *(ServerFailed, RunFailed, KafkaException),
    ) as error:
        console.print(f"bench-quick: {error}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("bench-quick: cut short")
        sys.exit(CUT_SHORT)
    comparisons = compared(rounds)
    show(comparisons, rounds, console)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    console.print(f"{time.monotonic() - began:.0f} s in all; load {load}")
    sys.exit(any(comparison.is_regression for comparison in comparisons))


def _broker(folder: Path, root: Path) -> ServerProcess:
    """A broker of a checkout; `-P`: the present folder may hold another one."""
    return lakehead_server(folder, "--cache.size", str(CACHE_BYTES), under=("-P",), root=root)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def show(comparisons: list[Comparison], rounds: list[Round], console: Console) -> None:
    """Print both medians, the ratios and the verdict."""
    table = Table(title="Median (least to most)", title_justify="left")
    for heading in ("load", "figure"):
        table.add_column(heading)
    for heading in ("before", "this tree", "ratio", ""):
        table.add_column(heading, justify="right")
    for one in comparisons:
        sides = (
            Spread.of([getattr(found[one.load][side], one.figure) for found in rounds])
            for side in (0, 1)
        )
        verdict = "[red]slower[/red]" if one.is_regression else "[green]ok[/green]"
        table.add_row(
            one.load, UNITS[one.figure], *(shown(side) for side in sides), shown(one.ratio), verdict
        )
    console.print(table)


if __name__ == "__main__":
    main()
