"""The cost of each copy in docs/zero-copy.md: CPU seconds for a GB of values, 1 KiB each."""

import asyncio
import mmap
import multiprocessing
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.figures import Figure
from bench.lake._topics import MIB, Shape, Written, write_topic
from bench.lake.scan import TOPIC, codec_seconds
from tests.support.lake_cluster import LakeCluster

PART = "copies"
ROUNDS = 3
PIECE = 8 * MIB


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`."""
    figures: list[Figure] = []
    for shape in (Shape(), Shape(codec="zstd")):
        store = folder / "store"
        size = (128 if quick else 512) * MIB
        written = write_topic(LakeCluster(str(store)), TOPIC, shape, size=size)
        with multiprocessing.get_context("spawn").Pool(1) as processes:
            steps = processes.apply(_measure, (store, shape, written))
        shutil.rmtree(store)
        gigabytes = written.value_bytes / 1e9
        figures += [
            Figure(part=PART, name=f"{shape.codec}: {name}", value=cpu / gigabytes, unit="s/GB")
            for name, cpu in steps.items()
        ]
    return figures


def _measure(store: Path, shape: Shape, written: Written) -> dict[str, float]:
    import lakehead

    place = str(store)
    objects = sorted(path for path in (store / "data").rglob("*") if path.is_file())
    scanned = _cpu(lambda: _consume(lakehead.scan(place, TOPIC)))
    gathered = _cpu(lambda: _consume(lakehead.scan(place, TOPIC, copy=True)))
    bodies = [path.read_bytes() for path in objects]
    steps = {
        "out of the page cache (preadv)": _cpu(lambda: asyncio.run(_fetch(store, objects))),
        "mapped instead (mmap), each page touched": _cpu(lambda: _map(objects)),
        "checksums, of items and of batches at once": _cpu(lambda: _check(bodies)),
    }
    if shape.codec != "none":
        steps["inflating, the codec alone"] = codec_seconds(shape, written)
    batches = list(lakehead.scan(place, TOPIC, copy=True))
    return steps | {
        "lakehead.scan in all": scanned,
        "gathering values (copy=True), more than that": gathered - scanned,
        "an Arrow stream through a socket": _cpu(lambda: _send(batches)),
    }


def _cpu(work: Callable[[], None]) -> float:
    """Median CPU seconds, after one run that does not count."""
    taken = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:])


def _consume(batches: object) -> None:
    for _ in batches:  # type: ignore[attr-defined]
        pass


async def _fetch(root: Path, objects: Sequence[Path]) -> None:
    from lakehead.storage.object_store import FileStore

    store = FileStore(root)
    target = memoryview(bytearray(PIECE))
    for path in objects:
        key, size = path.relative_to(root).as_posix(), path.stat().st_size
        for start in range(0, size, PIECE):
            await store.get_range_into(key, start, target[: min(PIECE, size - start)])
    await store.close()


def _map(objects: Sequence[Path]) -> None:
    import numpy as np

    for path in objects:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        int(np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE].sum())


def _check(bodies: Sequence[bytes]) -> None:
    """One checksum over all bytes."""
    from crc32c import crc32c

    for body in bodies:
        for start in range(0, len(body), MIB):
            crc32c(memoryview(body)[start : start + MIB])


def _send(batches: Sequence[object]) -> None:
    """As a Spark worker does; the other side only reads."""
    import pyarrow as pa

    ours, theirs = socket.socketpair()

    def drain() -> None:
        target = bytearray(MIB)
        while theirs.recv_into(target):
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    with ours, ours.makefile("wb") as file:
        with pa.ipc.new_stream(file, batches[0].schema) as stream:  # type: ignore[attr-defined]
            for batch in batches:
                stream.write_batch(batch)
        file.flush()
        ours.shutdown(socket.SHUT_WR)
    reader.join()
    theirs.close()
