"""The limits of a Fetch request, and epochs that diverge, over the wire. `BROKER=kafka` runs it on
Kafka.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.node_client import LIMIT_S, Client, close_clients
from tests.support.wire import Batch

MIB = 1 << 20
LARGE = Batch(values=(b"x" * 300_000,)).encode()
AT_ONCE_S, LONG_MS = 10.0, 30_000
_EPOCH_AT = 12
"""The position of the leader epoch in a batch."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_under_test(tmp_path_factory.mktemp("fetch"), *HASTY[:2]) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("t", 4)])["t"].result(20)
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    yield await Client.connect_to(server.port)
    await close_clients()


async def write(client: Client, partition: int, *batches: bytes) -> None:
    for batch in batches:
        async with asyncio.timeout(LIMIT_S):
            while True:  # the topic was made just now: it may have no leader yet
                client.produce(batch, partition=partition)
                if (await client.produced())[0] == ErrorCode.none:
                    break


async def fetched(client: Client, partition: int, offset: int = 0, **limits: Any) -> Any:
    client.fetch({partition: offset}, **limits)
    return (await client.fetched())[partition]


async def test_a_fetch_does_not_wait_for_more_than_its_limits_allow(client: Client) -> None:
    await write(client, 0, *[LARGE] * 4)
    for least in (MIB, 1 << 30):  # the batches before the limit have less than 1 MiB
        began = time.monotonic()
        found = await fetched(client, 0, min_bytes=least, max_bytes=MIB, wait_ms=LONG_MS)
        assert time.monotonic() - began < AT_ONCE_S
        assert len(found.records) >= 3 * len(LARGE)


async def test_a_fetch_waits_for_more_than_the_limits_of_its_partitions(client: Client) -> None:
    await write(client, 1, *[LARGE] * 4)
    began = time.monotonic()
    limits = {"max_bytes": 4 * MIB, "partition_max_bytes": MIB}
    found = await fetched(client, 1, min_bytes=2 * MIB, wait_ms=700, **limits)
    assert time.monotonic() - began > 0.6
    assert len(found.records) >= 3 * len(LARGE)
    found = await fetched(client, 1, min_bytes=MIB, wait_ms=LONG_MS, **limits)
    assert time.monotonic() - began < AT_ONCE_S
    assert len(found.records) >= 3 * len(LARGE)


async def test_an_offset_beyond_the_end_of_its_epoch_diverges(
    server: ServerProcess, client: Client
) -> None:
    await write(client, 2, Batch(values=(b"a", b"b")).encode())
    (epoch,) = struct.unpack_from(">i", (await fetched(client, 2)).records, _EPOCH_AT)
    found = await fetched(client, 2, 2000, last_fetched_epoch=epoch)
    assert found.error_code is ErrorCode.none
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (epoch, 2)
    assert not found.records
    for offset, no_epoch in ((2000, -1), (2000, epoch + 1), (2, epoch + 1)):
        found = await fetched(client, 2, offset, last_fetched_epoch=no_epoch)
        assert found.error_code is ErrorCode.offset_out_of_range
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for deletion in admin.delete_records([TopicPartition("t", 2, 1)]).values():
        deletion.result(20)
    found = await fetched(client, 2, 0, last_fetched_epoch=epoch)
    assert found.error_code is ErrorCode.offset_out_of_range
