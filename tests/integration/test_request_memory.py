"""Clients that make a node hold much: the node's memory stays within its settings, and the others
are served as before.
"""

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import cramjam
import pytest

from bench.process import ServerProcess
from bench.storage.cold_read import MemoryWatch
from lakehead.broker.open_files import raise_open_file_limit
from tests.support.forked_server import forked_server
from tests.support.traffic import create_topic
from tests.support.wire import (
    LIST_OFFSETS,
    Batch,
    Wire,
    array,
    fetch_request,
    frame,
    header,
    produce_request,
    string,
    varint,
)

MIB = 1 << 20
COLD, BOMB, HONEST = "cold", "bomb", "honest"
COLD_BATCHES = 64
COLD_PARTITIONS = 2
COLD_VALUE = bytes(900_000)
SETTINGS = {
    "cache.size": 16 * MIB,
    "block.cache.size": 16 * MIB,
    "index.cache.size": 4 * MIB,
    "cold.read.size": 8 * MIB,
    "wal.pending.size": 8 * MIB,
    "request.memory.size": 64 * MIB,
}
FLAGS = (
    *(part for name, value in SETTINGS.items() for part in (f"--{name}", str(value))),
    *("--upload.size", str(8 * MIB), "--upload.age.ms", "200", "--wal.size", str(64 * MIB)),
    *("--maintain", "false"),
)
ONE_MORE = 2 * 64 * MIB
"""Of each part of the memory one request may go beyond it: a search that inflates 64 MiB, and what
the allocator keeps of the one before.
"""
SLACK = 64 * MIB
BOUND = sum(SETTINGS.values()) + ONE_MORE + SLACK
ROUNDS = 200
NOTICED_S = 0.01
"""A busy machine's scheduler alone makes such a difference."""


@contextmanager
def loaded_server(folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """A node with cold records in one topic, and in another 60 KiB that inflate to 63 MiB."""
    raise_open_file_limit()
    with forked_server(folder, *FLAGS, *flags) as server:
        for topic, partitions in ((COLD, COLD_PARTITIONS), (BOMB, 1), (HONEST, 1)):
            create_topic(server.bootstrap, topic, partitions)
        with Wire(server.port) as wire:
            records = Batch(values=(COLD_VALUE,)).encode()
            for number in range(COLD_BATCHES * COLD_PARTITIONS):
                assert wire.produce_error(COLD, number % COLD_PARTITIONS, records) == 0
            assert wire.produce_error(BOMB, 0, bomb()) == 0
        yield server


def bomb(count: int = 8_000_000) -> bytes:
    """A batch of millions of records, the last of which is the latest."""
    record = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(0)
    records = (varint(len(record)) + record) * count
    body = bytes(cramjam.zstd.compress(records))
    encoded = bytearray(Batch(values=(), attributes=4, body=body, record_count=count).encode())
    return with_last_offset(encoded, count - 1)


def with_last_offset(batch: bytearray, delta: int) -> bytes:
    """Set a batch's last offset delta and greatest timestamp, and its checksum after them."""
    from crc32c import crc32c

    struct.pack_into(">i", batch, 23, delta)
    struct.pack_into(">q", batch, 35, struct.unpack_from(">q", batch, 27)[0] + 1)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def search_request(topic: str, timestamp: int) -> bytes:
    entry = struct.pack(">iq", 0, timestamp)
    return header(LIST_OFFSETS, 1) + struct.pack(">i", -1) + array(string(topic) + array(entry))


def open_deaf(stack: ExitStack, server: ServerProcess, count: int) -> list[Wire]:
    """Consumers that want all of the cold records, from many places, and take one byte."""
    wires = []
    for number in range(count):
        partition, offset = number % COLD_PARTITIONS, number * 7 % (COLD_BATCHES // 2)
        request = frame(fetch_request(COLD, partition, offset))
        wires += open_with(stack, server, request, 1)
        with suppress(TimeoutError):  # so that no two share a read
            wires[-1].socket.settimeout(0.2 if number < 40 else 0.001)
            wires[-1].socket.recv(1)
    return wires


def open_searches(stack: ExitStack, server: ServerProcess, count: int) -> list[Wire]:
    """Clients that ask for the first record after all but the last of a batch of millions."""
    request = frame(search_request(BOMB, 1_700_000_000_001))
    return open_with(stack, server, request, count)


def open_with(stack: ExitStack, server: ServerProcess, request: bytes, count: int) -> list[Wire]:
    wires = []
    for _ in range(count):
        wire = stack.enter_context(Wire(server.port))
        wire.send(request)
        wires.append(wire)
    return wires


def rounds(wire: Wire, count: int) -> list[float]:
    """Produce a record and read it back, again and again; return how long each round took."""
    times = []
    records = Batch(values=(b"x" * 1000,)).encode()
    offset = wire.end_offset(HONEST, 0)
    for number in range(count):
        began = time.monotonic()
        assert wire.ask(produce_request(HONEST, 0, records)) is not None
        answer = wire.ask(fetch_request(HONEST, 0, offset + number))
        times.append(time.monotonic() - began)
        assert answer is not None
        assert records[61:] in answer
    return sorted(times)


def percentile(times: list[float], share: float) -> float:
    return times[int(share * (len(times) - 1))]


def test_consumers_that_take_nothing_stay_within_the_memory_for_requests(tmp_path: Path) -> None:
    with loaded_server(tmp_path) as server, Wire(server.port) as honest, ExitStack() as stack:
        watch = MemoryWatch(server.process.pid)
        idle = watch.process.memory_info().rss
        watch.start()
        rounds(honest, 20)
        open_deaf(stack, server, 40)
        during = rounds(honest, ROUNDS)
        watch.stop()
        print(
            f"idle {idle / MIB:.0f} peak {watch.peak / MIB:.0f} p99 {percentile(during, 0.99):.4f}"
        )
    assert watch.peak - idle < BOUND - ONE_MORE, f"{(watch.peak - idle) / MIB:.0f} MiB more"


def test_searches_for_timestamps_stay_within_the_memory_for_requests(tmp_path: Path) -> None:
    with loaded_server(tmp_path) as server, Wire(server.port) as honest, ExitStack() as stack:
        watch = MemoryWatch(server.process.pid)
        idle = watch.process.memory_info().rss
        watch.start()
        rounds(honest, 20)
        open_searches(stack, server, 40)
        during = rounds(honest, ROUNDS)
        watch.stop()
        print(
            f"idle {idle / MIB:.0f} peak {watch.peak / MIB:.0f} p99 {percentile(during, 0.99):.4f}"
        )
    assert watch.peak - idle < BOUND, f"{(watch.peak - idle) / MIB:.0f} MiB more"


@pytest.mark.slow
def test_a_thousand_of_each_at_most_double_the_latency_of_others(tmp_path: Path) -> None:
    """Judged by the median of several 99th percentiles: a busy machine has moments of its own."""
    with loaded_server(tmp_path) as server, Wire(server.port) as honest:
        watch = MemoryWatch(server.process.pid)
        idle = watch.process.memory_info().rss
        watch.start()
        before = typical_p99(honest)
        with ExitStack() as stack:
            open_deaf(stack, server, 1000)
            open_searches(stack, server, 1000)
            during = typical_p99(honest)
        after = typical_p99(honest)
        watch.stop()
    print(idle // MIB, watch.peak // MIB, before, during, after)
    assert watch.peak - idle < BOUND, f"{(watch.peak - idle) / MIB:.0f} MiB more"
    assert during < 2 * max(before, after, NOTICED_S)


def typical_p99(wire: Wire) -> float:
    return sorted(percentile(rounds(wire, 300), 0.99) for _ in range(7))[3]
