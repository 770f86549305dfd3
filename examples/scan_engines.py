"""DuckDB, Polars and pandas read a topic in place, without Spark and without the broker.

python examples/scan_engines.py
"""

import json
import random

import duckdb
import polars as pl

import lakehead
from lakehead.broker.testing import running_broker

CITIES = ("Oslo", "Lima", "Pune", "Kyiv")


def readings(count: int) -> list[tuple[str, str]]:
    """Keys and JSON values, the same at each run."""
    rng = random.Random(1)
    return [
        (city, json.dumps({"celsius": round(rng.gauss(15, 8), 1), "reading": number}))
        for number in range(count)
        for city in CITIES
    ]


def main() -> None:
    """Produce readings, then query them with three engines."""
    with running_broker() as broker:
        broker.create_topic("readings", partitions=4)
        broker.produce("readings", readings(500))
        broker.flush()  # else objects are seconds behind
        path = broker.path

        # DuckDB takes a scan as a table, by the name of the variable, as often as it likes.
        scan = lakehead.scan(path, "readings", columns=["key", "value"])
        connection = duckdb.connect()
        connection.register("readings", scan)
        warmest = connection.sql(
            """
            SELECT decode(key) AS city, max((decode(value)::JSON ->> 'celsius')::DOUBLE) AS celsius
            FROM readings GROUP BY city ORDER BY celsius DESC LIMIT 1
            """
        ).fetchall()
        print("warmest, by DuckDB:", warmest[0])

        # Polars makes a frame of it; of a topic that does not fit into memory, batch by batch.
        frame = pl.DataFrame(lakehead.scan(path, "readings", columns=["key", "value"], copy=True))
        celsius = pl.col("value").cast(pl.String).str.json_path_match("$.celsius")
        means = (
            frame.with_columns(city=pl.col("key").cast(pl.String))
            .group_by("city")
            .agg(celsius.cast(pl.Float64).mean().round(1).alias("mean"))
            .sort("city")
        )
        print("means, by Polars:", dict(means.iter_rows()))

        # Bounds are applied before anything is fetched: here the last record of each partition.
        ends = (
            lakehead.catalog_tables(path)
            .partitions.to_pandas()
            .set_index("partition")["end_offset"]
        )
        newest = lakehead.scan(
            path, "readings", starting_offsets={p: max(end - 1, 0) for p, end in ends.items()}
        )
        print("newest, by pandas:", newest.read_all().to_pandas()["offset"].tolist())


if __name__ == "__main__":
    main()
