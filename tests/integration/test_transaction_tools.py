"""A client of another hand runs transactions, and Kafka's own tools read what the coordinator keeps
of them. `BROKER=kafka` runs it on Kafka.
"""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import require_kafka_tools, run

LIMIT_S = 60
RECORDS = 60
READING = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require_kafka_tools()
    few = ("--transaction.state.log.num.partitions", "2")
    with server_under_test(tmp_path_factory.mktemp("transactions"), *HASTY, *few) as running:
        yield running


def create(server: ServerProcess, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        future.result(LIMIT_S)


def transactional(server: ServerProcess, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name})
    producer.init_transactions(LIMIT_S)
    return producer


def consumer(server: ServerProcess, group: str, topic: str) -> Consumer:
    settings = {"bootstrap.servers": server.bootstrap, "group.id": group, **READING}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    return consumer


def value(message: Message) -> bytes:
    assert message.error() is None
    found = message.value()
    assert isinstance(found, bytes)
    return found


def test_each_record_is_moved_once_whatever_is_aborted(server: ServerProcess) -> None:
    create(server, "from", "to")
    plain = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(RECORDS):
        plain.produce("from", str(number), str(number))
    assert plain.flush(LIMIT_S) == 0
    mover, source = transactional(server, "mover"), consumer(server, "movers", "from")
    moved, rounds = 0, 0
    while moved < RECORDS:
        messages = source.consume(10, timeout=LIMIT_S)
        assert messages, "nothing more to read"
        mover.begin_transaction()
        for message in messages:
            mover.produce("to", value(message))
        positions = source.position(source.assignment())
        mover.send_offsets_to_transaction(positions, source.consumer_group_metadata(), LIMIT_S)
        rounds += 1
        if rounds % 3 == 2:
            mover.abort_transaction(LIMIT_S)
            for place in source.committed(source.assignment(), timeout=LIMIT_S):
                source.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        else:
            mover.commit_transaction(LIMIT_S)
            moved += len(messages)
    source.close()
    check = consumer(server, "checkers", "to")
    found: list[int] = []
    while len(found) < RECORDS:
        read = check.poll(LIMIT_S)
        assert read is not None, f"only {len(found)} records"
        found.append(int(value(read)))
    assert check.poll(0.5) is None
    check.close()
    assert sorted(found) == list(range(RECORDS))


def test_kafkas_tools_read_the_state_of_transactions(server: ServerProcess) -> None:
    create(server, "open")
    producer = transactional(server, "lingering")
    producer.begin_transaction()
    producer.produce("open", b"undecided", partition=1)
    assert producer.flush(LIMIT_S) == 0
    at = ("kafka-transactions", "--bootstrap-server", server.bootstrap)
    listed = run(*at, "list").stdout
    assert [line.split()[3] for line in listed.splitlines() if "lingering" in line] == ["Ongoing"]
    described = run(*at, "describe", "--transactional-id", "lingering").stdout
    assert "Ongoing" in described
    assert "open-1" in described
    producer.commit_transaction(LIMIT_S)
    shown = run(
        "kafka-console-consumer",
        *("--bootstrap-server", server.bootstrap, "--topic", "__transaction_state"),
        *("--from-beginning", "--timeout-ms", "2500"),
        *("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"),
    ).stdout
    values = [
        record["value"]["data"]
        for record in json.loads(f"[{shown.replace('}{', '},{')}]")  # it writes no line ends
        if record["key"]["data"]["transactionalId"] == "lingering"
    ]
    empty, ongoing, prepared, committed = 0, 1, 2, 4
    states = [value["transactionStatus"] for value in values]
    assert states == [empty, ongoing, prepared, committed]
    where = [{"topic": "open", "partitionIds": [1]}]
    assert [value["transactionPartitions"] for value in values] == [None, where, where, []]
