"""Reads of old data that hang, fail or want much, in a whole node: who else notices."""

import asyncio
import datetime as dt
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.metadata import records as r
from lakehead.storage.stream.log_cache import CacheBlock, CachedBatch
from lakehead.storage.stream.upload import UploadSet
from tests.integration.test_node_protocol import DeafStore, batch, running, until, with_topic
from tests.support.node_client import LIMIT_S, Client

VALUE = b"x" * 10_000


class HeldStore(DeafStore):
    """Reads of data wait while `data_gate` is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.data_gate = asyncio.Event()
        self.data_gate.set()
        self.waiting = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.waiting += 1
        await self.data_gate.wait()
        self.waiting -= 1
        return await super().get_range(key, start, length)


async def produce(client: Client, partition: int, count: int) -> None:
    for _ in range(count):
        client.produce(batch(VALUE), partition=partition)
    for _ in range(count):
        assert (await client.produced())[0] == 0


async def make_cold(node: Node, index: int) -> None:
    """Have a partition's data in objects alone."""
    await node.engine.upload_now()
    partition = node.topics.partition("t", index)
    assert partition is not None
    node.engine.cache.forget(partition.stream.stream_id)


async def test_nobody_waits_for_the_cold_reads_of_another() -> None:
    store = HeldStore()
    async with running(store) as node:
        client, other = await with_topic(node), await Client.connect(node)
        await produce(client, 0, 20)
        await make_cold(node, 0)
        store.data_gate.clear()
        client.fetch({0: 0}, wait_ms=60_000)
        await until(lambda: store.waiting > 0)
        versions = entity(
            schema(18, 3).request_module,
            "ApiVersionsRequest",
            client_software_name="x",
            client_software_version="1",
        )
        for number in range(20):
            await produce(other, 0, 1)
            other.fetch({0: 20 + number})
            assert read_header((await other.fetched())[0].records).base_offset == 20 + number
            assert (await other.ask(18, 3, versions)).error_code == 0
        assert store.waiting > 0
        store.data_gate.set()
        assert read_header((await client.fetched())[0].records).base_offset == 0


async def test_what_is_in_memory_does_not_wait_for_what_is_not() -> None:
    store = HeldStore()
    async with running(store) as node:
        client = await with_topic(node)
        await produce(client, 0, 3)
        await make_cold(node, 0)
        await produce(client, 1, 1)
        store.data_gate.clear()
        client.fetch({0: 0, 1: 0}, wait_ms=60_000)
        found = await client.fetched()
        assert found[1].records
        assert (found[0].error_code, found[0].records or b"") == (0, b"")
        store.data_gate.set()
        client.fetch({0: 0, 1: 1}, wait_ms=60_000)
        assert (await client.fetched())[0].records


async def test_a_damaged_partition_spoils_no_other_of_its_fetch() -> None:
    store = HeldStore()
    async with running(store) as node:
        client = await with_topic(node)
        await produce(client, 0, 1)
        await make_cold(node, 0)
        (key,) = [key for key in store.objects if key.startswith("data/")]
        body = store.objects[key]
        middle = body.index(VALUE) + 5
        store.objects[key] = body[:middle] + b"?" + body[middle + 1 :]
        await produce(client, 1, 1)
        await make_cold(node, 1)
        for _ in range(2):
            client.fetch({0: 0, 1: 0}, wait_ms=1000)
            found = await client.fetched()
            assert found[0].error_code == ErrorCode.kafka_storage_error
            assert read_header(found[1].records).base_offset == 0


@pytest.mark.parametrize("is_cold", [False, True])
async def test_partitions_take_turns_where_one_answer_cannot_hold_them_all(is_cold: bool) -> None:
    async with running(num_partitions=4) as node:
        client = await with_topic(node)
        for partition in range(4):
            await produce(client, partition, 20)
            if is_cold:
                await make_cold(node, partition)
        reached = dict.fromkeys(range(4), 0)
        client.fetch(reached, session=(0, 0), max_bytes=25_000)
        answer = await client.receive()
        session_id = answer.session_id
        for epoch in range(1, 17):
            changed = {}
            for got in answer.responses[0].partitions if answer.responses else ():
                for_this = _end(got.records)
                if for_this >= 0:
                    changed[got.partition_index] = reached[got.partition_index] = for_this
            assert max(reached.values()) - min(reached.values()) <= 4, reached
            client.fetch(changed, session=(session_id, epoch), max_bytes=25_000)
            answer = await client.receive()
        assert min(reached.values()) >= 4


def _end(records: Any) -> int:
    """The offset after the last whole batch; -1 without any."""
    end, rest = -1, memoryview(records or b"")
    while rest:
        header = read_header(rest)
        end, rest = header.end_offset, rest[header.size :]
    return end


async def test_a_node_closes_while_its_reads_hang() -> None:
    store = HeldStore()
    async with running(store) as node:
        client = await with_topic(node)
        await produce(client, 0, 3)
        await make_cold(node, 0)
        store.data_gate.clear()
        client.fetch({0: 0}, wait_ms=60_000)
        await until(lambda: store.waiting > 0)
        async with asyncio.timeout(LIMIT_S):
            await node.close()
            assert await client.reader.read() == b""


async def test_a_batch_that_nobody_can_read_does_not_stop_searches_by_timestamp() -> None:
    """It has a right checksum, so it was taken; what is in it only its consumers find out."""
    async with running() as node:
        client = await with_topic(node)
        client.produce(batch(b"good", timestamp=1000))
        client.produce(batch(b"", body=b"no lz4", attributes=3, timestamp=2000))
        client.produce(batch(b"good", timestamp=3000))
        assert [await client.produced() for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
        module = schema(2, 6).request_module
        for timestamp, expected in ((500, (0, 1000)), (1500, (1, 2000)), (2500, (2, 3000))):
            asked = entity(
                module,
                "ListOffsetsPartition",
                partition_index=0,
                current_leader_epoch=-1,
                timestamp=timestamp,
            )
            answer = await client.list_offsets(asked)
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, *expected)


async def test_a_search_that_outlasts_the_session_is_served_by_the_next_leader() -> None:
    """Another node may lead by then: what is found here may not be what it has."""
    store = HeldStore()
    async with running(store, broker_session_timeout_ms=300) as node:
        client = await with_topic(node)
        await produce(client, 0, 3)
        await make_cold(node, 0)
        asked = entity(
            schema(2, 6).request_module,
            "ListOffsetsPartition",
            partition_index=0,
            current_leader_epoch=-1,
            timestamp=0,
        )
        store.data_gate.clear()
        search = asyncio.create_task(client.list_offsets(asked))
        await until(lambda: store.waiting > 0)
        store.gate.clear()
        await until(lambda: not node.session.is_current())
        store.data_gate.set()
        assert (await search).error_code == ErrorCode.not_leader_or_follower
        store.gate.set()
        assert (await client.list_offsets(asked)).offset == 0


async def test_a_search_that_outlasts_the_session_gives_no_end_of_the_next_partition() -> None:
    """It is that of another node by then, which has acknowledged more."""
    store = HeldStore()
    async with running(store, broker_session_timeout_ms=300) as node:
        client = await with_topic(node)
        await produce(client, 0, 3)
        await make_cold(node, 0)
        module = schema(2, 6).request_module
        partitions = [
            entity(
                module,
                "ListOffsetsPartition",
                partition_index=index,
                current_leader_epoch=-1,
                timestamp=timestamp,
            )
            for index, timestamp in ((0, 0), (1, -1))
        ]
        topics = [entity(module, "ListOffsetsTopic", name="t", partitions=partitions)]
        asked = entity(
            module, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics
        )
        store.data_gate.clear()
        search = asyncio.create_task(client.ask(2, 6, asked))
        await until(lambda: store.waiting > 0)
        store.gate.clear()
        await until(lambda: not node.session.is_current())
        store.data_gate.set()
        found = (await search).topics[0].partitions
        assert [one.error_code for one in found] == [ErrorCode.not_leader_or_follower] * 2
        store.gate.set()


async def inherit_records(
    node: Node, stream_id: int, payload: bytes, count: int = 1
) -> r.CommitTail:
    """Have a stream open behind records that are in the log of another node, and return the entry
    that brings their object.
    """
    metadata, uploader = node.engine.metadata, node.engine.uploader
    await metadata.commit(
        [
            r.RegisterNode(node_id=7, epoch=0, incarnation="i", host="127.0.0.1", port=1),
            r.AssignStreams(node_id=7, stream_ids=(stream_id,)),
        ]
    )
    await until(lambda: not metadata.state.stream(stream_id).is_open)
    state = metadata.state
    infos = {stream_id: state.stream_info(stream_id, None)}
    epoch = state.stream(stream_id).epoch + 1
    block = CacheBlock()
    block.add(stream_id, CachedBatch(0, count, epoch, 0, memoryview(payload)))
    upload_set = UploadSet(block=block, infos=infos)
    await uploader.write(upload_set, in_few=True)
    described = {stream_id: msgspec.structs.replace(infos[stream_id], headers=b"")}
    tail = await uploader.write_tail(upload_set.objects[0].ranges, described)
    await metadata.commit(
        [
            r.OpenStream(stream_id=stream_id, epoch=epoch, node_id=7, node_epoch=0),
            r.FenceNode(node_id=7, epoch=0),
            r.InheritTail(node_id=7, node_epoch=0, taker_id=0, taker_epoch=0, objects=(tail,)),
            r.AssignStreams(node_id=0, stream_ids=(stream_id,)),
        ]
    )
    await until(lambda: metadata.state.stream(stream_id).epoch > epoch)
    return r.CommitTail(
        node_id=7,
        taker_id=0,
        taker_epoch=0,
        sources=(tail.key,),
        objects=tuple(upload_set.objects),
        streams=(stream_id,),
    )


async def test_a_fetch_of_records_that_another_node_still_uploads_ends_at_its_deadline() -> None:
    """It holds no memory for them meanwhile, and has them as soon as they are there."""
    async with running() as node:
        client = await with_topic(node)
        stream_id = node.topics.by_name["t"].stream_ids[0]
        commit_tail = await inherit_records(node, stream_id, batch())
        await until(lambda: node.topics.partition("t", 0) is not None)
        client.fetch({0: 0}, wait_ms=100)
        found = (await client.fetched())[0]
        assert (found.error_code, bytes(found.records or b"")) == (0, b"")
        assert found.high_watermark == 1
        client.fetch({0: 0}, wait_ms=60_000)
        await asyncio.sleep(0.05)
        assert node.memory.responses.used == 0
        await node.engine.metadata.commit([commit_tail])
        assert read_header((await client.fetched())[0].records).base_offset == 0


def search(partition: int, version: int) -> Any:
    """A request for the first record since time 0, which may wait for 100 ms where it says so."""
    module = schema(2, version).request_module
    asked = entity(
        module,
        "ListOffsetsPartition",
        partition_index=partition,
        current_leader_epoch=-1,
        timestamp=0,
    )
    topics = (entity(module, "ListOffsetsTopic", name="t", partitions=(asked,)),)
    return entity(
        module,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=topics,
        **({"timeout": dt.timedelta(milliseconds=100)} if version >= 10 else {}),
    )


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (10, ErrorCode.offset_not_available),
        (5, ErrorCode.offset_not_available),
        (4, ErrorCode.leader_not_available),
    ],
)
async def test_a_search_in_records_that_another_node_still_uploads_ends_at_its_deadline(
    version: int, error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests behind it on its connection wait no longer."""
    if version < 10:
        monkeypatch.setattr("lakehead.broker.api.list_offsets._UPLOAD_WAIT_S", 0.1)
    async with running() as node:
        client = await with_topic(node)
        stream_id = node.topics.by_name["t"].stream_ids[0]
        commit_tail = await inherit_records(node, stream_id, batch())
        await until(lambda: node.topics.partition("t", 0) is not None)
        found = (await client.ask(2, version, search(0, version))).topics[0].partitions[0]
        assert (found.error_code, found.offset) == (error, -1)
        await node.engine.metadata.commit([commit_tail])
        found = (await client.ask(2, version, search(0, version))).topics[0].partitions[0]
        assert (found.error_code, found.offset) == (0, 0)


async def test_fetches_at_many_offsets_of_a_tail_leave_one_task_behind() -> None:
    """A tail may stay for long where its log is lost, and clients come again and again."""
    async with running() as node:
        client, count = await with_topic(node), 20
        stream_id = node.topics.by_name["t"].stream_ids[0]
        commit_tail = await inherit_records(node, stream_id, batch(*[b"value"] * count), count)
        await until(lambda: node.topics.partition("t", 0) is not None)
        for offset in range(count):
            client.fetch({0: offset}, wait_ms=0)
            assert (await client.fetched())[0].error_code == 0
        assert len(node.services.cold_reads._uploads) == 1
        await node.engine.metadata.commit([commit_tail])
        await until(lambda: not node.services.cold_reads._uploads)
        client.fetch({0: count - 1}, wait_ms=60_000)
        assert read_header((await client.fetched())[0].records).base_offset == 0
