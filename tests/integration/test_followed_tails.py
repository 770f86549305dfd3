"""A table that is followed beside a real node with an object WAL, which uploads many times a second
and is killed: what was acknowledged comes into the table, once, from the tail or from objects.
"""

import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable

from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from tests.integration.test_wal_tails import Load
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.waiting import wait_until

CONFIGS = {
    "lakehead.table.enable": "true",
    "lakehead.table.value.format": "raw",
    "lakehead.table.freshness.ms": "1000",
}


def held(table: Path) -> Counter[bytes]:
    if not DeltaTable.is_deltatable(str(table)):
        return Counter()
    return Counter(DeltaTable(table).to_pyarrow_table(columns=["value"]).column(0).to_pylist())


@pytest.mark.parametrize("tail", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_is_acknowledged_comes_into_the_table_once(tmp_path: Path, tail: bool) -> None:
    broker = BrokerProcess(tmp_path, (*HASTY, "--wal", "object:"))
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", num_partitions=3, config=CONFIGS)])["t"].result(20)
    store = next(tmp_path.rglob("meta")).parent
    told: list[TableOutcome] = []
    stopped = threading.Event()
    tables = DeclaredTables(f"file:{store}", tail=tail)
    follower = threading.Thread(target=tables.follow, args=(stopped, told.append))
    load = Load(broker.bootstrap)
    table = store.parent / "tables" / "t"
    try:
        follower.start()
        for _ in range(2):
            before = set(load.acknowledged)
            assert wait_until(lambda: len(load.acknowledged) > len(before) + 200, 60)  # noqa: B023
            broker.kill()
            broker.start()
            assert wait_until(lambda: before <= set(held(table)), 60)  # noqa: B023
        load.stop()
        assert wait_until(lambda: held(table) == Counter(load.acknowledged), 60)
    finally:
        load.stop()
        stopped.set()
        follower.join()
        tables.close()
        broker.kill()
    assert [outcome.error for outcome in told if outcome.error is not None] == []
