"""A million changes into a table of ten million rows by upsert: from records in objects to the
commit, so decoding, the newest change of each key, and the MERGE.

The table is made before, from a topic that has each key once. Changes are in one case of keys all
over the table, in the other of the newest tenth of it. Nine in ten are puts of keys that the table
has (some of them more than once), the others new keys and deletes in equal parts. The job runs in a
process of its own, after a small run that loads its modules.
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np

from bench.figures import Figure
from bench.lake._keyed_topics import FIRST_ID, SCHEMA, Ids, write_puts, write_tombstones
from bench.lake._usage import ProcessWatch
from tests.support.lake_cluster import LakeCluster

PART = "upsert"
TOPIC, WARM = "orders", "warm"
PARTITIONS = 4
GOAL_SECONDS = 60.0


class Changed:
    """A topic and its table, and the table's expected content."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.rows = rows
        self._cluster = LakeCluster(str(folder / "store"))
        self._cluster.create_topic(TOPIC, PARTITIONS)
        self._cluster.create_topic(WARM, 1)
        self._ends = [0] * PARTITIONS
        self._rng = np.random.default_rng(7)
        self._ids = FIRST_ID + np.arange(rows)
        write_puts(self._cluster, WARM, 0, 0, self._ids[:10_000], edition=0)
        self._put(self._ids, edition=0)

    def change(self, count: int, *, newest: float, edition: int) -> int:
        """Write changes of keys in the newest part of the table, and return in how many rows the
        table must have this edition.
        """
        known = self._ids[int(len(self._ids) * (1 - newest)) :]
        few = count // 20
        put = self._rng.choice(known, count - 2 * few)
        fresh = self._ids[-1] + 1 + np.arange(few)
        gone = self._rng.choice(known, few, replace=False)
        self._put(np.concatenate([put, fresh]), edition=edition)
        self._remove(gone)
        self._ids = np.concatenate([np.setdiff1d(self._ids, gone, assume_unique=True), fresh])
        self.rows = len(self._ids)
        return len(np.setdiff1d(put, gone)) + few

    def _put(self, ids: Ids, *, edition: int) -> None:
        for partition in range(PARTITIONS):
            chosen = ids[ids % PARTITIONS == partition]
            end = self._ends[partition]
            write_puts(self._cluster, TOPIC, partition, end, chosen, edition=edition)
            self._ends[partition] += len(chosen)

    def _remove(self, ids: Ids) -> None:
        for partition in range(PARTITIONS):
            chosen = ids[ids % PARTITIONS == partition]
            write_tombstones(self._cluster, TOPIC, partition, self._ends[partition], chosen)
            self._ends[partition] += len(chosen)


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    rows, changes = (1_000_000, 100_000) if quick else (10_000_000, 1_000_000)
    changed = Changed(folder, rows)
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        processes.apply(_materialize, (folder, WARM))
        name = f"{rows / 1e6:g} M new rows"
        figures = _measure(processes, changed, name, edition=0, edited=rows, goal=None)
        for edition, (title, newest) in enumerate((("all over", 1.0), ("newest tenth", 0.1)), 1):
            edited = changed.change(changes, newest=newest, edition=edition)
            name = f"{changes / 1e6:g} M changes into {rows / 1e6:g} M rows, {title}"
            figures += _measure(
                processes, changed, name, edition=edition, edited=edited, goal=GOAL_SECONDS
            )
    return figures


def _measure(
    processes: Pool, changed: Changed, name: str, *, edition: int, edited: int, goal: float | None
) -> list[Figure]:
    with ProcessWatch() as watch:
        seconds = processes.apply(_materialize, (changed.folder, TOPIC))
    found = processes.apply(_counted, (changed.folder, edition))
    if found != (changed.rows, edited):
        raise RuntimeError(f"{name}: {found} rows and changed ones, not {(changed.rows, edited)}")
    return [
        Figure(part=PART, name=name, value=seconds, unit="s", goal=goal, more_is_better=False),
        Figure(part=PART, name=f"{name}: CPU", value=watch.cpu_seconds, unit="s"),
        *watch.figures(PART, name),
    ]


def _materialize(folder: Path, topic: str) -> float:
    """Bring the table up, and return in how many seconds."""
    import time

    from lakehead.lake.jobs.declared_tables import ROUND_BYTES
    from lakehead.lake.jobs.materialize import materialize
    from lakehead.lake.jobs.table_settings import MaterializeSettings

    settings = MaterializeSettings(
        path=str(folder / "store"),
        topic=topic,
        table=str(folder / "tables" / topic),
        schema=SCHEMA,
        mode="upsert",
        keys=("id",),
        commit_bytes=ROUND_BYTES,
    )
    began = time.perf_counter()
    materialize(settings)
    return time.perf_counter() - began


def _counted(folder: Path, edition: int) -> tuple[int, int]:
    """Return the number of rows in the table, and of those of an edition."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    dataset = DeltaTable(folder / "tables" / TOPIC).to_pyarrow_dataset()
    return dataset.count_rows(), dataset.count_rows(filter=pc.field("edition") == edition)
