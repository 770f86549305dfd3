"""`lakehead.scan` on one core: from objects in the page cache to Arrow, compared with the codec.

A process of its own for each topic, kept on one core. The measure is the CPU time of the process,
with all of its threads and the kernel's part. Wall time is shown too, and is not larger on an idle
machine. The first read fills the page cache and is not counted.
"""

import multiprocessing
import os
import resource
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure
from bench.lake._topics import MIB, Shape, Written, pool, write_topic
from tests.support.lake_cluster import LakeCluster

PART = "scan"
TOPIC = "documents"
ROUNDS = 3
CODECS = ("none", "lz4", "zstd")
COPIES = 8
"""Of the pool: more than the caches of a processor hold."""
GOAL_GB_PER_SECOND = 2.0
GOAL_OF_CODEC = 0.8
SHAPES = (
    *(Shape(batch_bytes=size, codec=codec) for size in (1_000_000, 16_000) for codec in CODECS),
    *(Shape(value_bytes=100, codec=codec) for codec in CODECS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTimes:
    """One process's: medians of a whole read in seconds, and of inflating the same with the codec
    alone (None for no codec)."""

    wall: float
    cpu: float
    codec_cpu: float | None
    peak_rss_bytes: int


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    figures: list[Figure] = []
    for shape in SHAPES:
        store = folder / "store"
        written = write_topic(
            LakeCluster(str(store)), TOPIC, shape, size=(128 if quick else 512) * MIB
        )
        with multiprocessing.get_context("spawn").Pool(1) as processes:
            times = processes.apply(_measure, (str(store), shape, written))
        shutil.rmtree(store)
        figures += _figures(shape, written, times)
    return figures


def _figures(shape: Shape, written: Written, times: ScanTimes) -> list[Figure]:
    rate = written.value_bytes / 1e9 / times.cpu
    is_large = shape.value_bytes == 1024
    figures = [
        Figure(
            part=PART,
            name=f"{shape.title}: values per core",
            value=rate,
            unit="GB/s",
            goal=GOAL_GB_PER_SECOND if is_large and shape.codec == "none" else None,
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: records per core",
            value=written.records / 1e6 / times.cpu,
            unit="M/s",
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: wall, kept on one core",
            value=written.value_bytes / 1e9 / times.wall,
            unit="GB/s",
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: CPU",
            value=times.cpu / (written.value_bytes / 1e9),
            unit="s/GB",
        ),
        Figure(
            part=PART,
            name=f"{shape.title}: peak memory",
            value=times.peak_rss_bytes / MIB,
            unit="MB",
        ),
    ]
    if times.codec_cpu is not None:
        figures[0] = Figure(
            part=PART,
            name=figures[0].name,
            value=rate,
            unit="GB/s",
            peer=f"{shape.codec} alone",
            peer_value=written.value_bytes / 1e9 / times.codec_cpu,
            goal=GOAL_OF_CODEC if shape.codec == "zstd" and is_large else None,
        )
    return figures


def _measure(store: str, shape: Shape, written: Written) -> ScanTimes:
    import lakehead

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    walls, cpus = [], []
    for _ in range(ROUNDS + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        rows = sum(batch.num_rows for batch in lakehead.scan(store, TOPIC))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        if rows != written.records:
            raise RuntimeError(f"{rows} records of {written.records} were read")
    return ScanTimes(
        wall=statistics.median(walls[1:]),
        cpu=statistics.median(cpus[1:]),
        codec_cpu=None if shape.codec == "none" else codec_seconds(shape, written),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def codec_seconds(shape: Shape, written: Written) -> float:
    """CPU seconds in which the codec alone inflates as many bytes of values, by the quickest way
    there is from Python, to memory that was in use before.
    """
    import cramjam
    import zstandard

    templates = pool(shape) * COPIES
    bodies = [template.body for template in templates]
    values = sum(template.value_bytes for template in templates)
    target = memoryview(bytearray(values * 2))
    zstd = zstandard.ZstdDecompressor()
    taken = []
    for _ in range(ROUNDS + 1):
        began, at = time.process_time(), 0
        for body in bodies:
            if shape.codec == "zstd":
                with zstd.stream_reader(body) as reader:
                    at += reader.readinto(target[at:])
            else:
                at += cramjam.lz4.decompress_into(body, target[at:])
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:]) * written.value_bytes / values
