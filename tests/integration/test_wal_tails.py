"""`tail=wal` beside a real node that uploads many times a second and is killed: what it has
acknowledged is there, once.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import lakehead
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.source.options import ReadOptions, batch_options
from lakehead.lake.source.rows import RecordRows
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.view import View, Viewer
from lakehead.lake.topic_scan import Scan
from lakehead.storage.errors import SettingsError
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.repetitions import repetitions
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

PARTITIONS = 3
LOOKS = repetitions(6, 3)


def read(given: ReadOptions) -> Counter[bytes]:
    """Every value that is there, with how often."""

    def splits(view: View) -> Sequence[Split]:
        asked = resolve(view.snapshot, list(view.logs.values()), given.bounds)
        return splits_of_read(given, view.snapshot, asked)

    found: Counter[bytes] = Counter()
    for split in Viewer(given).look(splits):
        for batch in read_split(given, RecordRows(record_columns=("value",)), split):
            found.update(batch.column(0).to_pylist())
    return found


class Load:
    """Produces numbers until it is stopped, from a thread of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[bytes] = set()
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            if len(self._producer) < 200:
                number += 1
                value = b"%d" % number
                self._producer.produce("t", value, on_delivery=self._delivered)
            self._producer.poll(0.001)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.add(value)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def test_what_a_node_has_acknowledged_is_there_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, (*HASTY, "--wal", "object:"))
    broker.start()
    load = None
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", num_partitions=PARTITIONS)])["t"].result(20)
        given = batch_options(
            {"path": str(next(tmp_path.rglob("meta")).parent), "subscribe": "t", "tail": "wal"}
        )
        load = Load(broker.bootstrap)
        place = given.path
        assert wait_until(lambda: len(load.acknowledged) > 100, 60)
        early = lakehead.scan(place, "t", tail="wal", columns=["value"], copy=True)
        first = scanned(early)
        assert len(first) >= 100
        for number in range(LOOKS):
            least = len(load.acknowledged) + 100
            assert wait_until(lambda: len(load.acknowledged) > least, 60)  # noqa: B023
            before = set(load.acknowledged)
            if number == LOOKS // 2:
                broker.kill()
            for found in (read(given), scanned(lakehead.scan(place, "t", tail="wal", copy=True))):
                assert before <= set(found)
                assert max(found.values()) == 1
            if not broker.is_running:
                broker.start()
    finally:
        if load is not None:
            load.stop()
        broker.kill()
    assert read(given) == Counter(load.acknowledged)
    # What lay in WAL objects that are gone by now lies elsewhere: the same records.
    assert scanned(early) == first


def scanned(scan: Scan) -> Counter[bytes]:
    return Counter(scan.read_all().column("value").to_pylist())


def test_a_tail_of_no_kind_is_refused(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"x"]})
    with pytest.raises(SettingsError, match="tail is 'objects' or 'wal', not 'both'"):
        lakehead.scan(str(tmp_path), "t", tail="both")  # type: ignore[arg-type]
