"""Very many producers of one partition, among processes: what uploads have of them, and the node
that leads next.
"""

import asyncio
import os
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c

from bench.lakehead_cluster import ClusterNode, LakeheadCluster
from lakehead.storage.format.stream_object import read_index
from lakehead.storage.object_store.file import FileStore
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until
from tests.support.wire import Batch, Wire, frame, produce_request

PRODUCERS = int(os.environ.get("PRODUCERS", "1000000"))
CLIENTS, PIPELINED = 4, 50
STATE_MAX, TAKEOVER_S_MAX = 1024 * 1024, 3.0
TOPIC = "many"
_PRODUCER_ID_AT, _CRC_AT, _CRC_FROM = 43, 17, 21


def frames(first: int, count: int) -> Iterator[bytes]:
    """Yield the first batch of each of so many producers, in a request of its own."""
    batch = Batch(producer_id=0, producer_epoch=0, base_sequence=0).encode()
    whole = bytearray(frame(produce_request(TOPIC, 0, batch)))
    at = len(whole) - len(batch)
    for producer_id in range(first, first + count):
        struct.pack_into(">q", whole, at + _PRODUCER_ID_AT, producer_id)
        struct.pack_into(">I", whole, at + _CRC_AT, crc32c(bytes(whole[at + _CRC_FROM :])))
        yield bytes(whole)


def flood(port: int, first: int, count: int) -> None:
    """Let so many producers send, some requests ahead of their responses."""
    waiting = 0
    with Wire(port) as client:
        for one in frames(first, count):
            client.send(one)
            waiting += 1
            if waiting == PIPELINED:
                check_response(client)
                waiting -= 1
        for _ in range(waiting):
            check_response(client)


def check_response(client: Wire) -> None:
    answer = client.receive()
    assert answer is not None
    assert struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4) == (0,)


def code_of(port: int, producer_id: int, sequence: int) -> int | None:
    batch = Batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence).encode()
    try:
        with Wire(port) as client:
            return client.produce_error(TOPIC, 0, batch)
    except OSError:
        return None


def leader_of(nodes: list[ClusterNode], producer_id: int) -> ClusterNode:
    """Return the first node that takes a batch, as soon as there is one."""
    found: list[ClusterNode] = []

    def is_there() -> bool:
        found.extend(node for node in nodes if code_of(node.server.port, producer_id, 0) == 0)
        return bool(found)

    assert wait_until(is_there, 60)
    return found[0]


def lag_of(node: ClusterNode) -> str:
    return f"lag {node.metric('lakehead_event_loop_lag_max_seconds') * 1000:.0f} ms"


class Honest:
    """A client that sends a record now and then, and how long each took."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port,))
        self._thread.start()

    def _run(self, port: int) -> None:
        with Wire(port) as client:
            while not self.is_over.wait(0.05):
                began = time.monotonic()
                assert client.produce_error(TOPIC, 0, Batch().encode()) == 0
                self.times.append(time.monotonic() - began)

    def stop(self) -> None:
        self.is_over.set()
        self._thread.join()


async def state_sizes(folder: Path) -> list[int]:
    """Return what each object has of the partition's state."""
    store, sizes = FileStore(folder), list[int]()
    for entry in await store.list("data/"):
        for info in (await read_index(store, entry.key)).streams.values():
            sizes.append(len(info.state or b""))
    return sizes


@pytest.mark.slow
def test_a_million_producers_do_not_hold_up_others_nor_the_next_leader(tmp_path: Path) -> None:
    flags = (
        *("--default.replication.factor", "1", "--upload.age.ms", "5000"),
        *("--max.producer.ids.per.partition", str(2 * PRODUCERS)),
    )
    with LakeheadCluster(tmp_path, *flags) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1)
        leader = leader_of(cluster.nodes, 5_000_000)
        honest, began = Honest(leader.server.port), time.monotonic()
        each = PRODUCERS // CLIENTS
        with ThreadPoolExecutor(CLIENTS) as pool:
            sent = [pool.submit(flood, leader.server.port, n * each, each) for n in range(CLIENTS)]
            for one in sent:
                one.result()
        took = time.monotonic() - began
        honest.stop()
        known = leader.metric("lakehead_producer_ids")
        report = (
            f"load {os.getloadavg()[0]:.0f}; {known:.0f} producers in {took:.0f} s, "
            f"{leader.metric('lakehead_uploads_total'):.0f} uploads, "
            f"{leader.metric('lakehead_upload_bytes_total') / 1e6:.0f} MB; {lag_of(leader)}"
        )
        assert known == each * CLIENTS + 1
        sizes = asyncio.run(state_sizes(tmp_path / "data" / "store"))
        leader.kill()
        began = time.monotonic()
        taker = leader_of([node for node in cluster.nodes if node is not leader], 6_000_000)
        takeover = time.monotonic() - began
        after = taker.metric("lakehead_producer_ids")
        latencies = sorted(honest.times)
        shown = [latencies[len(latencies) * n // 100] * 1000 for n in (50, 99)]
        print(
            f"{report}, state of an upload {max(sizes)} bytes at most; another client: p50 "
            f"{shown[0]:.0f} ms, p99 {shown[1]:.0f} ms, {latencies[-1] * 1000:.0f} ms at most; "
            f"takeover {takeover:.2f} s, {lag_of(taker)} there"
        )
        assert after == known + 1
        assert max(sizes) < STATE_MAX
        for producer_id in (0, each, 2 * each - 1, CLIENTS * each - 1):
            assert code_of(taker.server.port, producer_id, 0) == 0, "it is known as a repetition"
            assert code_of(taker.server.port, producer_id, 2) == 45, "out of order"
            assert code_of(taker.server.port, producer_id, 1) == 0
        assert takeover < TAKEOVER_S_MAX
