"""Nothing is wrong, and much happens at once: no record is lost, doubled, moved or out of order."""

from pathlib import Path

import pytest

from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import (
    IDEMPOTENT,
    PLAIN,
    ProducerThread,
    TailThread,
    create_topic,
    read_log,
)
from tests.support.waiting import wait_until

TOPIC = "busy"
PARTITIONS = 8
PRODUCERS = 6
RECORDS = 3_000


@pytest.mark.parametrize("wal", [(), ("--wal", "object:")], ids=["block", "object"])
def test_many_producers_at_once_are_told_nothing_that_is_not_so(
    tmp_path: Path, wal: tuple[str, ...]
) -> None:
    broker = BrokerProcess(tmp_path, (*HASTY, *wal))
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        history = History()
        tail = TailThread(broker.bootstrap, TOPIC, partitions=PARTITIONS, history=history)
        producers = [
            ProducerThread(
                f"producer-{number}",
                broker.bootstrap,
                TOPIC,
                partitions=PARTITIONS,
                history=history,
                config=IDEMPOTENT if number % 2 else PLAIN,
                value_bytes=100 + 300 * number,
            )
            for number in range(PRODUCERS)
        ]
        tail.start()
        for producer in producers:
            producer.start()
        assert wait_until(lambda: sum(p.acknowledged for p in producers) >= RECORDS, 60)
        assert [producer.finish() for producer in producers] == [0] * PRODUCERS
        tail.finish()
        log = read_log(broker.bootstrap, TOPIC, PARTITIONS)
        assert violations(history, log)[:20] == []
        assert sum(map(len, log.values())) == len(history.acknowledged)
    finally:
        broker.kill()
