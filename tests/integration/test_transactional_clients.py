"""Transactions of real clients, end to end: what is committed is read, whole, and nothing else.
`BROKER=kafka` runs it on Kafka.
"""

import contextlib
import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import ServerProcess
from tests.support.broker_process import HASTY, server_under_test
from tests.support.kafka_tools import require_kafka_tools, run
from tests.support.transaction_traffic import read_all, settle

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaProducer

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_under_test(tmp_path_factory.mktemp("transactions"), *HASTY) as running:
        yield running


@pytest.fixture
def topic(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).replace("[", "-").replace("]", "")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, 2)])[name].result(LIMIT_S)
    return name


def producer_of(server: ServerProcess, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(LIMIT_S)
    return producer


def read(server: ServerProcess, topic: str, level: str = "read_committed") -> list[str]:
    return read_all(server.bootstrap, topic, 2, level)


def test_whole_transactions_are_read_or_nothing_of_them(server: ServerProcess, topic: str) -> None:
    producer = producer_of(server, topic)
    committed = []
    for number in range(12):
        producer.begin_transaction()
        values = [f"{number:02}-{record}" for record in range(10)]
        for record, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=record % 2)
        if number % 3:
            producer.commit_transaction(LIMIT_S)
            committed += values
        else:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(LIMIT_S)
    assert read(server, topic) == committed
    assert len(read(server, topic, "read_uncommitted")) == 121
    producer.commit_transaction(LIMIT_S)
    settle(server.bootstrap, topic)
    assert read(server, topic) == [*committed, "open"]


def test_a_second_producer_of_an_id_fences_the_first(server: ServerProcess, topic: str) -> None:
    zombie = producer_of(server, topic)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(LIMIT_S)
    successor = producer_of(server, topic)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].name() == "_FENCED"
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=0)
    successor.commit_transaction(LIMIT_S)
    settle(server.bootstrap, topic)
    assert read(server, topic) == ["successor"]


def test_kafka_python_commits_and_aborts(server: ServerProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=topic)
    with contextlib.closing(producer):
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, f"{number}".encode(), partition=number % 2).get(LIMIT_S)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    settle(server.bootstrap, topic)
    assert read(server, topic) == ["0", "2"]


def test_an_open_transaction_is_found_and_aborted_by_hand(
    server: ServerProcess, topic: str
) -> None:
    require_kafka_tools()
    place = ("--topic", topic, "--partition", "0")

    def tool(*arguments: str) -> str:
        done = run("kafka-transactions", "--bootstrap-server", server.bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    producer = producer_of(server, topic)
    producer.begin_transaction()
    producer.produce(topic, b"stuck", partition=0)
    producer.flush(LIMIT_S)
    assert read(server, topic) == []
    head, row = tool("describe-producers", *place).splitlines()
    columns = dict(zip(head.split("\t"), row.split("\t"), strict=True))
    known = {name.strip(): value.strip() for name, value in columns.items()}
    assert known["CurrentTransactionStartOffset"] == "0"
    assert (known["ProducerEpoch"], known["LastSequence"]) == ("0", "0")
    tool("abort", *place, "--start-offset", "0")
    assert tool("describe-producers", *place).splitlines()[1].rstrip().endswith("None")
    plain = Producer({"bootstrap.servers": server.bootstrap})
    plain.produce(topic, b"free", partition=0)
    plain.flush(LIMIT_S)
    assert read(server, topic) == ["free"]
