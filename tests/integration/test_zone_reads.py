"""Consumers read from a node of their own zone (KIP-392): three nodes in three zones, real clients.

What they read crosses no zone, and is all that was produced, in order, also while the leader or the
replica goes.
"""

import asyncio
import struct
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster import read_replicas
from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.partition.partition import follow_committed
from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.services import FetchedTo
from lakehead.storage.clock import Clock
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.metadata.records import FenceNode
from lakehead.storage.stream.stream import Stream
from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.node_cluster import LIMIT_S, NodeCluster
from tests.support.wire import FETCH, Wire, array, header, string
from tests.support.zone_cluster import RACKS, bootstrap, zones
from tests.support.zone_reader import PARTITIONS, TOPIC, ZoneReader, numbers, produce

TAILS = (TailSource.LEADER, TailSource.WAL)


def flags_of(tail: TailSource) -> dict[str, object]:
    """Flags by which nodes take the newest records from there."""
    wal = {"wal": "object:"} if tail is TailSource.WAL else {}
    return {"replica_read_tail": tail.value, **wal}


def sent(cluster: NodeCluster, fetched_to: FetchedTo) -> int:
    return sum(node.counts.sent_bytes[fetched_to] for node in cluster.nodes.values())


def assert_whole(readers: list[ZoneReader], count: int) -> None:
    for reader in readers:
        assert KafkaError._AUTO_OFFSET_RESET not in {error.code() for error in reader.errors}
        for partition in range(PARTITIONS):
            assert reader.found[partition] == numbers(count)


async def in_thread(work: Callable[..., None], *arguments: object) -> None:
    async with asyncio.timeout(2 * LIMIT_S):
        await asyncio.to_thread(work, *arguments)


@pytest.mark.parametrize("tail", TailSource)
async def test_what_consumers_read_crosses_no_zone(tail: TailSource) -> None:
    """Both what is in objects when they begin, and what comes while they read."""
    age_ms = 100 if tail is TailSource.OBJECTS else 600_000
    async with zones(upload_age_ms=age_ms, **flags_of(tail)) as cluster:
        servers = bootstrap(cluster)
        await in_thread(produce, servers, range(100))
        for node in cluster.nodes.values():
            await node.engine.upload_now()
        readers = [ZoneReader(servers, rack) for rack in RACKS.values()]
        try:
            await cluster.until(lambda: all(reader.has(100) for reader in readers))
            await in_thread(produce, servers, range(100, 300))
            await cluster.until(lambda: all(reader.has(300) for reader in readers))
            assert_whole(readers, 300)
            assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
            assert sent(cluster, FetchedTo.SAME_ZONE) > 3 * 300 * PARTITIONS
            assert (sent(cluster, FetchedTo.NODE) > 0) == (tail is TailSource.LEADER)
            logs = [node.services.read_replicas.log_bytes_total for node in cluster.nodes.values()]
            assert (min(logs) > 0) == (tail is TailSource.WAL)
            for node in cluster.nodes.values():
                assert len(node.services.read_replicas) == PARTITIONS - 2
        finally:
            for reader in readers:
                await asyncio.to_thread(reader.close)


async def test_a_batch_longer_than_other_responses_comes_to_readers_of_other_zones() -> None:
    """And keeps nothing else of its leader from them."""
    size = 3 << 20
    async with zones(upload_age_ms=600_000, message_max_bytes=2 * size) as cluster:
        servers = bootstrap(cluster)
        reader = ZoneReader(servers, RACKS[1])
        try:
            await in_thread(produce, servers, range(1))
            await cluster.until(lambda: reader.has(1))

            def produce_long() -> None:
                producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 2 * size})
                for partition in range(PARTITIONS):
                    producer.produce(TOPIC, bytes(size), partition=partition)
                assert producer.flush(LIMIT_S) == 0

            await in_thread(produce_long)
            await cluster.until(lambda: reader.has(2))
            assert all(len(reader.found[one][1]) == size for one in range(PARTITIONS))
            assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
        finally:
            await asyncio.to_thread(reader.close)


async def test_more_partitions_than_one_request_has_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_replicas, "_PARTITIONS_AT_ONCE", 1)
    async with zones(upload_age_ms=600_000) as cluster:
        servers = bootstrap(cluster)
        reader = ZoneReader(servers, RACKS[1])
        try:
            await in_thread(produce, servers, range(1))
            await cluster.until(lambda: reader.has(1))
            await in_thread(produce, servers, range(1, 20))
            await cluster.until(lambda: reader.has(20))
            assert_whole([reader], 20)
            assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
        finally:
            await asyncio.to_thread(reader.close)


@pytest.mark.parametrize("tail", TAILS)
async def test_a_replica_shows_committed_records_alone(tail: TailSource) -> None:
    """Transactions that were committed or aborted, from objects and from the tail."""
    async with zones(upload_age_ms=600_000, **flags_of(tail)) as cluster:
        servers = bootstrap(cluster)

        def transactions(count: int) -> None:
            with_id = {"bootstrap.servers": servers, "transactional.id": f"id-{count}"}
            producer = Producer(with_id)
            producer.init_transactions(LIMIT_S)
            for number in range(count):
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    for _ in range(3):
                        producer.produce(TOPIC, b"%d" % number, partition=partition)
                assert producer.flush(LIMIT_S) == 0  # an abort drops what is not sent yet
                if number % 2:
                    producer.abort_transaction(LIMIT_S)
                else:
                    producer.commit_transaction(LIMIT_S)

        await in_thread(transactions, 10)
        for node in cluster.nodes.values():
            await node.engine.upload_now()
        await in_thread(transactions, 6)
        first = [b"%d" % number for number in range(0, 10, 2) for _ in range(3)]
        second = [b"%d" % number for number in range(0, 6, 2) for _ in range(3)]
        readers = [ZoneReader(servers, rack) for rack in RACKS.values()]
        everything = ZoneReader(servers, "zone-b", "read_uncommitted")
        try:
            await cluster.until(lambda: all(one.has(len(first + second)) for one in readers))
            await cluster.until(lambda: everything.has(3 * 16))
            for reader in readers:
                assert all(reader.found[one] == first + second for one in range(PARTITIONS))
            assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
        finally:
            for reader in (*readers, everything):
                await asyncio.to_thread(reader.close)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("lost", ["leader", "replica"])
async def test_consumers_go_on_when_a_node_goes(lost: str, tail: TailSource) -> None:
    """Node 1 leads some partitions and is a replica of others: it is fenced, as a dead node is, and
    its log recovered by others. A consumer in zone b loses a leader by that, one in zone a its
    replica.
    """
    async with zones(wal="object:", replica_read_tail=tail.value, upload_age_ms=200) as cluster:
        servers = bootstrap(cluster)
        await in_thread(produce, servers, range(100))
        rack = "zone-b" if lost == "leader" else "zone-a"
        with closing(ZoneReader(servers, rack)) as reader:
            await cluster.until(lambda: reader.has(100))
            fenced = cluster.nodes.pop(1)
            record = FenceNode(node_id=1, epoch=fenced.engine.node_epoch)
            await cluster.nodes[2].engine.metadata.commit_with(lambda _: [record])
            await cluster.until(lambda: fenced.failure is not None)
            await fenced.close()
            await cluster.until(lambda: {-1, 1}.isdisjoint(cluster.leaders(TOPIC)))
            await in_thread(produce, bootstrap(cluster), range(100, 300))
            await cluster.until(lambda: reader.has(300))
            assert_whole([reader], 300)


async def test_a_consumer_whose_zone_has_no_node_reads_from_leaders() -> None:
    async with zones() as cluster:
        await in_thread(produce, bootstrap(cluster), range(50))
        with closing(ZoneReader(bootstrap(cluster), "zone-x")) as reader:
            await cluster.until(lambda: reader.has(50))
            assert_whole([reader], 50)
        assert sent(cluster, FetchedTo.OTHER_ZONE) > 0
        assert not any(len(node.services.read_replicas) for node in cluster.nodes.values())


class Fetched(NamedTuple):
    """The response for one partition."""

    code: ErrorCode
    high_watermark: int
    read_replica: int
    ends: tuple[int, ...]
    """The end of each batch."""


def fetch(
    cluster: NodeCluster,
    node_id: int,
    partition: int,
    offset: int,
    rack: str,
    epoch: int = -1,
    isolation: int = 0,
) -> Fetched:
    """Fetch v11 from a node, whatever it is for the partition; waits 2 seconds for records."""
    entry = struct.pack(">iiqqi", partition, epoch, offset, -1, 1 << 20)
    body = struct.pack(">iiiibii", -1, 2000, 1, 1 << 20, isolation, 0, -1)
    topics = array(string(TOPIC) + array(entry))
    request = header(FETCH, 11) + body + topics + array() + string(rack)
    with Wire(cluster.nodes[node_id].advertised_port) as wire:
        response = wire.ask(request)
    assert response is not None
    at = 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4
    _, code, high_watermark, _, _, aborted = struct.unpack_from(">ihqqqi", response, at)
    assert aborted == (0 if isolation and not code else -1)
    read_replica, size = struct.unpack_from(">ii", response, at + 34)
    records = memoryview(response)[at + 42 : at + 42 + size]
    ends = tuple(header.end_offset for _, header in iter_headers(records))
    return Fetched(ErrorCode(code), high_watermark, read_replica, ends)


async def test_a_read_replica_has_kafkas_errors_and_nothing_beyond_the_leaders_end() -> None:
    async with zones(upload_age_ms=600_000, metadata_poll_ms=50) as cluster:
        await in_thread(produce, bootstrap(cluster), range(20))
        at, wrong = cluster.leaders(TOPIC).index(1), "zone-c"
        epoch = cluster.nodes[1].topics.by_name[TOPIC].served(at).leader_epoch

        async def ask(node_id: int, offset: int, rack: str, its_epoch: int = -1) -> Fetched:
            return await asyncio.to_thread(fetch, cluster, node_id, at, offset, rack, its_epoch)

        sent_on = await ask(1, 0, "zone-b")
        assert sent_on == Fetched(ErrorCode.none, 20, 2, ())
        assert (await ask(1, 0, "zone-a")).read_replica == -1
        assert (await ask(1, 0, "")).ends
        assert (await ask(1, 21, "zone-b")).code is ErrorCode.offset_out_of_range

        while (found := await ask(2, 0, "zone-b", epoch)).high_watermark < 20:
            assert found.code is ErrorCode.none  # it copies what is not in objects
        assert found == Fetched(ErrorCode.none, 20, -1, found.ends)
        assert found.ends[-1] == 20
        assert await ask(2, 20, "zone-b", epoch) == Fetched(ErrorCode.none, 20, -1, ())
        assert (await ask(2, 21, "zone-b")).code is ErrorCode.offset_not_available
        assert (await ask(2, -1, "zone-b")).code is ErrorCode.offset_out_of_range
        assert (await ask(2, 0, wrong)).code is ErrorCode.not_leader_or_follower
        assert (await ask(2, 0, "")).code is ErrorCode.not_leader_or_follower
        assert (await ask(2, 0, "zone-b", epoch + 1)).code is ErrorCode.unknown_leader_epoch
        assert (await ask(2, 0, "zone-b", epoch - 1)).code in {
            ErrorCode.fenced_leader_epoch,
            ErrorCode.none,  # for the first epoch: -1 is none
        }


async def test_a_replica_that_lags_behind_objects_gives_out_nothing_beyond_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read of objects finds what the replica has yet to learn of: here an open transaction."""
    async with zones(upload_age_ms=600_000, replica_read_tail="objects") as cluster:
        servers, leader = bootstrap(cluster), cluster.nodes[1]
        await in_thread(produce, servers, range(20))
        await leader.engine.upload_now()
        at = cluster.leaders(TOPIC).index(1)
        while not (await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b")).ends:
            pass
        learns = asyncio.Event()

        async def held(
            stream: Stream, producers: ProducerStates, offset: int, clock: Clock
        ) -> None:
            await learns.wait()
            await follow_committed(stream, producers, offset, clock)

        monkeypatch.setattr(read_replicas, "follow_committed", held)
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "open"})

        def begin_transaction() -> None:
            producer.init_transactions(LIMIT_S)
            producer.begin_transaction()
            for _ in range(20):
                producer.produce(TOPIC, b"open", partition=at)
            assert producer.flush(LIMIT_S) == 0

        await in_thread(begin_transaction)
        await leader.engine.upload_now()
        stream_id = leader.topics.by_name[TOPIC].stream_ids[at]
        replica_state = cluster.nodes[2].services.metadata
        await cluster.until(lambda: replica_state.state.stream(stream_id).end_offset == 40)
        uncommitted, committed = 0, 1
        for isolation in (uncommitted, committed):
            found = await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b", isolation=isolation)
            assert found == Fetched(ErrorCode.none, 20, -1, found.ends)
            assert found.ends[-1] == 20
        learns.set()
        while True:
            found = await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b")
            if found.ends[-1] == 40:
                break
        found = await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b", isolation=committed)
        assert found == Fetched(ErrorCode.none, 40, -1, found.ends)
        assert found.ends[-1] == 20
        await in_thread(producer.abort_transaction, LIMIT_S)


async def test_a_node_that_was_fenced_serves_no_read_replica() -> None:
    """It may not know yet what the log of a partition has become."""
    async with zones(wal="object:") as cluster:
        await in_thread(produce, bootstrap(cluster), range(20))
        at = cluster.leaders(TOPIC).index(1)
        while not (await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b")).ends:
            pass
        fenced = cluster.nodes[2]
        record = FenceNode(node_id=2, epoch=fenced.engine.node_epoch)
        await cluster.nodes[1].engine.metadata.commit_with(lambda _: [record])
        await cluster.until(lambda: fenced.failure is not None)
        found = await asyncio.to_thread(fetch, cluster, 2, at, 0, "zone-b")
        assert found.code is ErrorCode.not_leader_or_follower
        assert not found.ends


async def test_a_replica_that_is_not_read_is_closed_and_its_memory_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_replicas, "IDLE_S", 0.5)
    async with zones(upload_age_ms=600_000) as cluster:
        await in_thread(produce, bootstrap(cluster), range(20))
        replicas = cluster.nodes[2].services.read_replicas
        with closing(ZoneReader(bootstrap(cluster), "zone-b")) as reader:
            await cluster.until(lambda: reader.has(20))
            assert replicas.tail_bytes > 0
        await cluster.until(lambda: len(replicas) == 0)
        assert replicas.tail_bytes == 0


@pytest.mark.parametrize("tail", TAILS)
async def test_a_tail_is_bounded_and_given_back_when_it_is_in_objects(tail: TailSource) -> None:
    """The cache has a mebibyte, less than is produced: consumers get the rest from objects."""
    flags = flags_of(tail)
    async with zones(replica_read_cache_size=1 << 20, upload_age_ms=1000, **flags) as cluster:
        servers = bootstrap(cluster)
        replicas = cluster.nodes[2].services.read_replicas
        most = 0

        def produce_much() -> None:
            producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
            for number in range(300):
                for partition in range(PARTITIONS):
                    producer.produce(TOPIC, b"%d " % number + bytes(5000), partition=partition)
                producer.poll(0)
            assert producer.flush(LIMIT_S) == 0

        with closing(ZoneReader(servers, "zone-b")) as reader:
            await in_thread(produce_much)

            def has_all() -> bool:
                nonlocal most
                most = max(most, replicas.tail_bytes)
                return reader.has(300)

            await cluster.until(has_all)
            for partition in range(PARTITIONS):
                values = [value.split(b" ")[0] for value in reader.found[partition]]
                assert values == numbers(300)
        assert most < (1 << 20) + (2 << 20)  # beyond it at most one response of each leader
        assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
        await cluster.until(lambda: replicas.tail_bytes == 0)


async def test_the_java_client_reads_in_its_zone() -> None:
    require_kafka_tools()
    async with zones() as cluster:
        servers = bootstrap(cluster)
        await in_thread(produce, servers, range(200))

        def consume() -> None:
            done = run(
                *("kafka-console-consumer", "--bootstrap-server", servers, "--topic", TOPIC),
                *("--from-beginning", "--max-messages", str(200 * PARTITIONS)),
                *("--command-property", "client.rack=zone-b", "--timeout-ms", "60000"),
            )
            assert done.returncode == 0, done.stderr
            assert len(done.stdout.split()) == 200 * PARTITIONS, done.stderr

        await in_thread(consume)
        assert sent(cluster, FetchedTo.OTHER_ZONE) == 0
        assert sent(cluster, FetchedTo.SAME_ZONE) > 0
        assert len(cluster.nodes[2].services.read_replicas) > 0
