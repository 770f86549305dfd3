"""Changes of a real PostgreSQL, kept in a file, become tables that equal its own."""

from collections.abc import Sequence

from confluent_kafka import Producer

from lakehead.broker.testing import LakeheadBroker, running_broker
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from tests.changes import kept
from tests.changes.envelopes import Message
from tests.changes.row_comparison import differences
from tests.changes.tables import TABLES


def produce(broker: LakeheadBroker, messages: Sequence[Message]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for message in messages:
        producer.produce(message.topic, message.value, message.key)
    assert producer.flush(60) == 0
    broker.flush()


def catch_up(broker: LakeheadBroker) -> dict[str, TableOutcome]:
    told: list[TableOutcome] = []
    tables = DeclaredTables(broker.path, workers=1)
    try:
        tables.catch_up(all_of_them=True, on_table=told.append)
    finally:
        tables.close()
    assert [outcome.error for outcome in told if outcome.error] == []
    return {outcome.topic: outcome for outcome in told}


def test_tables_equal_the_database_whose_changes_came_partly_twice() -> None:
    """As after a connector that was killed: it sends again what it had no acknowledgement of."""
    found = kept.read()
    half, again = len(found.messages) // 2, len(found.messages) // 5
    with running_broker() as broker:
        for table in TABLES:
            broker.create_topic(table.topic, partitions=2, configs=table.configs)
        produce(broker, found.messages[:half])
        catch_up(broker)
        produce(broker, found.messages[half - again :])
        outcomes = catch_up(broker)
        assert all(rows for rows in found.rows.values())
        for table in TABLES:
            outcome = outcomes[table.topic]
            assert differences(table, outcome.table, found.rows[table.name]) == []
            assert differences(table, outcome.table, found.rows[table.name][1:]) != []
