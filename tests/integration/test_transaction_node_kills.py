"""kill -9 of nodes, one after the other, while records are moved in transactions: whichever of the
coordinators and leaders a node was, at the end each record is there once, in order.

`CRASHES` sets how many kills there are at random, `CRASH_SEED` which nodes they hit, and when.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.integration.test_transaction_crashes import committed
from tests.support.mover import Mover
from tests.support.supervised import Supervised, supervised
from tests.support.traffic import IDEMPOTENT, create_topic
from tests.support.waiting import wait_until

SOURCE, TARGET, PARTITIONS, NODES = "from", "to", 2, 3
RECORDS = 300
"""In each partition, for each kill."""
CRASHES = int(os.environ.get("CRASHES", "1"))
SEED = int(os.environ.get("CRASH_SEED", "1"))


def fill(bootstrap: str, numbers: range) -> None:
    """Write these numbers to each partition of the source."""
    producer = Producer({"bootstrap.servers": bootstrap, **IDEMPOTENT})
    for number in numbers:
        for index in range(PARTITIONS):
            producer.produce(SOURCE, b"%d" % number, partition=index)
    assert producer.flush(60) == 0


def wait_moved(mover: Mover, mark: int) -> None:
    """Wait for progress: the client may need a new life, but no more."""
    assert wait_until(lambda: mover.moved >= mark, 60), (mover.moved, mark, mover.ended)


def kill(nodes: Supervised, node_id: int) -> None:
    """Kill a node, and wait until its next life serves."""
    lives = nodes.lives_ready(node_id)
    os.kill(nodes.pids(node_id)[-1], signal.SIGKILL)
    assert wait_until(lambda: nodes.lives_ready(node_id) > lives, 60), nodes.log


@pytest.mark.slow
def test_each_record_is_moved_once_whichever_node_dies(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with supervised(tmp_path, NODES) as nodes:
        nodes.wait_ready()
        bootstrap = ",".join(nodes.addresses)
        for topic in (SOURCE, TARGET):
            create_topic(bootstrap, topic, PARTITIONS)
        mover = Mover("mover", bootstrap, SOURCE, TARGET, PARTITIONS, SEED)
        mover.start()
        for crash in range(CRASHES):
            mark = mover.moved + 40
            fill(bootstrap, range(crash * RECORDS, (crash + 1) * RECORDS))
            wait_moved(mover, mark)
            time.sleep(rng.uniform(0, 0.1))
            kill(nodes, rng.randrange(NODES))
        numbers = list(range(RECORDS * CRASHES))
        found: list[list[int]] = []

        def is_done() -> bool:
            found[:] = [committed(bootstrap, index) for index in range(PARTITIONS)]
            return all(len(moved) >= len(numbers) for moved in found)

        assert wait_until(is_done, 60), ([len(moved) for moved in found], mover.ended)
        assert found == [numbers] * PARTITIONS
        assert mover.finish(60)
