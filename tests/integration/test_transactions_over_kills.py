"""kill -9 of a broker in the middle of transactions: readers of committed records get each that was
committed, whole and once, and nothing of the others. `CRASHES` sets how many kills there are.
"""

import os
from pathlib import Path

import pytest

from tests.checker.transactions import transaction_violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import create_topic
from tests.support.transaction_traffic import TransactionThread, read_all

TOPIC, PARTITIONS = "kills", 3
KILLS = int(os.environ.get("CRASHES", "1"))


@pytest.mark.parametrize("wal", [(), ("--wal", "object:")], ids=["block", "object"])
def test_what_was_committed_is_read_whole(wal: tuple[str, ...], tmp_path: Path) -> None:
    flags = ("--transaction.state.log.num.partitions", "2", *wal)
    broker = BrokerProcess(tmp_path, (*HASTY, *flags))
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        traffic = TransactionThread(broker.bootstrap, TOPIC, PARTITIONS)
        traffic.start()
        outcomes = traffic.outcomes
        for _ in range(KILLS):
            assert traffic.wait_committed(len(outcomes.committed) + 20), broker.log
            broker.kill()
            broker.start()
        traffic.finish()
        values = read_all(broker.bootstrap, TOPIC, PARTITIONS)
        plain = read_all(broker.bootstrap, TOPIC, PARTITIONS, "read_uncommitted")
    finally:
        broker.kill()
    assert list(transaction_violations(outcomes, values, traffic.values)) == []
    assert len(outcomes.committed) >= 20 * KILLS
    assert len(plain) > len(values), "what was aborted is there for who asks for it"
