"""`lakehead import` from Apache Kafka with TLS, SASL and an authorizer: logs of every kind, rules,
quotas and users.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from bench.apache_kafka.server import kafka_server
from bench.maven import MissingTool
from bench.tls_and_sasl import TlsAndSasl
from lakehead.broker.cli.cluster import open_at, read_state
from lakehead.broker.cli.migration.run import import_records
from lakehead.broker.cli.migration.source_brokers import SourceBrokers
from lakehead.broker.cli.migration.source_cluster import SourceCluster
from lakehead.broker.cli.migration.target_store import opened_target
from lakehead.broker.protocol.messages import entity
from lakehead.storage.failpoints import KILLED
from lakehead.storage.metadata.state import MetadataImage
from tests.support.broker_process import BrokerProcess
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TOPICS = ("appended", "compacted", "cut", "plain", "transactions")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
QUOTAS = {"producer_byte_rate": 1000.0, "request_percentage": 50.0}
Seen = dict[tuple[str, int, int], tuple[Any, ...]]
Bounds = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Source:
    """Apache Kafka that runs, and settings of its clients: librdkafka's, and a file of Java's."""

    client: dict[str, Any]
    file: Path

    @property
    def bootstrap(self) -> str:
        return str(self.client["bootstrap.servers"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("kafka")
    secured = TlsAndSasl(folder)
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:bench;User:ANONYMOUS",
        "log.cleaner.backoff.ms": "100",
        "log.retention.ms": "-1",  # records have timestamps of years ago
    }
    try:
        server = kafka_server(folder, settings, secured)
    except MissingTool as missing:
        pytest.skip(str(missing))
    with server:
        file = folder / "client.properties"
        file.write_text("".join(f"{k}={v}\n" for k, v in secured.client.java.items()))
        yield Source({"bootstrap.servers": server.bootstrap, **secured.client.librdkafka}, file)


def send(
    source: Source, topic: str, numbers: Sequence[int], codec: str = "none", *, is_now: bool = False
) -> None:
    producer = Producer(source.client | {"compression.type": codec, "linger.ms": 20})
    for number in numbers:
        producer.produce(
            topic,
            value=None if number % 50 == 7 else f"{number}".encode() * 20,
            key=f"k{number % 11}".encode() if topic == "compacted" or number % 3 == 0 else None,
            partition=number % 2,
            timestamp=0 if is_now else 1_700_000_000_000 + number * 7 % 1000,
            headers=[("name", b"%d" % number), ("none", None)] if number % 5 == 0 else None,
        )
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def filled(source: Source) -> Source:
    """The source with topics, no transaction among them."""
    admin = AdminClient(source.client)
    configs = {
        "appended": {"message.timestamp.type": "LogAppendTime"},
        "compacted": {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "segment.ms": "100",
        },
    }
    made = admin.create_topics(
        [NewTopic(name, 2, 1, config=configs.get(name, {})) for name in TOPICS]
    )
    for future in made.values():
        future.result(30)
    for place, codec in enumerate(CODECS):
        numbers = range(place * 300, (place + 1) * 300)
        for topic in ("plain", "compacted", "appended"):
            send(source, topic, numbers, codec)
    send(source, "cut", range(1000))
    for future in admin.delete_records(
        [TopicPartition("cut", 0, 123), TopicPartition("cut", 1, 77)]
    ).values():
        future.result(30)

    def is_cleaned() -> bool:
        send(source, "compacted", range(2000, 2022), is_now=True)  # rolls the segment
        return sum(topic == "compacted" for topic, _, _ in everything(source.client)[0]) < 700

    assert wait_until(is_cleaned, 60)
    return source


def transactions(source: Source) -> Producer:
    """Write committed and aborted transactions, two at a time, and return one that is open."""
    producers = []
    for name in ("a", "b", "open"):
        one = Producer(source.client | {"transactional.id": name})
        one.init_transactions(30)
        producers.append(one)
    first, second, last = producers
    for turn in range(3):
        first.begin_transaction()
        second.begin_transaction()
        for number in range(20):
            for one, word in ((first, "kept"), (second, "dropped")):
                text = f"{word} {turn} {number}"
                one.produce("transactions", text, partition=number % 2)
                one.flush(30)
        first.commit_transaction(30)
        second.abort_transaction(30)
    last.begin_transaction()
    last.produce("transactions", b"open", partition=0)
    last.flush(30)
    send(source, "transactions", range(10))
    return last


def everything(client: dict[str, Any]) -> tuple[Seen, Bounds]:
    """Each committed record of the topics, and the bounds of their partitions."""
    consumer = Consumer(
        client
        | {
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: Seen = {}
    try:
        places = [TopicPartition(topic, number) for topic in TOPICS for number in range(2)]
        bounds = {(p.topic, p.partition): consumer.get_watermark_offsets(p) for p in places}
        consumer.assign([TopicPartition(*place, low) for place, (low, _) in bounds.items()])
        ended: set[Any] = set()
        while len(ended) < len(places):
            for message in consumer.consume(500, 1.0):
                place = message.topic() or "", message.partition() or 0
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF"
                    ended.add(place)
                    continue
                headers = message.headers()
                found[*place, message.offset() or 0] = (
                    *(message.key(), message.value(), message.timestamp()),
                    None if headers is None else tuple(headers),
                )
    finally:
        consumer.close()
    return found, bounds


def run_import(source: Source, folder: Path, *flags: str, failpoint: str = "") -> Any:
    done = lakehead_command(
        *("import", source.bootstrap, "--command-config", str(source.file), "--json"),
        *("--path", str(folder / "data"), "--offsets-partitions", "4", *flags),
        failpoint=failpoint,
    )
    assert done.returncode == (KILLED if failpoint else 0), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def metadata(folder: Path) -> MetadataImage:
    async def read() -> MetadataImage:
        store = open_at(f"file:{folder / 'data' / 'store'}")
        try:
            return await read_state(store)
        finally:
            await store.close()

    return asyncio.run(read())


def test_logs_of_every_kind_come_as_they_are(filled: Source, tmp_path: Path) -> None:
    source = filled
    still_open = transactions(source)
    for failpoint in ("import_topics_made", "import_records_appended:3", "import_topics_uploaded"):
        run_import(source, tmp_path, failpoint=failpoint)
    run_import(source, tmp_path)
    stable = everything(source.client)
    still_open.commit_transaction(30)
    rows, _ = run_import(source, tmp_path)
    assert {one["topic"]: one["records"] for one in rows if "topic" in one} == {
        "appended": 0,
        "compacted": 0,
        "cut": 0,
        "plain": 0,
        "transactions": 6,  # the open one's, and those of partition 0 that were behind it
    }
    before, bounds = everything(source.client)
    assert len(before) == len(stable[0]) + 6
    compared, _ = run_import(source, tmp_path, "--verify")
    assert [one["same"] for one in compared] == [True] * 10
    assert [one["records"] for one in compared] == [one["source_records"] for one in compared]
    compacted = [
        offset for topic, partition, offset in before if (topic, partition) == ("compacted", 0)
    ]
    assert len(compacted) < bounds["compacted", 0][1]  # offsets are missing
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        client = {"bootstrap.servers": broker.bootstrap}
        assert wait_until(lambda: is_led(client), 30)
        after, now = everything(client)
        assert after == before
        assert now == bounds
        producer = Producer(client | {"enable.idempotence": True})
        producer.produce("transactions", b"next", partition=0)
        assert producer.flush(30) == 0
    finally:
        broker.stop()


def is_led(client: dict[str, Any]) -> bool:
    topics = AdminClient(client).list_topics(timeout=10).topics
    return all(
        name in topics and all(one.leader >= 0 for one in topics[name].partitions.values())
        for name in TOPICS
    )


def test_records_one_by_one_are_the_same(filled: Source, tmp_path: Path) -> None:
    """The way of partitions with messages from before batches, which Kafka 4 does not write."""
    source = filled
    cluster = SourceCluster(source.bootstrap, source.file, random.Random(1))

    async def copy() -> None:
        (topic,) = await cluster.topics(["plain"])
        store = open_at(f"file:{tmp_path / 'data' / 'store'}")
        try:
            async with opened_target(store, None) as target:
                streams = (await target.topics([topic]))[topic.name]
                for place, stream in zip(topic.places, streams, strict=True):
                    with cluster.partition(place) as reader:
                        came = import_records(reader, target, stream, 0, 500)
                        assert sum([count async for count in came]) == 500
        finally:
            cluster.brokers.close()
            await store.close()

    (tmp_path / "data" / "store").mkdir(parents=True)
    asyncio.run(copy())
    run_import(source, tmp_path, "--topic", "plain")  # the rest, as batches
    compared, _ = run_import(source, tmp_path, "--topic", "plain", "--verify")
    assert [(one["records"], one["same"]) for one in compared] == [(750, True)] * 2


async def alter_quotas(source: Source, owner: dict[str, str | None]) -> None:
    def fields(module: Any) -> dict[str, Any]:
        parts = [
            entity(module, "EntityData", entity_type=kind, entity_name=name)
            for kind, name in owner.items()
        ]
        changes = [
            entity(module, "OpData", key=key, value=value, remove=False)
            for key, value in QUOTAS.items()
        ]
        return {
            "entries": [entity(module, "EntryData", entity=parts, ops=changes)],
            "validate_only": False,
        }

    brokers = SourceBrokers(source.client, None, random.Random(1))
    try:
        done = await brokers.request(49, 1, "AlterClientQuotasRequest", fields)
        assert [one.error_code for one in done.entries] == [ErrorCode.none]
    finally:
        brokers.close()


def test_rules_and_quotas_come_and_users_are_named(source: Source, tmp_path: Path) -> None:
    admin = AdminClient(source.client)
    rules = [
        AclBinding(
            *(ResourceType.TOPIC, "pay", ResourcePatternType.PREFIXED, "User:alice", "*"),
            *(AclOperation.READ, AclPermissionType.ALLOW),
        ),
        AclBinding(
            *(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, "User:*", "10.1.2.3"),
            *(AclOperation.ALL, AclPermissionType.DENY),
        ),
    ]
    for future in admin.create_acls(rules).values():
        future.result(30)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 5000)
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("alice", info, b"secret", b"salt")]
    )["alice"].result(30)
    asyncio.run(alter_quotas(source, {"user": None}))
    asyncio.run(alter_quotas(source, {"client-id": "c"}))
    admin.create_topics([NewTopic("few", 1, 1)])["few"].result(30)
    rows, told = run_import(source, tmp_path, "--topic", "few")
    users = {one["user"]: one for one in rows if "user" in one}
    assert users["alice"] == {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 5000}
    assert set(users) == {"alice", "bench"}
    assert "kafka-configs --bootstrap-server HOST:PORT --alter --entity-type users" in told
    state = metadata(tmp_path)
    assert {(one.resource_type, one.resource_name, one.principal) for one in state.acls} == {
        ("topic", "pay", "User:alice"),
        ("group", "*", "User:*"),
    }
    assert {owner: dict(values) for owner, values in state.quotas.items()} == {
        (("user", None),): QUOTAS,
        (("client-id", "c"),): QUOTAS,
    }
    gone = AclBindingFilter(
        *(ResourceType.TOPIC, None, ResourcePatternType.ANY, None, None),  # type: ignore[arg-type]
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    for future in admin.delete_acls([gone]).values():
        future.result(30)
    run_import(source, tmp_path, "--topic", "few", "--without", "quotas")
    state = metadata(tmp_path)
    assert [one.resource_type for one in state.acls] == ["group"]
    assert len(state.quotas) == 2
    assert not state.scram_credentials
