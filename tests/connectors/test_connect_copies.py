"""A Delta table's changes, and topics, into topics: each once."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake

from lakehead.connectors.runtime.errors import BadInput, InputChanged, InputLost
from lakehead.connectors.runtime.kafka_clients import Cluster
from tests.support.broker_process import BrokerProcess
from tests.support.connect_runs import ConnectFile, committed, values
from tests.support.template_process import lakehead_command
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("connectors")  # they share a broker
WITH_FEED = {"delta.enableChangeDataFeed": "true"}


def feed(broker: BrokerProcess, folder: Path, name: str, source: str) -> ConnectFile:
    text = f"""
        name = "{name}"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "delta"
        source.path = "{folder / name}"
        source.key = ["id"]
        {source}
        sink.type = "topic"
        sink.topic = "{name}"
        sink.partitions = 1
        """
    return ConnectFile(folder / f"{name}.toml", text)


def changes(broker: BrokerProcess, topic: str) -> list[tuple[str, int, Any]]:
    """Kind, key and row of each record."""
    found = []
    for message in committed(broker.bootstrap, topic):
        headers: dict[str, Any] = dict(message.headers() or [])
        row = message.value()
        shown = None if row is None else json.loads(row)["v"]
        found.append((headers["lakehead.change"].decode(), int(message.key() or b""), shown))
    return found


def rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.table({"id": [one for one, _ in pairs], "v": [two for _, two in pairs]})


def test_changes_of_a_table_with_tombstones(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(path, rows((1, "a"), (2, "b"), (3, "c")), configuration=WITH_FEED)
    file = feed(broker, tmp_path, "table", "")
    assert file.opened().plan().first_value == '{"id":1,"v":"a"}'
    assert file.opened().run().records == 3
    table = DeltaTable(path)
    table.update(predicate="id = 1", updates={"v": "'z'"})
    table.delete("id = 2")
    merge = table.merge(rows((3, "cc"), (4, "d")), "s.id = t.id", "s", "t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.optimize.compact()
    assert file.opened().run().records == 4
    assert file.opened().run().records == 0
    found = changes(broker, "table")
    assert sorted(found[:3]) == [("insert", 1, "a"), ("insert", 2, "b"), ("insert", 3, "c")]
    assert found[3:5] == [("update", 1, "z"), ("delete", 2, None)]
    assert sorted(found[5:]) == [("insert", 4, "d"), ("update", 3, "cc")]
    (position,) = file.opened().positions().values()
    assert position["version"] == table.version()


def test_keys_that_change_and_a_start_at_the_latest(broker: BrokerProcess, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "keys", rows((1, "a"), (2, "b")), configuration=WITH_FEED)
    file = feed(broker, tmp_path, "keys", 'source.start = "latest"\nsource.keys_change = true')
    assert file.opened().run().records == 0
    DeltaTable(tmp_path / "keys").update(predicate="id = 1", updates={"id": "7"})
    assert file.opened().run().records == 2
    assert changes(broker, "keys") == [("delete", 1, None), ("update", 7, "a")]


def test_a_table_that_cannot_be_followed_says_why(broker: BrokerProcess, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "mute", rows((1, "a")))
    with pytest.raises(BadInput, match=r"version 0 of .*mute has no change data feed: set"):
        feed(broker, tmp_path, "mute", "").opened().run()
    write_deltalake(tmp_path / "old", rows((1, "a")), configuration=WITH_FEED)
    file = feed(broker, tmp_path, "old", "")
    assert file.opened().run().records == 1
    write_deltalake(tmp_path / "old", rows((2, "b")), mode="append")
    table = DeltaTable(tmp_path / "old")
    table.create_checkpoint()
    (tmp_path / "old" / "_delta_log" / "00000000000000000001.json").unlink()
    with pytest.raises(InputLost, match=r"version 1 of .*old is not in the table's log any more"):
        file.opened().run()
    other = tmp_path / "another"
    write_deltalake(other, rows((1, "a")), configuration=WITH_FEED)
    file.path.write_text(file.path.read_text().replace(str(tmp_path / "old"), str(other)))
    with pytest.raises(InputChanged, match="another is another table than the one that was read"):
        file.opened().run()


def copy(broker: BrokerProcess, path: Path, sink: str, source: str = "") -> ConnectFile:
    text = f"""
        name = "{path.name}"
        kafka.bootstrap.servers = "{broker.bootstrap}"
        source.type = "topic"
        source.topics = ["orders"]
        {source}
        sink.type = "topic"
        {sink}
        run.transaction_bytes = 20_000
        """
    return ConnectFile(path, text)


def fill(broker: BrokerProcess, numbers: range, *, transactional_id: str) -> None:
    """Write records, and between them some that are aborted."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(30)
    for kind in ("aborted", "kept"):
        producer.begin_transaction()
        for n in numbers:
            value = f"{kind} {n}".encode() + b"." * 40
            producer.produce(
                "orders", value, b"%d" % n, n % 4, timestamp=n + 1, headers={"n": b"%d" % n}
            )
        producer.commit_transaction(30) if kind == "kept" else producer.abort_transaction(30)


def test_a_topic_is_copied_as_it_is(broker: BrokerProcess, tmp_path: Path) -> None:
    Cluster({"bootstrap.servers": broker.bootstrap}).create_topic("orders", 4, {})
    fill(broker, range(1000), transactional_id="writer")
    file = copy(broker, tmp_path / "copies", 'sink.topic = "copy-of-{topic}"\nsink.partitions = 4')
    plan = file.opened().plan()
    assert len(plan.works) == 4
    first = file.opened().run()
    assert (first.records, first.finished) == (1000, 4)
    assert first.transactions > 1
    fill(broker, range(1000, 1200), transactional_id="writer")
    assert file.opened().run().records == 200
    assert file.opened().plan().works == ()
    target = committed(broker.bootstrap, "copy-of-orders")
    assert [(m.partition(), m.key(), m.value(), m.timestamp(), m.headers()) for m in target] == [
        (m.partition(), m.key(), m.value(), m.timestamp(), m.headers())
        for m in committed(broker.bootstrap, "orders")
    ]
    assert len(values(broker.bootstrap, "copy-of-orders")) == 1200


def of(file: ConnectFile, topic: str) -> ConnectFile:
    """The same copy of another topic."""
    file.path.write_text(file.path.read_text().replace('["orders"]', f'["{topic}"]'))
    return file


@pytest.mark.slow
def test_a_compacted_topic_is_copied_with_what_is_left_of_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Offsets that are gone, at the end too, and tombstones neither stop the copy nor repeat it."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    Cluster({"bootstrap.servers": broker.bootstrap}).create_topic("states", 1, configs)
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "states"}
    producer = Producer(settings)
    producer.init_transactions(30)
    for kind in ("kept", "aborted", "kept"):
        producer.begin_transaction()
        for n in range(400):
            value = None if n % 7 == 0 else f"{kind} {n}".encode()
            producer.produce("states", value, b"%d" % (n % 50))
        assert producer.flush(30) == 0  # an abort drops what was not sent
        producer.commit_transaction(30) if kind == "kept" else producer.abort_transaction(30)
    file = of(
        copy(broker, tmp_path / "states", 'sink.topic = "copy-of-states"\nsink.partitions = 1'),
        "states",
    )

    def compact() -> int:
        path = f"file:{broker.folder}/data/store"
        done = lakehead_command("compact-topics", "states", "--json", "--path", path)
        assert done.returncode == 0, done.stderr
        return len(committed(broker.bootstrap, "states"))

    assert wait_until(lambda: compact() <= 50, 90)
    first = committed(broker.bootstrap, "states")
    assert (first[-1].offset() or 0) > 1000 > len(first)
    assert file.opened().run().records == len(first)
    assert file.opened().plan().works == ()
    for n in range(3):
        producer.begin_transaction()
        producer.produce("states", b"later %d" % n, b"%d" % n)
        producer.commit_transaction(30)
    assert wait_until(lambda: compact() <= 52, 90)
    assert file.opened().run().records == 3
    assert file.opened().plan().works == ()
    later = [(m.key(), m.value()) for m in committed(broker.bootstrap, "states")[-3:]]
    assert [(m.key(), m.value()) for m in committed(broker.bootstrap, "copy-of-states")] == [
        *((m.key(), m.value()) for m in first),
        *later,
    ]


def test_a_copy_ends_before_a_transaction_that_is_open(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    Cluster({"bootstrap.servers": broker.bootstrap}).create_topic("open", 1, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    slow = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "slow"})
    slow.init_transactions(30)

    def write(value: bytes) -> None:
        producer.produce("open", value)
        assert producer.flush(30) == 0

    write(b"before")
    file = of(
        copy(broker, tmp_path / "open", 'sink.topic = "copy-of-open"\nsink.partitions = 1'), "open"
    )
    slow.begin_transaction()
    slow.produce("open", b"in it")
    assert slow.flush(30) == 0
    write(b"behind")
    assert file.opened().run().records == 1
    assert file.opened().run().records == 0
    slow.commit_transaction(30)
    assert file.opened().run().records == 2
    slow.begin_transaction()
    slow.produce("open", b"never")
    assert slow.flush(30) == 0
    write(b"last")
    assert file.opened().run().records == 0
    slow.abort_transaction(30)
    assert file.opened().run().records == 1
    assert file.opened().plan().works == ()
    assert values(broker.bootstrap, "copy-of-open") == [b"before", b"in it", b"behind", b"last"]


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
def test_a_record_that_is_too_large_for_the_target_is_what_on_error_says(
    broker: BrokerProcess, tmp_path: Path, on_error: str
) -> None:
    topic, target = f"wide-{on_error}", f"narrow-{on_error}"
    cluster = Cluster({"bootstrap.servers": broker.bootstrap})
    cluster.create_topic(topic, 1, {})
    cluster.create_topic(target, 1, {"max.message.bytes": "4096"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for size in (10, 9000, 20):
        producer.produce(topic, b"x" * size)
    assert producer.flush(30) == 0
    more = f'sink.topic = "{target}"\nsink.partitions = 1\nsink.on_error = "{on_error}"'
    file = of(copy(broker, tmp_path / f"copy-{on_error}", more), topic)
    place = f"topic {topic}, partition 0, offset 1"
    if on_error == "fail":
        with pytest.raises(BadInput, match=rf"{place}: a record of 9000 bytes .* set on_error"):
            file.opened().run()
        return
    result = file.opened().run()
    skipped, letters = (1, 0) if on_error == "skip" else (0, 1)
    assert (result.records, result.skipped, result.dead_letters) == (2, skipped, letters)
    assert [len(value) for value in values(broker.bootstrap, target)] == [10, 20]
    assert file.opened().run().records == 0
    if on_error == "dead_letter":
        (letter,) = committed(broker.bootstrap, f"{target}.dead-letters")
        assert dict(letter.headers() or [])["lakehead.place"] == place.encode()
        assert set(letter.value() or b"") == {ord("x")}


@pytest.mark.slow
def test_a_topic_that_was_cut_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    cluster = Cluster({"bootstrap.servers": broker.bootstrap})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    cluster.create_topic("again", 1, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(10):
        producer.produce("again", b"%d" % n)
    producer.flush()
    sink = 'sink.topic = "target"\nsink.partitions = 1'
    file = of(copy(broker, tmp_path / "again", sink), "again")
    assert file.opened().run().records == 10
    for n in range(10, 20):
        producer.produce("again", b"%d" % n)
    producer.flush()
    admin.delete_records([TopicPartition("again", 0, 15)])[TopicPartition("again", 0)].result(20)
    with pytest.raises(InputLost, match="offsets 10 to 14 were removed by retention"):
        file.opened().run()
    text = file.path.read_text().replace(
        '["again"]', '["again"]\n        source.when_lost = "earliest"'
    )
    again = ConnectFile(tmp_path / "earliest", text)
    assert again.opened().run().records == 5
    assert again.opened().run().records == 0
    found = values(broker.bootstrap, "target")
    assert found == [b"%d" % n for n in (*range(10), *range(15, 20))]
