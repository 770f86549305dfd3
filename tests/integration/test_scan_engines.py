"""DuckDB and Polars over `lakehead.scan`: both read a topic where it lies, by Arrow's C
interface.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest

import lakehead
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 500


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Topic `orders`, partitions 0 and 1 of 500 records each: JSON, nulls, headers, all codecs."""
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders", 2)
    for first in range(0, COUNT, 50):
        made.write(
            {
                ("orders", partition): [
                    encode_batch(
                        [
                            TestRecord(
                                offset=offset,
                                timestamp=T0 + offset * 1000,
                                key=b"k%d" % (offset % 7) if offset % 5 else None,
                                value=b'{"id": %d, "city": "Turku on the river"}' % offset
                                if offset % 10
                                else None,
                                headers=(("h", b"%d" % offset),) if offset % 2 else (),
                            )
                            for offset in range(first, first + 50)
                        ],
                        codec=CODECS[first // 50 % len(CODECS)],
                    )
                ]
                for partition in (0, 1)
            }
        )
    return str(tmp_path)


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def test_duckdb_queries_a_scan_again_and_again(
    store: str, database: duckdb.DuckDBPyConnection
) -> None:
    database.register("orders", lakehead.scan(store, "orders", include_headers=True))
    by_partition = """
        SELECT partition, count(*), count(value), count(key), max("offset"),
               sum((decode(value)::JSON->>'id')::INT), count(headers)
        FROM orders GROUP BY partition ORDER BY partition
    """
    ids = sum(offset for offset in range(COUNT) if offset % 10)
    expected = [(partition, COUNT, 450, 400, COUNT - 1, ids, 250) for partition in (0, 1)]
    for _ in range(2):
        assert database.sql(by_partition).fetchall() == expected
    late = database.sql("""SELECT "offset", headers[1].value, epoch_ms(timestamp) FROM orders
                           WHERE partition = 1 AND "offset" > 497 ORDER BY 1""").fetchall()
    assert late == [(498, None, T0 + 498_000), (499, b"499", T0 + 499_000)]


def test_duckdb_joins_two_scans_with_what_it_has(
    store: str, database: duckdb.DuckDBPyConnection
) -> None:
    zero = lakehead.scan(
        store, "orders", ending_offsets={0: COUNT, 1: 0}, columns=["offset", "value"]
    )
    one = lakehead.scan(
        store, "orders", starting_offsets={0: COUNT, 1: 0}, columns=["offset", "value"]
    )
    database.register("zero", zero)
    database.register("one", one)
    same = """SELECT count(*) FROM zero JOIN one USING ("offset") WHERE zero.value = one.value"""
    assert database.sql(same).fetchall() == [(450,)]


def test_polars_takes_a_scan_as_a_frame(store: str) -> None:
    frame = pl.DataFrame(lakehead.scan(store, "orders", include_headers=True))
    assert frame.shape == (2 * COUNT, 8)
    found = (
        frame.filter(pl.col("value").is_not_null())
        .with_columns(
            pl.col("value").cast(pl.String).str.json_path_match("$.id").cast(pl.Int64).alias("id")
        )
        .group_by("partition")
        .agg(pl.col("id").sum(), pl.len(), pl.col("headers").list.len().sum().alias("headers"))
        .sort("partition")
    )
    ids = sum(offset for offset in range(COUNT) if offset % 10)
    headed = sum(1 for offset in range(COUNT) if offset % 10 and offset % 2)
    assert found.rows() == [(partition, ids, 450, headed) for partition in (0, 1)]


def test_polars_goes_through_a_topic_batch_by_batch(store: str) -> None:
    totals: dict[int, int] = dict.fromkeys((0, 1), 0)
    with lakehead.scan(store, "orders", columns=["partition", "offset"], rows_max=64) as scan:
        for batch in scan:
            frame = pl.DataFrame(batch)
            for partition, total in frame.group_by("partition").sum().rows():
                totals[partition] += total
    assert totals == dict.fromkeys((0, 1), COUNT * (COUNT - 1) // 2)


def test_both_read_the_same_pruned_range(store: str, database: duckdb.DuckDBPyConnection) -> None:
    bounds = {"starting_timestamp": T0 + 100_000, "ending_timestamp": T0 + 150_000}
    day = lakehead.scan(store, "orders", **bounds)  # type: ignore[arg-type]
    assert day.length < lakehead.scan(store, "orders").length / 5
    database.register("day", day)
    of_duckdb = database.sql('SELECT partition, "offset", key, value FROM day ORDER BY ALL')
    of_polars = pl.DataFrame(day).select("partition", "offset", "key", "value")
    assert of_duckdb.fetchall() == of_polars.sort("partition", "offset").rows()
    assert of_polars.height == 100


def test_what_is_wrong_reaches_who_asked(
    store: str, tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    path = next((tmp_path / "data").rglob("1-1-1"))
    body = bytearray(path.read_bytes())
    body[300] ^= 1
    path.chmod(0o644)
    path.write_bytes(body)
    scan = lakehead.scan(store, "orders")
    database.register("orders", scan)
    with pytest.raises(duckdb.Error, match="is corrupt at byte"):
        database.sql("SELECT count(value) FROM orders").fetchall()
    with pytest.raises(Exception, match="is corrupt at byte"):
        pl.DataFrame(scan)
