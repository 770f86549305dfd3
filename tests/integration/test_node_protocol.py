"""A whole node in this process, spoken to frame by frame: order, duplicates, waiting, sessions."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.api import fetch as fetch_api
from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.setting_sources import load
from lakehead.storage.errors import WalFailed
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.object_store import Buffer, MemoryStore
from tests.support.node_client import LIMIT_S, Client, close_clients
from tests.support.wire import Batch

LATEST = -1


class GatedStore(MemoryStore):
    """A store whose data objects are not written while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if key.startswith("data/"):
            await self.gate.wait()
        await super().create(key, pieces)


class DeafStore(MemoryStore):
    """A store that answers no question about the metadata while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, key: str) -> bytes:
        if key.startswith("meta/"):
            await self.gate.wait()
        return await super().get(key)


@asynccontextmanager
async def running(store: MemoryStore | None = None, **flags: object) -> AsyncIterator[Node]:
    given = {"port": 0, "wal": "memory:?size=64MiB", "store": "memory:", "num.partitions": 2}
    settings = load({**given, **{name.replace("_", "."): v for name, v in flags.items()}})
    node = await start_node(settings, rng=random.Random(3), store=store or MemoryStore())
    try:
        yield node
    finally:
        async with asyncio.timeout(LIMIT_S):
            await node.close()
            await close_clients()


def batch(*values: bytes, **fields: Any) -> bytes:
    return Batch(values=values or (b"value",), **fields).encode()


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def with_topic(node: Node) -> Client:
    await node.replication_control.ensure("t")
    return await Client.connect(node)


async def test_pipelined_batches_are_answered_in_order() -> None:
    async with running() as node:
        client = await with_topic(node)
        for _ in range(200):
            client.produce(batch(b"a", b"b"))
        answers = [await client.produced() for _ in range(200)]
        assert answers == [(0, 2 * n) for n in range(200)]


async def test_answers_do_not_wait_for_acknowledgements_of_those_before() -> None:
    """By Nagle's algorithm they would, 40 ms each time a client keeps silent."""
    async with running() as node:
        await Client.connect(node)
        await until(lambda: bool(node.server.connections))
        (connection,) = node.server.connections
        assert connection._transport is not None
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_request_after_produce_sees_what_was_produced() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch())
        client.fetch({0: 0})
        assert await client.produced() == (0, 0)
        assert (await client.fetched())[0].high_watermark == 1


async def test_each_of_five_batches_repeated_is_answered_with_its_first_offset() -> None:
    async with running() as node:
        client = await with_topic(node)
        ids = {"producer_id": 7, "producer_epoch": 0}
        for sequence in range(8):
            client.produce(batch(base_sequence=sequence, **ids))
        assert [await client.produced() for _ in range(8)] == [(0, n) for n in range(8)]
        for sequence in (5, 3, 7, 4, 6):
            client.produce(batch(base_sequence=sequence, **ids))
            assert await client.produced() == (0, sequence)
        client.produce(batch(base_sequence=9, **ids))
        assert (await client.produced())[0] == ErrorCode.out_of_order_sequence_number
        client.produce(batch(base_sequence=8, **ids))
        assert await client.produced() == (0, 8)


async def test_producers_are_known_after_a_restart() -> None:
    store = MemoryStore()
    ids = {"producer_id": 7, "producer_epoch": 3}
    async with running(store) as node:
        client = await with_topic(node)
        for sequence in range(3):
            client.produce(batch(base_sequence=sequence, **ids))
            await client.produced()
    async with running(store) as node:
        client = await with_topic(node)
        client.produce(batch(base_sequence=1, **ids))
        assert await client.produced() == (0, 1)
        client.produce(batch(base_sequence=3, **ids))
        assert await client.produced() == (0, 3)
        client.produce(batch(base_sequence=0, producer_id=7, producer_epoch=2))
        assert (await client.produced())[0] == ErrorCode.invalid_producer_epoch


async def test_acks_0_is_not_answered_and_an_error_closes_the_connection() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch(), acks=0)
        client.produce(batch())
        assert await client.produced() == (0, 1)
        client.produce(batch(), acks=0, topic="none")
        async with asyncio.timeout(LIMIT_S):
            assert await client.reader.read() == b""


async def test_other_acks_are_refused() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch(), acks=2)
        assert (await client.produced())[0] == ErrorCode.invalid_required_acks


async def test_a_transactional_batch_without_a_transactional_id_is_refused() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch(attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0))
        code = ErrorCode.transactional_id_authorization_failed
        assert (await client.produced())[0] == code


async def test_topics_go_by_id_where_the_version_has_ids() -> None:
    async with running() as node:
        client = await with_topic(node)
        topic_id = node.topics.by_name["t"].uuid
        client.produce(batch(), topic_id=topic_id)
        assert await client.produced() == (0, 0)
        client.fetch({0: 0}, version=18, topic_id=topic_id)
        assert read_header((await client.fetched())[0].records).base_offset == 0
        unknown = type(topic_id)(int=5)
        client.produce(batch(), topic_id=unknown)
        assert (await client.produced())[0] == ErrorCode.unknown_topic_id
        client.fetch({0: 0}, version=18, topic_id=unknown)
        assert (await client.fetched())[0].error_code == ErrorCode.unknown_topic_id


async def test_a_fetch_waits_until_there_is_enough() -> None:
    async with running() as node:
        reader, writer = await with_topic(node), await Client.connect(node)
        one = len(batch())
        reader.fetch({0: 0, 1: 0}, min_bytes=3 * one, wait_ms=60_000)
        for partition in (0, 1):
            writer.produce(batch(), partition=partition)
            await writer.produced()
        waiting = asyncio.get_running_loop().create_task(reader.fetched())
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        writer.produce(batch())
        got = await waiting
        assert len(got[0].records) == 2 * one
        assert len(got[1].records) == one


@pytest.mark.parametrize(("readers", "batches"), [(2, 1), (3, 2)])
async def test_many_consumers_of_a_partition_get_several_batches_at_once(
    monkeypatch: pytest.MonkeyPatch, readers: int, batches: int
) -> None:
    monkeypatch.setattr(fetch_api, "FAN_OUT_PAUSE_S", 60.0)
    async with running() as node:
        writer = await with_topic(node)
        clients = [await Client.connect(node) for _ in range(readers)]
        for client in clients:
            client.fetch({0: 0})
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await until(lambda: len(partition.waiters) == readers)
        writer.produce(batch())
        assert await writer.produced() == (0, 0)
        for client in clients:  # none has had records before, so none waits
            assert len((await client.fetched())[0].records) == len(batch())
            client.fetch({0: 1}, wait_ms=300)
        await until(lambda: len(partition.waiters) == readers)
        for offset in (1, 2):
            writer.produce(batch())
            assert await writer.produced() == (0, offset)
        for client in clients:
            assert len((await client.fetched())[0].records) == batches * len(batch())


async def test_one_fetch_reads_many_partitions_with_few_bytes_each_from_the_store() -> None:
    async with running(num_partitions=100) as node:
        client = await with_topic(node)
        client.produce_to(dict.fromkeys(range(100), batch()))
        assert set((await client.produced_to()).values()) == {(ErrorCode.none, 0)}
        await node.engine.upload_now()
        for stream_id in list(node.engine.streams):
            node.engine.cache.forget(stream_id)
        client.fetch(dict.fromkeys(range(100), 0), min_bytes=100 * len(batch()))
        got = await client.fetched()
        assert [len(got[index].records or b"") for index in range(100)] == [len(batch())] * 100


async def test_a_fetch_ends_at_its_deadline() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, wait_ms=30)
        assert (await client.fetched())[0].records in {None, b""}


async def test_a_fetch_that_nobody_waits_for_leaves_nothing_behind() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, wait_ms=60_000)
        await client.writer.drain()
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await until(lambda: bool(partition.waiters))
        client.writer.close()
        await until(lambda: not partition.waiters)


async def test_a_fetch_from_inside_a_batch_gives_the_whole_batch() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch(b"a", b"b", b"c"))
        await client.produced()
        client.fetch({0: 2}, max_bytes=1)
        assert read_header((await client.fetched())[0].records).base_offset == 0


async def test_only_the_first_batch_may_be_larger_than_asked() -> None:
    async with running() as node:
        client = await with_topic(node)
        for partition in (0, 0, 1):
            client.produce(batch(b"x" * 1000), partition=partition)
            await client.produced()
        client.fetch({0: 0, 1: 0}, max_bytes=100)
        got = await client.fetched()
        assert len(got[0].records) == len(batch(b"x" * 1000))
        assert not got[1].records


async def test_offsets_out_of_range_are_an_error() -> None:
    async with running() as node:
        client = await with_topic(node)
        for offset in (-1, 1):
            client.fetch({0: offset})
            assert (await client.fetched())[0].error_code == ErrorCode.offset_out_of_range


async def test_a_session_remembers_and_tells_only_news() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0, 1: 0}, session=(0, 0), wait_ms=0)
        first = await client.receive()
        assert first.session_id > 0
        assert len(first.responses[0].partitions) == 2
        client.fetch({}, session=(first.session_id, 1), wait_ms=0)
        assert await client.fetched() == {}
        client.produce(batch(), partition=1)
        await client.produced()
        client.fetch({}, session=(first.session_id, 2))
        assert list(await client.fetched()) == [1]
        client.fetch({1: 1}, session=(first.session_id, 3), wait_ms=0, forgotten=[0])
        assert await client.fetched() == {}
        client.fetch({}, session=(first.session_id, 3))
        assert (await client.receive()).error_code == ErrorCode.invalid_fetch_session_epoch
        client.fetch({}, session=(first.session_id + 1, 1))
        assert (await client.receive()).error_code == ErrorCode.fetch_session_id_not_found


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    async with running() as node:
        client = await Client.connect(node)
        frame = struct.pack(">hhih", 18, 99, 5, -1) + b"\1junk"
        client.writer.write(struct.pack(">i", len(frame)) + frame)
        client._sent.append((18, 0, 5))
        answer = await client.receive()
        assert answer.error_code == ErrorCode.unsupported_version
        versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        assert versions[0] == (0, 13)
        assert versions[1] == (4, 18)
        assert versions[18] == (0, 4)


async def test_uploaded_and_evicted_data_is_fetched_from_objects() -> None:
    async with running(cache_size="8MiB", upload_age_ms=50) as node:
        client = await with_topic(node)
        value = b"x" * 500_000
        for _ in range(60):
            client.produce(batch(value))
        assert [await client.produced() for _ in range(60)] == [(0, n) for n in range(60)]
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await until(lambda: partition.stream.fetch_cached(0, 1) is None)
        offset = 0
        while offset < 60:
            client.fetch({0: offset, 1: 0}, wait_ms=500)
            records = (await client.fetched())[0].records
            assert read_header(records).base_offset == offset
            offset += len(records) // len(batch(value))


async def test_producers_wait_while_the_store_is_slow_and_nothing_is_lost() -> None:
    store = GatedStore()
    async with running(store, cache_size="8MiB", upload_age_ms=50) as node:
        client = await with_topic(node)
        store.gate.clear()
        value = b"x" * 500_000
        for _ in range(60):
            client.produce(batch(value))
        sending = asyncio.get_running_loop().create_task(client.writer.drain())
        await until(lambda: not node.is_writable())
        other = await Client.connect(node)
        other.fetch({1: 0}, wait_ms=0)
        assert (await other.fetched())[1].error_code == 0, "readers are served meanwhile"
        partition = node.topics.partition("t", 0)
        assert partition is not None
        assert partition.log_end_offset < 60
        store.gate.set()
        assert [await client.produced() for _ in range(60)] == [(0, n) for n in range(60)]
        await sending


async def test_a_deleted_topic_is_gone_for_those_who_wait_on_it() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, wait_ms=60_000)
        await client.writer.drain()
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await until(lambda: bool(partition.waiters))
        await node.replication_control.delete(node.topics.by_name["t"].topic_id)
        got = (await client.fetched())[0]
        assert got.error_code == ErrorCode.unknown_topic_or_partition


async def test_producer_ids_are_never_given_twice() -> None:
    store = MemoryStore()
    seen: list[int] = []
    module = schema(22, 4).request_module
    message = entity(module, "InitProducerIdRequest", transactional_id=None, transaction_timeout=1)
    for _ in range(2):
        async with running(store) as node:
            client = await Client.connect(node)
            for _ in range(3):
                answer = await client.ask(22, 4, message)
                assert (answer.error_code, answer.producer_epoch) == (0, 0)
                seen.append(answer.producer_id)
    assert len(set(seen)) == 6


@pytest.mark.parametrize("size", [-1, 0, 7, 101 << 20, 0x7FFFFFFF])
async def test_an_impossible_frame_length_closes_only_its_connection(size: int) -> None:
    async with running() as node:
        good, bad = await with_topic(node), await Client.connect(node)
        bad.writer.write(struct.pack(">i", size))
        async with asyncio.timeout(LIMIT_S):
            assert await bad.reader.read() == b""
        good.produce(batch())
        assert await good.produced() == (0, 0)


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with running(max_connections=2) as node:
        clients = [await Client.connect(node) for _ in range(3)]
        async with asyncio.timeout(LIMIT_S):
            assert await clients[2].reader.read() == b""


async def test_a_small_batch_does_not_keep_the_large_frame_it_came_in() -> None:
    async with running() as node:
        client = await with_topic(node)
        module = schema(0, 9).request_module
        spoilt = bytearray(batch(b"x" * 900_000))
        spoilt[-1] ^= 1
        datas = [
            entity(module, "PartitionProduceData", index=0, records=batch()),
            entity(module, "PartitionProduceData", index=1, records=bytes(spoilt)),
        ]
        topic = entity(module, "TopicProduceData", name="t", partition_data=datas)
        message = entity(module, "ProduceRequest", acks=-1, timeout=9000, topic_data=[topic])
        answer = await client.ask(0, 9, message)
        errors = [p.error_code for p in answer.responses[0].partition_responses]
        assert errors == [ErrorCode.none, ErrorCode.corrupt_message]
        partition = node.topics.partition("t", 0)
        assert partition is not None
        kept = partition.stream.fetch_cached(0, 1)
        assert kept is not None
        assert isinstance(kept[0].obj, bytearray)
        assert len(kept[0].obj) == len(batch())


async def test_a_node_whose_wal_fails_says_so_and_acknowledges_nothing() -> None:
    async with running() as node:
        client = await with_topic(node)
        node.engine.failed(WalFailed("the device is gone"))
        client.produce(batch())
        async with asyncio.timeout(LIMIT_S):
            assert "the device is gone" in str(await node.wait_failed())
    assert await client.reader.read() == b"", "closed without an answer"


async def test_who_cannot_know_whether_it_leads_answers_no_reads() -> None:
    """Not even one that was waiting already: another node may lead, and have more."""
    store = DeafStore()
    async with running(store, broker_session_timeout_ms=300) as node:
        client = await with_topic(node)
        client.produce(batch())
        assert await client.produced() == (0, 0)
        client.fetch({0: 0})
        assert (await client.fetched())[0].records
        client.fetch({0: 1}, wait_ms=400)
        store.gate.clear()
        assert (await client.fetched())[0].error_code == ErrorCode.not_leader_or_follower
        await until(lambda: not node.session.is_current())
        client.fetch({0: 0})
        assert (await client.fetched())[0].error_code == ErrorCode.not_leader_or_follower
        asked = entity(
            schema(2, 6).request_module,
            "ListOffsetsPartition",
            partition_index=0,
            current_leader_epoch=-1,
            timestamp=LATEST,
        )
        latest = await client.list_offsets(asked)
        assert latest.error_code == ErrorCode.not_leader_or_follower
        store.gate.set()
        client.fetch({0: 0})
        assert (await client.fetched())[0].records
        assert (await client.list_offsets(asked)).offset == 1
