"""Requests at a rate, the same for each node: the result does not depend on the client's batches
while it and all servers share a machine's cores.

A node's producer sends it a request of BATCHES batches, each for another of its partitions, at a
fixed rate, without waiting for earlier responses. Its consumer reads the written records, one
partition after the other, FETCH_BATCHES batches in each request, and again from the start.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.workloads import RunFailed
from tests.support.wire import PRODUCE, Batch, array, data, fetch_request, frame, header, string

RECORD_BYTES, RECORDS, BATCHES, FETCH_BATCHES = 1024, 15, 4, 16
BATCH = Batch(values=(b"v" * RECORD_BYTES,) * RECORDS).encode()
PRODUCE_BYTES = BATCHES * RECORDS * RECORD_BYTES
FETCH_BYTES = FETCH_BATCHES * RECORDS * RECORD_BYTES
"""Bytes of record values in a request, or in its response."""
IN_FLIGHT = 64
"""Most requests without a response; with more of them a load falls behind its rate."""

_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqqih")
_FETCHED = struct.Struct(">ihqqii")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """A topic whose partitions are all led by the node at `port`."""

    port: int
    topic: str
    partitions: int


async def produce(loads: Sequence[NodeLoad], rate: float, seconds: float) -> float:
    """Send each node `rate` bytes of values a second; return how many bytes all have taken.

    Raises RunFailed if a batch is refused.
    """
    count = int(rate * seconds / PRODUCE_BYTES)

    async def one(load: NodeLoad) -> None:
        requests = [
            _produce_request(load.topic, range(first, first + BATCHES))
            for first in range(0, load.partitions, BATCHES)
        ]
        await _send(load, itertools.cycle(requests), _check_taken, count, PRODUCE_BYTES / rate)

    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(one(load))
    return float(count * PRODUCE_BYTES * len(loads))


async def consume(loads: Sequence[NodeLoad], held: int, rate: float, seconds: float) -> float:
    """Read from each node `rate` bytes of values a second out of the first `held` bytes of its
    topic; return the number of bytes read. Raises RunFailed if a response is not full.
    """
    count = int(rate * seconds / FETCH_BYTES)

    async def one(load: NodeLoad) -> None:
        each = held // FETCH_BYTES // load.partitions
        requests = [
            frame(fetch_request(load.topic, partition, offset, FETCH_BATCHES * len(BATCH)))
            for partition in range(load.partitions)
            for offset in range(0, each * FETCH_BATCHES * RECORDS, FETCH_BATCHES * RECORDS)
        ]
        await _send(load, itertools.cycle(requests), _check_full, count, FETCH_BYTES / rate)

    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(one(load))
    return float(count * FETCH_BYTES * len(loads))


def _produce_request(topic: str, partitions: Sequence[int]) -> bytes:
    entries = [_INT32.pack(partition) + data(BATCH) for partition in partitions]
    settings = string(None) + struct.pack(">hi", -1, 10_000)
    return frame(header(PRODUCE, 8) + settings + array(string(topic) + array(*entries)))


def _check_taken(topic: str, answer: bytes) -> None:
    begin = 4 + 4 + 2 + len(topic) + 4
    errors = [
        _PARTITION.unpack_from(answer, begin + number * _PARTITION.size)[1]
        for number in range(BATCHES)
    ]
    if any(errors):
        raise RunFailed(f"{topic}: produce errors {errors}")


def _check_full(topic: str, answer: bytes) -> None:
    _, error, _, _, _, size = _FETCHED.unpack_from(answer, 4 + 4 + 4 + 2 + len(topic) + 4)
    if error or size != FETCH_BATCHES * len(BATCH):
        raise RunFailed(f"{topic}: fetch error {error}, {size} bytes")


async def _send(
    load: NodeLoad,
    requests: Iterator[bytes],
    check: Callable[[str, bytes], None],
    count: int,
    interval_s: float,
) -> None:
    """Send `count` requests, one each interval, and check each response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def read() -> None:
        for _ in range(count):
            size = _INT32.unpack(await reader.readexactly(_INT32.size))[0]
            check(load.topic, await reader.readexactly(size))
            slots.release()

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        began = asyncio.get_running_loop().time()
        for number, request in enumerate(itertools.islice(requests, count)):
            late = asyncio.get_running_loop().time() - began - number * interval_s
            if late < 0:
                await asyncio.sleep(-late)
            await slots.acquire()
            writer.write(request)
    writer.close()
