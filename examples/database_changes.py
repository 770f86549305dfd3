"""Change events as Debezium sends them become a Delta table that holds the rows of the database.

python examples/database_changes.py
"""

import json
from typing import Any

from deltalake import DeltaTable

from lakehead.broker.testing import running_broker
from lakehead.lake.jobs.declared_tables import DeclaredTables

DECLARED = {
    "lakehead.table.enable": "true",
    "lakehead.table.mode": "upsert",  # a row for each key; `lakehead.table.scd=2` keeps history
    "lakehead.table.value.format": "debezium",
    "lakehead.table.keys": "id",
    "lakehead.table.schema": "id BIGINT, name STRING, balance DECIMAL(12, 2)",
}
Row = dict[str, Any]
Event = tuple[str, str | None]


def row(id_: int, name: str, balance: str) -> Row:
    """A row of the database."""
    return {"id": id_, "name": name, "balance": balance}


def change(op: str, before: Row | None, after: Row | None) -> Event:
    """The event of one change: its key and its envelope."""
    source = {"connector": "postgresql", "table": "accounts", "ts_ms": 1_700_000_000_000}
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
    return json.dumps({"id": (after or before or {})["id"]}), json.dumps(value)


def gone(before: Row) -> list[Event]:
    """A delete, and the tombstone after it."""
    deleted = change("d", before, None)
    return [deleted, (deleted[0], None)]


ANN, BOB, EVE = row(1, "Ann", "10.00"), row(2, "Bob", "0.50"), row(3, "Eve", "99.99")
MONDAY = [change("r", None, ANN), change("r", None, BOB), change("c", None, EVE)]
TUESDAY = [
    change("u", ANN, row(1, "Ann", "12.25")),
    *gone(BOB),
    change("u", EVE, row(30, "Eve", "99.99")),  # its key changes
]


def main() -> None:
    """Bring the table up to date twice, and show it."""
    with running_broker() as broker:
        broker.create_topic("accounts", partitions=1, configs=DECLARED)
        for day, events in (("Monday", MONDAY), ("Tuesday", TUESDAY)):
            broker.produce("accounts", events)
            broker.flush()
            # The same as `lakehead materialize`; with --follow it runs continuously.
            tables = DeclaredTables(broker.path)
            tables.catch_up(
                all_of_them=True, on_table=lambda told: print(told.table, told.error or "")
            )
            tables.close()
            place = str(broker.folder / "data" / "tables" / "accounts")
            rows = DeltaTable(place).to_pyarrow_table(columns=["id", "name", "balance"]).to_pylist()
            print(day, sorted((one["id"], one["name"], str(one["balance"])) for one in rows))


if __name__ == "__main__":
    main()
