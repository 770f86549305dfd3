"""Sources of an import that take connections, and send no response or a wrong one."""

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lakehead.broker.cli.migration import source_cluster
from lakehead.broker.cli.migration.source_brokers import Incarnation, Place, SourceBrokers
from lakehead.broker.cli.migration.source_cluster import SourceCluster
from lakehead.storage.errors import BrokerUnavailable

_METADATA = 3


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceCluster]:
    """A source that sends nothing, and waits that are short."""
    monkeypatch.setattr(source_cluster, "_RESPONSE_S", 0.3)
    monkeypatch.setattr(source_cluster, "_SILENT_MAX_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield SourceCluster(f"{host}:{port}", None, random.Random(1))


def test_configs_that_do_not_come_are_waited_for_by_the_next_round(silent: SourceCluster) -> None:
    with pytest.raises(BrokerUnavailable, match="configs of topic orders"):
        silent._configs(["orders"])


async def test_records_that_do_not_come_are_waited_for_by_the_next_round(
    silent: SourceCluster,
) -> None:
    with (
        silent.partition(Place(Incarnation("orders", ""), 0)) as reader,
        pytest.raises(BrokerUnavailable, match="orders-0: no response"),
    ):
        await anext(reader.records(0, 1))


async def test_a_connection_with_a_wrong_response_is_not_used_again() -> None:
    connections = 0
    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        shift = 0  # the first response is that to the request
        with suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                _, _, correlation = struct.unpack_from(">hhi", await reader.readexactly(size))
                versions = struct.pack(">hihhh", 0, 1, _METADATA, 0, 12)
                frame = struct.pack(">i", correlation + shift) + versions
                writer.write(struct.pack(">i", len(frame)) + frame)
                shift = 1
        writer.close()
        await writer.wait_closed()
        ended.release()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        settings = {"bootstrap.servers": f"{host}:{port}"}
        brokers = SourceBrokers(settings, None, random.Random(1))
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match="no valid response"):
                await brokers.topics()
        brokers.close()
        for _ in range(connections):
            await ended.acquire()
    assert connections == 2
