"""A table that a topic declares comes by itself, beside the nodes, and goes on coming."""

import asyncio
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from structlog.testing import capture_logs

from lakehead.broker.node import start_node
from lakehead.broker.settings import Settings
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.waiting import wait_until

KEEPING = (*HASTY, "--maintain.tables", "true", "--maintenance.interval.ms", "200")
DECLARED = {"lakehead.table.enable": "true", "lakehead.table.freshness.ms": "1000"}


def rows(broker: BrokerProcess) -> int:
    """Rows of the table of topic `orders`."""
    folder = broker.folder / "data" / "tables" / "orders"
    if not DeltaTable.is_deltatable(str(folder)):
        return 0
    return int(DeltaTable(str(folder)).to_pyarrow_table(columns=["_offset"]).num_rows)


def produce(broker: BrokerProcess, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce("orders", b'{"id": %d}' % number)
    assert producer.flush(30) == 0


def keepers(broker: BrokerProcess) -> list[psutil.Process]:
    """Processes that keep tables of the broker's cluster, of this run and of earlier ones."""
    store = f"file:{broker.folder}/data/store"
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "--tables-only" in line and store in line:
            found.append(process)
    return found


def set_enabled(broker: BrokerProcess, value: str) -> None:
    operation = AlterConfigOpType.SET
    name = "lakehead.table.enable"
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


@pytest.mark.timeout(240)
def test_a_declared_table_comes_by_itself_and_survives_its_process(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, KEEPING)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1, config=DECLARED)])["orders"].result(30)
        produce(broker, range(100))
        assert wait_until(lambda: rows(broker) == 100, 60), broker.log
        (keeper,) = keepers(broker)
        assert keeper.nice() > psutil.Process(broker.server.process.pid).nice()
        os.kill(keeper.pid, signal.SIGKILL)
        produce(broker, range(100, 150))
        assert wait_until(lambda: rows(broker) == 150, 60), broker.log
        set_enabled(broker, "false")
        assert wait_until(lambda: not keepers(broker), 30), "nothing is left to keep"
        set_enabled(broker, "true")
        assert wait_until(lambda: len(keepers(broker)) == 1, 30), broker.log
        broker.kill()
        assert wait_until(lambda: not keepers(broker), 30), "it outlives its node"
    finally:
        broker.kill()


def reports(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in logs if one["event"] == "tables_not_maintained"]


async def test_a_node_without_the_lake_reports_once_that_nothing_keeps_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehead.broker.node.is_lake_installed", lambda: False)
    settings = Settings(
        data=str(tmp_path),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        maintenance_interval_ms=10,
    )
    with capture_logs() as logs:
        node = await start_node(settings, rng=random.Random(1))
        try:
            await node.replication_control.create("orders", 1, DECLARED, [])
            tables = node.tables
            assert tables is not None
            assert await asyncio.to_thread(wait_until, lambda: bool(reports(logs)), 20)
            more = tables.turns + 5
            assert await asyncio.to_thread(wait_until, lambda: tables.turns >= more, 20)
        finally:
            await node.close()
    (told,) = reports(logs)
    assert told["topics"] == ["orders"]
    assert "pip install 'lakehead[lake]'" in told["run"]
    assert f"lakehead materialize --follow --path file:{tmp_path}/store" in told["run"]
    assert tables.starts == 0
