"""Frames that are no requests end their connections, and leave a bounded number of events."""

import asyncio
import struct

from structlog.testing import capture_logs

from tests.integration.test_node_protocol import running
from tests.support.node_client import LIMIT_S, Client, close_clients

COUNT = 200


async def test_a_client_of_malformed_frames_writes_few_events() -> None:
    async with running() as node:
        with capture_logs() as events:
            for number in range(COUNT):
                client = await Client.connect(node)
                size = -1 if number % 2 else -number - 2
                client.writer.write(struct.pack(">i", size) + bytes(8))
                async with asyncio.timeout(LIMIT_S):
                    assert await client.reader.read() == b""
                await close_clients()
        found = [event for event in events if event["event"] == "connection_rejected"]
        assert node.server.rejected_total == COUNT
        assert 50 <= len(found) < COUNT // 2
        assert {event["client_host"] for event in found} == {"127.0.0.1"}
