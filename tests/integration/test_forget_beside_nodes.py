"""`forget` beside a node that serves: its clients get no record of the key after it, from none of
its caches, and neither offsets nor producers notice anything else.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.test_compacted_topics import Pair, make_topic, produce, read
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until

KEY = b"customer-7"
DEADLINE_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path, (*HASTY, "--no-maintain"))
    running.start()
    yield running
    running.kill()


def keys(number: int) -> list[tuple[bytes, bytes | None]]:
    return [(KEY if n % 3 == 0 else b"k%d" % n, b"v" * 50) for n in range(number)]


def forget(broker: BrokerProcess, topic: str) -> dict[str, object]:
    """Forget the key in all that the broker has acknowledged by now."""
    done = lakehead_command(
        *("forget", topic, "--yes", "--key", KEY.decode(), "--path", str(broker.folder / "data")),
        *("--bootstrap-server", broker.bootstrap, "--json"),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def without_key(broker: BrokerProcess, topic: str) -> list[Pair]:
    """Read until the node has followed the metadata; then it has to stay so."""
    assert wait_until(lambda: KEY not in {key for _, key, _ in read(broker, topic)}, DEADLINE_S)
    found = read(broker, topic)
    assert KEY not in {key for _, key, _ in found}
    return found


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_clients_get_what_was_acknowledged_without_the_key(
    broker: BrokerProcess, codec: str
) -> None:
    topic = make_topic(broker, "orders")
    produce(broker, topic, keys(300), codec=codec)
    before = read(broker, topic)  # it is in the log cache, and in no object perhaps
    assert len(before) == 300
    assert forget(broker, topic)["records"] == 100
    left = [one for one in before if one[1] != KEY]
    assert without_key(broker, topic) == left
    broker.kill()
    broker.start()  # recovery does not bring it back, and the caches are cold
    assert without_key(broker, topic) == left


def test_a_consumer_in_the_middle_goes_on_behind_what_it_has_read(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "orders")
    produce(broker, topic, keys(400))
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "fetch.message.max.bytes": 1000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = [consumer.poll(DEADLINE_S) for _ in range(50)]
        forget(broker, topic)
        without_key(broker, topic)
        while (last := found[-1]) is not None and (last.offset() or 0) < 398:
            found.append(consumer.poll(DEADLINE_S))
        offsets = [one.offset() or 0 for one in found if one is not None]
    finally:
        consumer.close()
    assert offsets == sorted(set(offsets))
    # What the client had fetched already may have the key; what it fetched later has not.
    assert {n for n in range(400) if n % 3} <= set(offsets)


def test_idempotent_and_transactional_producers_go_on(broker: BrokerProcess) -> None:
    topic = make_topic(broker, "orders")
    plain = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    in_parts = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    in_parts.init_transactions(DEADLINE_S)

    def send(producer: Producer, *values: bytes) -> None:
        for value in values:
            producer.produce(topic, key=KEY, value=value)
        assert producer.flush(DEADLINE_S) == 0

    send(plain, b"1", b"2")
    in_parts.begin_transaction()
    send(in_parts, b"3")
    assert forget(broker, topic)["records"] == 3  # of the open transaction too
    without_key(broker, topic)
    send(in_parts, b"4")
    in_parts.commit_transaction(DEADLINE_S)
    send(plain, b"5")
    in_parts.begin_transaction()
    send(in_parts, b"6")
    in_parts.abort_transaction(DEADLINE_S)
    assert [value for _, _, value in read(broker, topic)] == [b"4", b"5"]
    broker.kill()
    broker.start()
    send(plain, b"7")
    in_parts.begin_transaction()
    send(in_parts, b"8")
    in_parts.commit_transaction(DEADLINE_S)
    assert [value for _, _, value in read(broker, topic)] == [b"4", b"5", b"7", b"8"]


def test_nodes_delete_the_old_objects_and_the_check_then_holds(tmp_path: Path) -> None:
    hasty = ("--garbage.grace.ms", "200", "--garbage.interval.ms", "50", "--no-maintain")
    broker = BrokerProcess(tmp_path, (*HASTY, *hasty))
    broker.start()
    try:
        topic = make_topic(broker, "orders")
        produce(broker, topic, keys(60))
        number = str(forget(broker, topic)["certificate"])
        check = ("forget", topic, "--check", number, "--path", str(tmp_path / "data"))
        assert wait_until(lambda: lakehead_command(*check).returncode == 0, DEADLINE_S)
        assert KEY not in {key for _, key, _ in read(broker, topic)}
    finally:
        broker.kill()


@pytest.mark.parametrize("codec", ["none"])
def test_with_an_object_wal_its_objects_are_looked_into_as_well(tmp_path: Path, codec: str) -> None:
    broker = BrokerProcess(tmp_path, (*HASTY, "--wal", "object:", "--no-maintain"))
    broker.start()
    try:
        topic = make_topic(broker, "orders")
        produce(broker, topic, keys(60), codec=codec)
        assert forget(broker, topic)["records"] == 20
        found = without_key(broker, topic)
        assert len(found) == 40
    finally:
        broker.kill()
