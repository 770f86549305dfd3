"""Listeners with TLS: real clients, certificates that are wrong, and certificates that change."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from lakehead.broker.node import Node
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock
from lakehead.storage.object_store import MemoryStore
from tests.support.foreign_clients import (  # type: ignore[attr-defined]
    KafkaConsumer,
    KafkaProducer,
)
from tests.support.node_cluster import NodeCluster
from tests.support.waiting import wait_until

LIMIT_S = 30.0
HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentCa:
    made = DevelopmentCa(tmp_path / "ca", utc(SystemClock().now_ms()))
    made.issue("node", hosts=HOSTS)
    made.issue("client", is_client_only=True)
    return made


def tls(authority: DevelopmentCa, **more: object) -> dict[str, object]:
    return {
        "listeners": "SSL://localhost:0",
        "ssl.keystore.location": str(authority.folder / "node.pem"),
        "ssl.truststore.location": str(authority.certificate_path),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@asynccontextmanager
async def serving(flags: dict[str, object]) -> AsyncIterator[Node]:
    cluster = NodeCluster(MemoryStore())
    node = await cluster.start(1, **flags)
    try:
        yield node
    finally:
        await node.close()


def librdkafka(node: Node, authority: DevelopmentCa, **more: object) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"localhost:{node.advertised_port}",
        "security.protocol": "SSL",
        "log_level": 0,
        "ssl.ca.location": str(authority.certificate_path),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def with_certificate(authority: DevelopmentCa, name: str = "client") -> dict[str, str]:
    path = str(authority.folder / f"{name}.pem")
    return {"ssl.certificate.location": path, "ssl.key.location": path}


def produce_and_consume(config: dict[str, Any], values: list[bytes], topic: str = "t") -> None:
    producer = Producer({**config, "enable.idempotence": True, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: list[Any] = []
        while len(found) < len(values):
            batch = consumer.consume(1000, LIMIT_S)
            assert batch, "records are missing"
            found += [message.value() for message in batch if message.error() is None]
        assert sorted(found) == sorted(values)
    finally:
        consumer.close()


def metadata_error(config: dict[str, Any]) -> str:
    """Return the errors that a client has with the cluster; empty without."""
    errors: list[str] = []
    told: dict[str, Any] = {**config, "error_cb": lambda error: errors.append(error.str())}
    admin = AdminClient(told)
    try:
        admin.list_topics(timeout=4)
    except KafkaException:
        admin.poll(0.5)
        return " ".join(errors) or "timed out"
    return ""


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
async def test_librdkafka_produces_and_consumes(authority: DevelopmentCa, protocol: str) -> None:
    async with serving(tls(authority, ssl_enabled_protocols=protocol)) as node:
        values = [b"%d" % number + b"x" * (number % 3000) for number in range(3000)]
        await asyncio.to_thread(produce_and_consume, librdkafka(node, authority), values)


async def test_kafka_python_produces_and_consumes(authority: DevelopmentCa) -> None:
    def run(node: Node) -> None:
        config: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{node.advertised_port}",
            "security_protocol": "SSL",
            "ssl_cafile": str(authority.certificate_path),
        }
        producer = KafkaProducer(**config)
        producer.send("t", b"x" * 100_000).get(LIMIT_S)
        producer.close()
        consumer = KafkaConsumer(
            "t", **config, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
        assert len(next(iter(consumer)).value) == 100_000
        consumer.close()

    async with serving(tls(authority)) as node:
        await asyncio.to_thread(run, node)


async def test_aiokafka_produces_and_consumes(authority: DevelopmentCa) -> None:
    async with serving(tls(authority)) as node:
        context = ssl.create_default_context(cafile=str(authority.certificate_path))
        config: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{node.advertised_port}",
            "security_protocol": "SSL",
            "ssl_context": context,
        }
        producer = AIOKafkaProducer(**config, max_request_size=4 << 20)
        await producer.start()
        for _ in range(3):
            await producer.send_and_wait("t", b"y" * 900_000)
        await producer.stop()
        consumer = AIOKafkaConsumer("t", **config, auto_offset_reset="earliest")
        await consumer.start()
        for _ in range(3):
            assert len((await consumer.getone()).value) == 900_000
        await consumer.stop()


async def test_a_wrong_host_name_and_an_unknown_authority_are_refused_by_clients(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    authority.issue("node", hosts=("elsewhere.example",))
    async with serving(tls(authority)) as node:
        config = librdkafka(node, authority)
        assert "certificate" in await asyncio.to_thread(metadata_error, config)
        lax = {**config, "ssl.endpoint.identification.algorithm": "none"}
        assert await asyncio.to_thread(metadata_error, lax) == ""
        other = DevelopmentCa(tmp_path / "other", utc(SystemClock().now_ms()))
        strange = {**lax, "ssl.ca.location": str(other.certificate_path)}
        assert "certificate" in await asyncio.to_thread(metadata_error, strange)


async def test_an_expired_certificate_is_refused_by_clients(authority: DevelopmentCa) -> None:
    now = utc(SystemClock().now_ms())
    authority.issue("node", hosts=HOSTS, begins=now - timedelta(days=9), days=3)
    async with serving(tls(authority)) as node:
        found = await asyncio.to_thread(metadata_error, librdkafka(node, authority))
        assert "certificate" in found


async def test_a_required_certificate_has_to_be_there_valid_and_of_the_authority(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    now = utc(SystemClock().now_ms())
    authority.issue("old", is_client_only=True, begins=now - timedelta(days=9), days=3)
    other = DevelopmentCa(tmp_path / "other", now)
    other.issue("client", is_client_only=True)
    async with serving(tls(authority, ssl_client_auth="required")) as node:
        config = librdkafka(node, authority)
        good = {**config, **with_certificate(authority)}
        assert await asyncio.to_thread(metadata_error, good) == ""
        for bad in (
            config,
            {**config, **with_certificate(authority, "old")},
            {**config, **with_certificate(other)},
        ):
            assert await asyncio.to_thread(metadata_error, bad) != ""
        assert await asyncio.to_thread(metadata_error, good) == "", "no other client notices"
        assert node.server.handshakes.begun == 0


async def names_of(node: Node, client: AdminClient) -> set[str]:
    """Return the names under which connections of a client are let in, once there is one."""
    names: set[str] = set()

    def is_let_in() -> bool:
        client.list_topics(timeout=LIMIT_S)
        # A client is free to close a connection at any time: another turn sees the next one.
        connections = list(node.server.connections)
        names.update(str(one.principal) for one in connections if not one.is_in_handshake)
        return bool(names)

    await until(is_let_in)
    return names


async def test_a_certificate_gives_a_client_its_name_by_the_rules(
    authority: DevelopmentCa,
) -> None:
    rules = "RULE:^CN=(.*)$/$1/U,DEFAULT"
    flags = tls(authority, ssl_client_auth="requested", ssl_principal_mapping_rules=rules)
    async with serving(flags) as node:
        named = AdminClient({**librdkafka(node, authority), **with_certificate(authority)})
        assert await names_of(node, named) == {"User:CLIENT"}
    async with serving(flags) as node:
        unnamed = AdminClient(librdkafka(node, authority))
        assert await names_of(node, unnamed) == {"User:ANONYMOUS"}


async def test_a_name_that_no_rule_makes_is_refused(authority: DevelopmentCa) -> None:
    flags = tls(authority, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=x$/y/")
    async with serving(flags) as node:
        config = {**librdkafka(node, authority), **with_certificate(authority)}
        assert await asyncio.to_thread(metadata_error, config) != ""
        assert node.server.rejected_total > 0


@contextmanager
def connected(node: Node, authority: DevelopmentCa) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(authority.certificate_path))
    with (
        socket.create_connection(("localhost", node.advertised_port), LIMIT_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as made,
    ):
        yield made


def serial(one: ssl.SSLSocket) -> object:
    found = one.getpeercert()
    assert found
    return found["serialNumber"]


API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


def api_versions(one: ssl.SSLSocket) -> None:
    one.sendall(API_VERSIONS)
    size = int.from_bytes(one.recv(4), "big")
    while size:
        size -= len(one.recv(size))


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_until, condition, LIMIT_S)


async def test_a_new_certificate_counts_for_new_connections_and_old_ones_stay(
    authority: DevelopmentCa,
) -> None:
    async with serving(tls(authority)) as node:

        def rotate() -> None:
            with connected(node, authority) as before:
                api_versions(before)
                old = serial(before)
                path = authority.issue("node", hosts=HOSTS)
                assert wait_until(lambda: node.server.tls.reloads_total == 1, LIMIT_S)
                with connected(node, authority) as after:
                    assert serial(after) != old
                    api_versions(after)
                path.write_text("not a certificate")
                assert wait_until(lambda: node.server.tls.refused_total == 1, LIMIT_S)
                with connected(node, authority) as still:
                    api_versions(still)
                api_versions(before)

        await asyncio.to_thread(rotate)


async def test_an_error_of_one_look_at_connections_ends_no_later_one(
    authority: DevelopmentCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no connection would be idle for too long any more, and no certificate be renewed."""
    times = []

    def failing() -> None:
        times.append(1)
        raise ValueError("unexpected")

    async with serving(tls(authority)) as node, asyncio.timeout(LIMIT_S):
        monkeypatch.setattr(node.server.tls, "refresh", failing)
        while len(times) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_bytes_that_are_not_tls_close_the_connection_only(
    authority: DevelopmentCa,
) -> None:
    async with serving(tls(authority, ssl_handshake_timeout_ms=1500)) as node:
        place = ("127.0.0.1", node.advertised_port)

        def attack() -> None:
            for garbage in (API_VERSIONS, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" * 9):
                with socket.create_connection(place, LIMIT_S) as raw:
                    raw.sendall(garbage)
                    raw.settimeout(LIMIT_S)
                    try:
                        while raw.recv(4096):
                            pass
                    except ConnectionResetError:
                        pass
            # One that sends nothing is closed when its time is over.
            with socket.create_connection(place, LIMIT_S) as silent:
                silent.settimeout(LIMIT_S)
                assert silent.recv(1) == b""
            with connected(node, authority) as good:
                api_versions(good)

        await asyncio.to_thread(attack)
        assert node.server.handshakes.begun == 0
        await until(lambda: not node.server.connections)
        assert node.memory.responses.used == 0


async def test_beyond_their_number_the_oldest_handshake_is_closed(
    authority: DevelopmentCa,
) -> None:
    async with serving(tls(authority, ssl_handshakes_max=4)) as node:
        place = ("127.0.0.1", node.advertised_port)

        def flood() -> None:
            half_open = [socket.create_connection(place, LIMIT_S) for _ in range(12)]
            for one in half_open:
                one.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert wait_until(lambda: node.server.handshakes.evicted_total >= 8, LIMIT_S)
            with connected(node, authority) as good:
                api_versions(good)
            for one in half_open:
                one.close()

        await asyncio.to_thread(flood)
        await until(lambda: node.server.handshakes.begun == 0)


async def test_nodes_authenticate_each_other_and_believe_no_other_listener(
    authority: DevelopmentCa, tmp_path: Path
) -> None:
    store = MemoryStore()
    cluster = NodeCluster(store)
    flags = tls(authority) | {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://localhost:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
    }
    try:
        for node_id in (1, 2, 3):
            await cluster.start(node_id, **flags)
        await cluster.until(cluster.is_whole)
        between = [
            one
            for node in cluster.nodes.values()
            for one in node.server.connections
            if one.listener.name == "INTERNAL" and not one.is_in_handshake
        ]
        assert len(between) >= 6
        assert {str(one.principal) for one in between} == {"User:CN=node"}
        assert all(one.listener.name != "PLAINTEXT" for one in between)
    finally:
        for node in cluster.nodes.values():
            await node.close()


async def test_connections_of_an_address_and_of_a_listener_are_limited() -> None:
    flags: dict[str, object] = {
        "listeners": "PLAINTEXT://0.0.0.0:0,OTHER://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9,OTHER://127.0.0.1:10",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        "max.connections.per.ip": 3,
        "max.connections.per.ip.overrides": "127.0.0.9:1,127.0.0.8:0",
        "listener.name.other.max.connections": 1,
    }
    async with serving(flags) as node:
        ports = {name: one.getsockname()[1] for name, one in node.server.sockets.items()}

        def connect(address: str, listener: str = "PLAINTEXT") -> socket.socket | None:
            place = ("127.0.0.1", ports[listener])
            one = socket.create_connection(place, LIMIT_S, source_address=(address, 0))
            one.settimeout(LIMIT_S)
            try:
                one.sendall(API_VERSIONS)
                if one.recv(4096):
                    return one
            except ConnectionError:
                pass
            one.close()
            return None

        def run() -> None:
            held = [connect("127.0.0.7") for _ in range(3)]

            def enter_again() -> bool:
                held.append(connect("127.0.0.7"))
                return held[-1] is not None

            assert all(held)
            assert connect("127.0.0.7") is None
            assert connect("127.0.0.8") is None
            one = connect("127.0.0.9")
            assert one is not None
            assert connect("127.0.0.9") is None
            first = held.pop()
            assert first is not None
            first.close()
            assert wait_until(enter_again, LIMIT_S)
            other = connect("127.0.0.1", "OTHER")
            assert other is not None
            assert connect("127.0.0.1", "OTHER") is None, "the listener is full"
            last = connect("127.0.0.1")
            assert last is not None
            for each in (*held, one, other, last):
                if each is not None:
                    each.close()

        await asyncio.to_thread(run)
        await until(lambda: not node.server.connections)


async def test_kafka_configs_give_a_listener_another_certificate(
    authority: DevelopmentCa,
) -> None:
    path = authority.issue("other", hosts=HOSTS)
    async with serving(tls(authority)) as node:
        name = "listener.name.ssl.ssl.keystore.location"

        def alter() -> None:
            admin = AdminClient(librdkafka(node, authority))
            entry = ConfigEntry(name, str(path), incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
            assert wait_until(lambda: node.server.tls.reloads_total == 1, LIMIT_S)
            with connected(node, authority) as after:
                found = after.getpeercert()
                assert found
                assert found["subject"] == ((("commonName", "other"),),)
            shown = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")])
            (values,) = [future.result(LIMIT_S) for future in shown.values()]
            assert values[name].value == str(path)

        await asyncio.to_thread(alter)
