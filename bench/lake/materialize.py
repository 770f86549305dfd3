"""A topic to a Delta table by append, on all cores: JSON of ten fields to columns, and raw values.

The job runs in a process of its own, after a small run that loads its modules. It writes its
default, Parquet compressed by zstd.
"""

import multiprocessing
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from bench.lake._topics import MIB, Shape, orders, write_topic
from bench.lake._usage import ProcessWatch
from lakehead.lake.tables.values.decoder import ValueFormat
from tests.support.lake_cluster import LakeCluster

PART = "materialize"
TOPIC, WARM = "orders", "warm"
CASES: tuple[tuple[ValueFormat, str, Shape, float], ...] = (
    ("json", "JSON of 10 fields", Shape(value_bytes=270, values=orders), 150.0),
    ("json", "JSON of 10 fields, zstd", Shape(value_bytes=270, values=orders, codec="zstd"), 150.0),
    ("raw", "raw, 1 KiB", Shape(), 600.0),
)


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    figures: list[Figure] = []
    for value_format, name, shape, goal in CASES:
        place = folder / "case"
        cluster = LakeCluster(str(place / "store"))
        write_topic(cluster, WARM, shape, size=8 * MIB)
        written = write_topic(cluster, TOPIC, shape, size=(64 if quick else 512) * MIB)
        with multiprocessing.get_context("spawn").Pool(1) as processes:
            processes.apply(_materialize, (place, WARM, value_format))
            with ProcessWatch() as watch:
                seconds, records = processes.apply(_materialize, (place, TOPIC, value_format))
        shutil.rmtree(place)
        if records != written.records:
            raise RuntimeError(f"{records} of {written.records} records are in the table")
        rate = written.value_bytes / 1e6 / seconds
        figures += [
            Figure(part=PART, name=f"{name}: values", value=rate, unit="MB/s", goal=goal),
            Figure(part=PART, name=f"{name}: records", value=records / 1e6 / seconds, unit="M/s"),
            *watch.figures(PART, name, written.value_bytes),
        ]
    return figures


def _materialize(place: Path, topic: str, value_format: ValueFormat) -> tuple[float, int]:
    from lakehead.lake.jobs.materialize import materialize
    from lakehead.lake.jobs.table_settings import MaterializeSettings

    settings = MaterializeSettings(
        path=str(place / "store"),
        topic=topic,
        table=str(place / "tables" / topic),
        value_format=value_format,
    )
    began = time.perf_counter()
    result = materialize(settings)
    return time.perf_counter() - began, result.records
