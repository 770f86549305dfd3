"""Merging small objects into large ones, on one core: 4 MiB objects of large batches, and of small
batches that are merged too.
"""

import multiprocessing
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from bench.lake._topics import GIB, MIB, Shape, write_topic
from bench.lake._usage import ProcessWatch
from tests.support.lake_cluster import LakeCluster

PART = "compaction"
TOPIC = "documents"
SMALL_OBJECT = 4 * MIB
GOAL = 300.0
SHAPES = (Shape(), Shape(batch_bytes=16_000), Shape(batch_bytes=2_000))


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    figures: list[Figure] = []
    for shape in SHAPES:
        place = folder / "store"
        cluster = LakeCluster(str(place))
        written = write_topic(
            cluster, TOPIC, shape, size=512 * MIB if quick else GIB, object_bytes=SMALL_OBJECT
        )
        with multiprocessing.get_context("spawn").Pool(1) as processes, ProcessWatch() as watch:
            seconds, cpu = processes.apply(_compact, (str(place),))
        shutil.rmtree(place)
        name = f"{shape.batch_bytes // 1000} KB batches"
        stored = written.stored_bytes / 1e6
        figures += [
            Figure(part=PART, name=f"{name}: per core", value=stored / cpu, unit="MB/s", goal=GOAL),
            Figure(part=PART, name=f"{name}: wall", value=stored / seconds, unit="MB/s"),
            *watch.figures(PART, name, written.stored_bytes),
        ]
    return figures


def _compact(store: str) -> tuple[float, float]:
    """Merge all there is; return wall and CPU seconds."""
    from lakehead.storage.jobs.compact_objects import JOB
    from lakehead.storage.jobs.job import run_job

    wall, cpu = time.perf_counter(), time.process_time()
    figures = run_job(JOB, store)
    if figures.superseded or not 0 < figures.objects_after * 8 <= figures.objects_before:
        raise RuntimeError(f"not merged as expected: {figures}")
    return time.perf_counter() - wall, time.process_time() - cpu
