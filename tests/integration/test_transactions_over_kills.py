"""kill -9 of a broker in the middle of transactions: readers of committed records get each that was
committed, whole and once, and nothing of the others. `CRASHES` sets how many kills there are.
"""

import os
from pathlib import Path

import pytest

from tests.checker.transaction_clients import TransactionClients, TransactionLoad
from tests.checker.transaction_history import Fate, TransactionHistory
from tests.checker.transaction_rules import transaction_violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import create_topic
from tests.support.transaction_traffic import read_all
from tests.support.waiting import wait_until

TOPIC, PARTITIONS = "kills", 3
LIMIT_S = 60.0
KILLS = int(os.environ.get("CRASHES", "1"))


@pytest.mark.parametrize("wal", [(), ("--wal", "object:")], ids=["block", "object"])
def test_what_was_committed_is_read_whole(wal: tuple[str, ...], tmp_path: Path) -> None:
    flags = ("--transaction.state.log.num.partitions", "2", *wal)
    broker = BrokerProcess(tmp_path, (*HASTY, *flags))
    broker.start()
    try:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        load = TransactionLoad(bootstrap=broker.bootstrap, topic=TOPIC, partitions=PARTITIONS)
        history = TransactionHistory()
        clients = TransactionClients(load, history, seed=1)
        clients.start()
        for _ in range(KILLS):
            wanted = committed(history) + 20
            assert wait_until(lambda: committed(history) >= wanted, LIMIT_S), broker.log  # noqa: B023
            broker.kill()
            broker.start()
        assert clients.finish(LIMIT_S) == []
        log = clients.read(TOPIC)
        plain = read_all(broker.bootstrap, TOPIC, PARTITIONS, "read_uncommitted")
    finally:
        broker.kill()
    assert transaction_violations(history, log) == []
    assert committed(history) >= 20 * KILLS
    assert len(plain) > sum(map(len, log.values())), "aborted records are there without that level"


def committed(history: TransactionHistory) -> int:
    """Return how many transactions were committed."""
    return sum(one.fate is Fate.COMMITTED for one in list(history.transactions.values()))
