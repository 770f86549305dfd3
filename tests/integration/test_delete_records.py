"""DeleteRecords for many partitions, and while the object store does not respond."""

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.object_store import Buffer, MemoryStore
from tests.integration.test_node_protocol import GatedStore, batch, running, with_topic
from tests.support.node_client import LIMIT_S, Client


class FarStore(MemoryStore):
    """A store in which a write takes time."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await asyncio.sleep(0.005)
        await super().create(key, pieces)


async def emptied(client: Client, partitions: Sequence[int], timeout_s: float) -> Sequence[Any]:
    """Delete all records of partitions, and return the results."""
    module = schema(21, 2).request_module
    wanted = [
        entity(module, "DeleteRecordsPartition", partition_index=index, offset=-1)
        for index in partitions
    ]
    topic = entity(module, "DeleteRecordsTopic", name="t", partitions=wanted)
    timeout = dt.timedelta(seconds=timeout_s)
    request = entity(module, "DeleteRecordsRequest", topics=(topic,), timeout=timeout)
    async with asyncio.timeout(LIMIT_S):
        results: Sequence[Any] = (await client.ask(21, 2, request)).topics[0].partitions
    return results


async def test_records_of_many_partitions_are_deleted_by_few_entries_of_the_metadata() -> None:
    """One after another, each would wait for the object store."""
    count = 150
    async with running(FarStore()) as node:
        await node.replication_control.create("t", count)
        client = await Client.connect(node)
        client.produce_to({index: batch(b"a", b"b") for index in range(count)})
        assert set((await client.produced_to()).values()) == {(ErrorCode.none, 0)}
        before = node.engine.metadata.state.next_entry
        *results, unknown = await emptied(client, range(count + 1), LIMIT_S)
        assert [one.partition_index for one in results] == list(range(count))
        assert unknown.error_code is ErrorCode.unknown_topic_or_partition
        assert {(one.error_code, one.low_watermark) for one in results} == {(ErrorCode.none, 2)}
        assert node.engine.metadata.state.next_entry - before < 10


async def test_a_client_knows_in_time_that_the_object_store_does_not_respond() -> None:
    """And gets the responses to its next requests."""
    store = GatedStore()
    async with running(store) as node:
        client = await with_topic(node)
        client.produce(batch(b"a"))
        assert await client.produced() == (ErrorCode.none, 0)
        store.gate.clear()
        (late,) = await emptied(client, [0], 0.3)
        assert late.error_code is ErrorCode.request_timed_out
        store.gate.set()
        (done,) = await emptied(client, [0], LIMIT_S)
        assert (done.error_code, done.low_watermark) == (ErrorCode.none, 1)
