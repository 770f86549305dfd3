"""Connections that are closed are freed at once, one by one."""

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from lakehead.storage.object_store import MemoryStore
from tests.flood.hostile_clients import client_hello
from tests.support.node_cluster import NodeCluster
from tests.support.waiting import wait_until

LIMIT_S = 30.0
COUNT = 5


def connect_only(port: int, _: str, __: Path) -> None:
    socket.create_connection(("127.0.0.1", port), LIMIT_S).close()


def begin_a_handshake(port: int, _: str, __: Path) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        client.sendall(client_hello())
        assert client.recv(4096)


def work(port: int, protocol: str, authority: Path) -> None:
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": protocol,
        "ssl.ca.location": str(authority),
    }
    if protocol.startswith("SASL"):
        config |= {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": "s3cret",
        }
    assert AdminClient(config).list_topics(timeout=LIMIT_S).brokers


@pytest.mark.parametrize(
    ("protocol", "client"),
    [
        ("PLAINTEXT", connect_only),
        ("PLAINTEXT", work),
        ("SSL", connect_only),
        ("SSL", begin_a_handshake),
        ("SSL", work),
        ("SASL_SSL", connect_only),
        ("SASL_SSL", begin_a_handshake),
        ("SASL_SSL", work),
    ],
)
async def test_a_closed_connection_leaves_nothing_to_the_garbage_collector(
    protocol: str, client: Callable[[int, str, Path], None], tmp_path: Path
) -> None:
    authority = DevelopmentCa(tmp_path / "ca", utc(SystemClock().now_ms()))
    authority.issue("node", hosts=("localhost", "127.0.0.1"))
    node = await NodeCluster(MemoryStore()).start(
        1,
        **{
            "listeners": "PLAINTEXT://localhost:0,SSL://localhost:0,SASL_SSL://localhost:0",
            "ssl.keystore.location": str(authority.folder / "node.pem"),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "bootstrap.admin": "admin",
            "bootstrap.admin.password": "s3cret",
        },
    )
    port = node.services.addresses[protocol].port

    async def visit(count: int) -> None:
        before = node.server.accepted_total
        for _ in range(count):
            await asyncio.to_thread(client, port, protocol, authority.certificate_path)

        def are_gone() -> bool:
            server = node.server
            return server.accepted_total >= before + count and not server.connections

        assert await asyncio.to_thread(wait_until, are_gone, LIMIT_S)

    try:
        await visit(1)  # what is made once
        gc.collect()
        gc.disable()
        await visit(COUNT)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(one).__qualname__ for one in gc.garbage if is_ours(one)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await node.close()
    assert left == []


def is_ours(one: object) -> bool:
    return type(one).__module__.startswith("lakehead.broker.")
