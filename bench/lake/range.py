"""One per cent of a topic, by timestamp, compared with the whole of it: time and bytes.

TOPIC_GB=10 is the topic's size (default 10, and no more than half of the free disk). Its timestamps
cover thirty days, and the scan reads about seven hours in the middle of them.
"""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from bench.lake._topics import GIB, T0, Shape, write_topic
from bench.lake._usage import ProcessWatch
from lakehead.storage.clock import SystemClock
from lakehead.storage.object_store import FileStore
from lakehead.storage.object_store.counted import CountedStore
from tests.support.lake_cluster import LakeCluster

PART = "range"
TOPIC = "documents"
MONTH_MS = 30 * 24 * 3600 * 1000
GOAL = 0.03


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    room = shutil.disk_usage(folder).free // 2
    size = min(1 if quick else int(os.environ.get("TOPIC_GB", "10")), max(room // GIB, 1)) * GIB
    store = folder / "store"
    cluster = LakeCluster(str(store))
    written = write_topic(cluster, TOPIC, Shape(), size=size, milliseconds=MONTH_MS)
    middle = T0 + MONTH_MS // 2
    hundredth = {"starting_timestamp": middle, "ending_timestamp": middle + MONTH_MS // 100}
    _read(store)  # loads the kernels, fills the page cache
    with ProcessWatch() as watch:
        whole_s, whole_bytes, whole_rows = _read(store)
    parts = [_read(store, **hundredth) for _ in range(3)]
    part_s, part_bytes, part_rows = sorted(parts)[1]
    if whole_rows != written.records or not 0.005 < part_rows / whole_rows < 0.02:
        raise RuntimeError(f"{whole_rows} and {part_rows} records of {written.records} were read")
    gigabytes = size // GIB
    return [
        _figure(f"time for 1 % of {gigabytes} GB", part_s * 1000, whole_s * 1000, "ms"),
        _figure(f"bytes for 1 % of {gigabytes} GB", part_bytes / 2**20, whole_bytes / 2**20, "MB"),
        *watch.figures(PART, "whole scan", written.value_bytes),
    ]


def _figure(name: str, value: float, whole: float, unit: str) -> Figure:
    return Figure(
        part=PART,
        name=name,
        value=value,
        unit=unit,
        peer="whole scan",
        peer_value=whole,
        goal=GOAL,
        more_is_better=False,
    )


def _read(store: Path, **bounds: int) -> tuple[float, int, int]:
    """Scan, the plan included; return seconds, bytes requested from the store, records."""
    import lakehead

    counted = CountedStore(FileStore(store), clock=SystemClock())
    began = time.perf_counter()
    with lakehead.scan(counted, TOPIC, **bounds) as scan:  # type: ignore[arg-type]
        rows = sum(batch.num_rows for batch in scan)
    return time.perf_counter() - began, counted.stats.get.bytes, rows
