"""Many worlds on all cores, or one to watch. A failed seed is printed with what broke, and the last
line is the verdict.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.cluster.cluster_world import ClusterWorld, run_cluster
from tests.simulation.quiet import silence_logs
from tests.simulation.world import World, run_world

CHUNK = 20
FAILURES_SHOWN = 20


class Kind(NamedTuple):
    """Which worlds: of which write-ahead log (None: each seed says), of clusters or of engines."""

    wal: str | None
    is_cluster: bool = False
    is_encrypted: bool = False

    def run(self, seed: int, echo: Callable[[str], None] | None = None) -> World | ClusterWorld:
        """Run one to its end."""
        run = run_cluster if self.is_cluster else run_world
        return run(seed, wal=self.wal, echo=echo, is_encrypted=self.is_encrypted)


@dataclass(slots=True)
class Tally:
    """What some worlds have come to."""

    worlds: int = 0
    acknowledged: int = 0
    reads: int = 0
    virtual_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another one's."""
        self.worlds += other.worlds
        self.acknowledged += other.acknowledged
        self.reads += other.reads
        self.virtual_s += other.virtual_s
        self.failures += other.failures


def run_chunk(job: tuple[range, Kind]) -> Tally:
    """Run some seeds in this process."""
    silence_logs()
    seeds, kind = job
    tally = Tally()
    for seed in seeds:
        tally.worlds += 1
        try:
            world = kind.run(seed)
        except Exception as error:
            tally.failures.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        tally.acknowledged += world.ledger.acknowledged
        tally.reads += world.ledger.reads
        tally.virtual_s += world.virtual_s
    return tally


def chunks(first: int, count: int, kind: Kind) -> Iterator[tuple[range, Kind]]:
    """Cut the seeds into jobs."""
    for start in range(first, first + count, CHUNK):
        yield range(start, min(start + CHUNK, first + count)), kind


def run_many(first: int, count: int, kind: Kind, workers: int) -> int:
    """Run `count` worlds on all cores and say how it went. Returns the exit status."""
    started = time.monotonic()
    total = Tally()
    is_terminal = sys.stderr.isatty()
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=50) as pool:
        for tally in pool.imap_unordered(run_chunk, chunks(first, count, kind)):
            for failure in tally.failures[: max(0, FAILURES_SHOWN - len(total.failures))]:
                print(failure, flush=True)
            total.add(tally)
            spent = time.monotonic() - started
            if is_terminal or total.worlds % 1000 < CHUNK:
                left = spent / total.worlds * (count - total.worlds)
                print(
                    f"{total.worlds}/{count} worlds, {len(total.failures)} failed, "
                    f"{spent:.0f} s, about {left:.0f} s to go",
                    file=sys.stderr,
                    end="\r" if is_terminal else "\n",
                    flush=True,
                )
    spent = time.monotonic() - started
    print(
        f"sim: {total.worlds} worlds from seed {first}, {len(total.failures)} failed; "
        f"{total.virtual_s / 3600:.1f} virtual hours, {total.acknowledged} batches acknowledged, "
        f"{total.reads} read; {spent:.0f} s ({1000 * spent / max(1, total.worlds):.0f} ms a world)"
    )
    return 1 if total.failures else 0


def watch_one(seed: int, kind: Kind) -> int:
    """Run one world and print all of it. Returns the exit status."""
    silence_logs()
    try:
        world = kind.run(seed, print)
    except Exception as error:
        print(f"seed {seed}: {type(error).__name__}: {error}")
        return 1
    print(f"seed {seed}: nothing is broken; trace {world.trace.digest()}")
    return 0
