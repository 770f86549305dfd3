"""The S3 store against a local S3 server: its overhead over its HTTP client, and large objects.

The peer is obstore's client alone, on which the store is built, on the same server in the same run.
The server is versitygw on the local disk, which never syncs: its own time is small and stable.
"""

import asyncio
import itertools
import os
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import obstore

from bench.figures import Figure
from bench.s3_server import running_server
from lakehead.storage.object_store.s3.client import object_client
from lakehead.storage.object_store.s3.store import S3Store

PART = "S3 store"
KIB = 1024
MIB = 1024 * 1024
AT_ONCE = 8
LARGE = 256 * MIB


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_mib(*, reset: bool = False) -> float:
    """Greatest resident size since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def rate(call: Callable[[int], Awaitable[object]], count: int) -> float:
    """Calls per second, some at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began)


async def against_client(store: S3Store, count: int) -> list[Figure]:
    """Small and middling requests, through the store and through its client alone."""
    client = object_client(store.settings)
    fresh = itertools.count()
    figures = []
    for size, share in ((4 * KIB, 1.0), (256 * KIB, 1.0), (8 * MIB, 0.05)):
        body = os.urandom(size)
        calls = max(AT_ONCE, int(count * share))
        name = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"

        async def put(_: int, body: bytes = body) -> None:
            await store.create(f"put/{next(fresh)}", [body])

        async def peer_put(_: int, body: bytes = body) -> None:
            await obstore.put_async(client, f"put/{next(fresh)}", body, mode="create")

        await store.create(f"get/{size}", [body])

        async def get(_: int, size: int = size) -> None:
            await store.get_range(f"get/{size}", 0, size)

        async def peer_get(_: int, size: int = size) -> None:
            await obstore.get_range_async(client, f"get/{size}", start=0, length=size)

        for what, own, peer in (("put if absent", put, peer_put), ("ranged get", get, peer_get)):
            peer_rate = await rate(peer, calls)
            figures.append(
                Figure(
                    part=PART,
                    name=f"{what}, {name}, {AT_ONCE} at once",
                    value=await rate(own, calls),
                    unit="1/s",
                    peer="obstore alone",
                    peer_value=peer_rate,
                )
            )
    return figures


async def large_object(store: S3Store, name: str) -> list[Figure]:
    """One object of 256 MiB of pieces of 16 KiB."""
    piece = os.urandom(16 * KIB)
    pieces = [piece] * (LARGE // len(piece))
    before_mib = peak_mib(reset=True)
    cpu, began = cpu_seconds(), time.perf_counter()
    await store.create(f"large/{name}", pieces)
    seconds = time.perf_counter() - began
    figures = {
        "MB/s": LARGE / seconds / 1e6,
        "CPU s/GB": (cpu_seconds() - cpu) / LARGE * 1e9,
        "MiB of memory": peak_mib() - before_mib,
    }
    return [
        Figure(
            part=PART,
            name=f"256 MiB {name}",
            value=value,
            unit=unit,
            more_is_better=unit == "MB/s",
        )
        for unit, value in figures.items()
    ]


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    with running_server(folder / "buckets") as s3:
        os.environ.update(s3.environment)
        store = S3Store(f"{s3.uri}/bench")
        figures = await against_client(store, 100 if quick else 1000)
        await store.in_thread(lambda: store.multipart.client)  # not its imports
        figures += await large_object(store, "in parts")
        store.may_multipart = False
        figures += await large_object(store, "in one request")
        await store.close()
        return figures
