"""Positions stay for ever and belong to one source, whatever has its name later."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from lakehead.connectors.runtime.errors import ConnectorError, InputChanged, InputLost
from lakehead.connectors.runtime.kafka_clients import Cluster
from lakehead.storage.errors import SettingsError
from tests.support.broker_process import KEEPING, BrokerProcess
from tests.support.connect_runs import ConnectFile, committed, values
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("connectors")  # they share a broker


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Another cluster."""
    flags = tuple(text for name, value in KEEPING.items() for text in (f"--{name}", value))
    broker = BrokerProcess(tmp_path_factory.mktemp("other"), flags)
    broker.start()
    yield broker
    broker.kill()


def copy(broker: BrokerProcess, path: Path, *more: str) -> ConnectFile:
    """A copy of the topic that is named as the connector is."""
    lines = (
        f'name = "{path.name}"',
        f'kafka.bootstrap.servers = "{broker.bootstrap}"',
        'source.type = "topic"',
        f'source.topics = ["{path.name}"]',
        'sink.type = "topic"',
        f'sink.topic = "to-{path.name}"',
        "sink.partitions = 2",
        "run.transaction_seconds = 0.2",
        "run.poll_seconds = 0.1",
        *more,
    )
    return ConnectFile(path, "\n".join(lines))


def with_line(file: ConnectFile, line: str) -> ConnectFile:
    return ConnectFile(file.path, f"{line}\n{file.path.read_text()}")


def fill(broker: BrokerProcess, topic: str, numbers: range, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in numbers:
        producer.produce(topic, b"%d" % n, partition=partition)
    assert producer.flush(30) == 0


def forget(broker: BrokerProcess, group: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_consumer_groups([group])[group].result(30)


def make(broker: BrokerProcess, topic: str) -> None:
    Cluster({"bootstrap.servers": broker.bootstrap}).create_topic(topic, 2, {})


def remove(broker: BrokerProcess, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_topics([topic])[topic].result(30)


def is_copied(broker: BrokerProcess, topic: str, count: int) -> bool:
    cluster = Cluster({"bootstrap.servers": broker.bootstrap})
    return topic in cluster.topics() and len(values(broker.bootstrap, topic)) == count


def numbers(broker: BrokerProcess, topic: str) -> list[int]:
    return sorted(int(value) for value in values(broker.bootstrap, topic))


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_copy_goes_on_where_it_was_when_its_group_was_forgotten(
    broker: BrokerProcess, tmp_path: Path, start: str
) -> None:
    topic = f"forgotten-{start}"
    make(broker, topic)
    fill(broker, topic, range(10), partition=0)
    file = copy(broker, tmp_path / topic, f'source.start = "{start}"')
    assert file.opened().run().records == (10 if start == "earliest" else 0)
    # As a cluster does after offsets.retention.minutes.
    forget(broker, f"lakehead-connect-{topic}")
    fill(broker, topic, range(10, 15), partition=0)
    fill(broker, topic, range(15, 18), partition=1)
    status, printed = file.run()
    assert status == 0, printed
    first = 0 if start == "earliest" else 10
    assert numbers(broker, f"to-{topic}") == list(range(first, 18))
    positions = file.opened().positions()
    assert positions == {f"{topic}-0": {"offset": 15}, f"{topic}-1": {"offset": 3}}


@pytest.mark.parametrize("where", ["same", "other"])
def test_a_topic_made_again_is_another_source(
    broker: BrokerProcess, other: BrokerProcess, tmp_path: Path, where: str
) -> None:
    topic = f"made-again-{where}"
    target = broker if where == "same" else other
    more = () if where == "same" else (f'sink.kafka.bootstrap.servers = "{other.bootstrap}"',)
    make(broker, topic)
    fill(broker, topic, range(10))
    file = copy(broker, tmp_path / topic, *more)
    assert file.opened().run().records == 10
    remove(broker, topic)
    make(broker, topic)
    fill(broker, topic, range(100, 115))  # more than the first had: the old offset is in it
    for _ in range(2):
        status, printed = file.run()
        assert status != 0
        assert "was read to 10: the topic was made again; give the connector another" in printed
        assert "Traceback" not in printed
    assert numbers(target, f"to-{topic}") == list(range(10))
    assert with_line(file, 'source.when_lost = "earliest"').opened().run().records == 15
    assert file.opened().run().records == 0
    assert numbers(target, f"to-{topic}") == [*range(10), *range(100, 115)]


def test_a_topic_made_again_while_it_is_followed_is_another_source(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make(broker, "followed")
    fill(broker, "followed", range(10))
    connector = copy(broker, tmp_path / "followed").opened()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(connector.run, follow=True)
        assert wait_until(lambda: is_copied(broker, "to-followed", 10), 30)
        remove(broker, "followed")
        make(broker, "followed")
        fill(broker, "followed", range(100, 130))
        assert wait_until(run.done, 60)
        # The run may also look between deletion and creation.
        with pytest.raises(ConnectorError, match=r"was made again|no topic|(?i:unknown topic)"):
            run.result()
    assert numbers(broker, "to-followed") == list(range(10))


def test_a_positions_topic_that_loses_positions_is_refused(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make(broker, "refused")
    fill(broker, "refused", range(3))
    cluster = Cluster({"bootstrap.servers": broker.bootstrap})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n":1}\n')
    files = f"""
        name = "refused-files"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "files"
        source.path = "{tmp_path / "in"}"
        sink.type = "topic"
        sink.topic = "to-refused"
        sink.partitions = 2
        """
    for number, policy in enumerate(("delete", "compact,delete")):
        cluster.create_topic(f"positions-{number}", 1, {"cleanup.policy": policy})
        line = f'run.positions_topic = "positions-{number}"'
        copies = copy(broker, tmp_path / "refused", line)
        for file in (copies, ConnectFile(tmp_path / "files.toml", f"{line}\n{files}")):
            status, printed = file.run()
            assert status != 0
            assert f"positions-{number} has cleanup.policy={policy}, which removes" in printed
            assert "Traceback" not in printed
    assert values(broker.bootstrap, "to-refused") == []


def test_a_copy_into_itself_is_refused_by_any_address(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make(broker, "itself")
    fill(broker, "itself", range(3))
    port = broker.bootstrap.rpartition(":")[2]
    address = f'sink.kafka.bootstrap.servers = "localhost:{port}"'
    file = copy(broker, tmp_path / "itself", address)
    text = file.path.read_text()
    for target in ("{topic}", "itself"):
        itself = ConnectFile(file.path, text.replace('"to-itself"', f'"{target}"'))
        for tried in (itself.opened().run, partial(itself.opened().run, follow=True)):
            with pytest.raises(SettingsError, match="a topic cannot be copied into itself"):
                tried()
        with pytest.raises(SettingsError, match="a topic cannot be copied into itself"):
            itself.opened().plan()
    assert numbers(broker, "itself") == [0, 1, 2]
    beside = ConnectFile(file.path, text)
    assert beside.opened().run().records == 3
    assert beside.opened().run().records == 0


def test_records_that_retention_removed_are_told_by_their_offsets(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    make(broker, "cut")
    file = copy(broker, tmp_path / "cut")
    assert file.opened().run().records == 0
    fill(broker, "cut", range(5))
    place = TopicPartition("cut", 0, 4)
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_records([place])[place].result(30)
    with pytest.raises(InputLost, match="offsets 0 to 3 were removed by retention"):
        file.opened().run()


def test_what_cannot_be_a_record_is_a_dead_letter_with_its_place(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Of lines and of versions of a table: the rest is in the topic, and the run ends well."""
    (tmp_path / "in").mkdir()
    lines = b'{"id":1,"t":0}\n{"id":"\xff"}\n{"id":2,"t":1}\n'
    (tmp_path / "in" / "a.jsonl").write_bytes(lines)
    days = pa.array([0, 3_000_000, 1], pa.int32()).cast(pa.date32())
    table = pa.table({"id": [1, 2, 3], "d": days})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(tmp_path / "table", table, configuration=feed)
    sources = {
        "letters-files": f'"files"\nsource.path = "{tmp_path / "in"}"\nsource.timestamp = "t"',
        "letters-delta": f'"delta"\nsource.path = "{tmp_path / "table"}"\nsource.key = ["id"]',
    }
    places = {"letters-files": "a.jsonl, line 2", "letters-delta": "table, version 0, row 2"}
    for name, source in sources.items():
        text = f"""
            name = "{name}"
            kafka.bootstrap.servers = "{broker.bootstrap}"
            source.type = {source}
            sink.type = "topic"
            sink.topic = "{name}"
            sink.partitions = 1
            sink.on_error = "dead_letter"
            """
        file = ConnectFile(tmp_path / name, text)
        status, printed = file.run()
        assert status == 0, printed
        assert len(values(broker.bootstrap, name)) == 2
        (letter,) = committed(broker.bootstrap, f"{name}.dead-letters")
        headers = dict(letter.headers() or [])
        assert str(headers["lakehead.place"]).removesuffix("'").endswith(places[name])
        assert file.opened().run().records == 0
    times = [message.timestamp()[1] for message in committed(broker.bootstrap, "letters-files")]
    assert times == [1, 1]  # librdkafka cannot write 0


def test_a_table_put_back_to_an_older_version_is_another_source(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"id": [1]}), configuration=feed)
    shutil.copytree(path, tmp_path / "backup")
    for n in (2, 3):
        write_deltalake(path, pa.table({"id": [n]}), mode="append")
    text = f"""
        name = "put-back"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "delta"
        source.path = "{path}"
        source.key = ["id"]
        sink.type = "topic"
        sink.topic = "put-back"
        sink.partitions = 1
        """
    file = ConnectFile(tmp_path / "put-back", text)
    assert file.opened().run().records == 3
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    with pytest.raises(InputChanged, match="ends at version 0 and was read to 2: an older state"):
        file.opened().run()
    for n in (4, 5, 6):  # more than the first had: the old version is in it
        write_deltalake(path, pa.table({"id": [n]}), mode="append")
        if n > 4:
            for _ in range(2):
                with pytest.raises(InputChanged, match=r"version 2 of .* is another commit"):
                    file.opened().run()
    assert len(values(broker.bootstrap, "put-back")) == 3
    for file_ in path.glob("*.parquet"):
        file_.unlink()
    lost = ConnectFile(tmp_path / "lost", text.replace("put-back", "lost"))
    with pytest.raises(
        InputLost, match=r"files of version 0 of .* were deleted, by VACUUM for example"
    ):
        lost.opened().run()
