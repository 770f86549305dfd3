"""kill -9 of the broker while records are moved in transactions: at the end each is there once, in
order, whatever was open, being ended or being answered when the broker died.

`CRASHES` sets how many kills there are at random, `CRASH_SEED` when they fall.
"""

import os
import random
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.mover import Mover
from tests.support.repetitions import repetitions
from tests.support.traffic import IDEMPOTENT, create_topic
from tests.support.waiting import wait_until

SOURCE, TARGET, PARTITIONS = "from", "to", 2
RECORDS = 250
"""In each partition, for each crash."""
CRASHES = int(os.environ.get("CRASHES", repetitions(2, 1)))
SEED = int(os.environ.get("CRASH_SEED", "1"))
FLAGS = ("--transaction.state.log.num.partitions", "2")


def fill(bootstrap: str, count: int) -> None:
    """Write the numbers below `count` to each partition of the source."""
    producer = Producer({"bootstrap.servers": bootstrap, **IDEMPOTENT})
    for number in range(count):
        for index in range(PARTITIONS):
            producer.produce(SOURCE, b"%d" % number, partition=index)
        if number % 1000 == 0:
            producer.flush(30)
    assert producer.flush(60) == 0


def committed(bootstrap: str, index: int) -> list[int]:
    """Every number that a reader of committed records finds in a partition of the target."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TARGET, index, 0)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, f"nothing after {len(found)} records"
            if message.error() is not None:
                return found
            found.append(int(message.value() or b"-1"))
    finally:
        consumer.close()


def wait_moved(mover: Mover, count: int) -> None:
    """Wait until so many more records are moved: a heal must bring progress."""
    mark = mover.moved + count
    assert wait_until(lambda: mover.moved >= mark, 30), (mover.moved, mover.is_alive(), mover.ended)


def test_each_record_is_moved_once_through_every_crash(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    broker = BrokerProcess(tmp_path, (*HASTY, *FLAGS))
    broker.start()
    try:
        for topic in (SOURCE, TARGET):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        total = RECORDS * CRASHES
        fill(broker.bootstrap, total)
        mover = Mover("mover", broker.bootstrap, SOURCE, TARGET, PARTITIONS, SEED)
        mover.start()
        for _ in range(CRASHES):
            wait_moved(mover, 40)
            time.sleep(rng.uniform(0, 0.1))
            broker.kill()
            broker.start()
        numbers = list(range(total))
        found: list[list[int]] = []

        def is_done() -> bool:
            found[:] = [committed(broker.bootstrap, index) for index in range(PARTITIONS)]
            return all(len(moved) >= total for moved in found)

        assert wait_until(is_done, 60), ([len(moved) for moved in found], mover.ended)
        assert found == [numbers] * PARTITIONS
        assert mover.finish(30)
    finally:
        broker.kill()
