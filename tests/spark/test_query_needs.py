"""`lakehead sql` reads of a topic what a query needs: the same rows, of fewer bytes."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.needs import Needs
from lakehead.lake.source.batch_reader import BatchReader
from lakehead.lake.source.options import batch_options
from lakehead.lake.source.rows import rows_of, rows_schema
from lakehead.lake.source.split_partition import SplitPartition
from lakehead.lake.sql import shell
from lakehead.lake.sql.query_needs import Options, is_query, query_needs
from tests.support.declared_topics import configure
from tests.support.group_commits import commit_offsets
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

HOUR_MS = 3_600_000
PARTITIONS, OBJECTS, RECORDS = 3, 4, 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("needs")
    cluster = LakeCluster(str(root))
    for topic in ("orders", "flights"):
        cluster.create_topic(topic, PARTITIONS)
        for number in range(OBJECTS):
            batches = {}
            for partition in range(PARTITIONS):
                records = [
                    TestRecord(
                        offset=number * RECORDS + n,
                        timestamp=number * HOUR_MS + n,
                        key=b"k%d" % n,
                        value=json.dumps({"offset": n, "b": f"b{partition}"}).encode(),
                    )
                    for n in range(RECORDS)
                ]
                batches[topic, partition] = [encode_batch(records)]
            cluster.write(batches)
    configure(root, "flights", {"lakehead.table.value.format": "json"})
    return root


@pytest.fixture
def found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[dict[Options, Needs]]:
    """The needs of each analysis. All statements are Spark's, and all topics large."""
    needs: list[dict[Options, Needs]] = []

    def recorded(frame: object) -> dict[Options, Needs]:
        needs.append(query_needs(frame))  # type: ignore[arg-type]
        return needs[-1]

    monkeypatch.setattr(shell, "run_direct", lambda *_: None)
    monkeypatch.setattr(shell, "read_small", lambda _: {})
    monkeypatch.setattr(shell, "query_needs", recorded)
    assert spark is SparkSession.getActiveSession()
    return needs


def rows(place: Path, statements: str) -> list[str]:
    out = io.StringIO()
    assert shell.run_sql(str(place), execute=statements, output="csv", out=out) == 0
    return sorted(out.getvalue().splitlines())


def bytes_of(options: Mapping[str, str], needs: Needs) -> int:
    checked = batch_options({**options, "needs": needs.form()})
    reader = BatchReader(checked, rows_of(checked, rows_schema(checked)))
    splits = [one.split for one in reader.partitions() if isinstance(one, SplitPartition)]
    return sum(split.length for split in splits)


@pytest.mark.parametrize(
    ("statement", "blocks", "columns"),
    [
        ("SELECT value FROM orders WHERE partition = 1", 4, {"value", "partition"}),
        ("SELECT count(*) FROM orders WHERE partition IN (0, 2)", 0, {"partition"}),
        ("SELECT partition, count(*) FROM orders GROUP BY partition", 0, {"partition"}),
        ("SELECT max(key) FROM orders WHERE 5 <= offset AND offset < 10", 3, {"key", "offset"}),
        ("SELECT key FROM orders WHERE offset = 7 OR offset = 12", 6, {"key", "offset"}),
        (
            "SELECT offset FROM orders WHERE timestamp >= TIMESTAMP '1970-01-01 02:00:01'",
            3,
            {"offset", "timestamp"},
        ),
        ("SELECT count(*) FROM orders WHERE timestamp > now()", 0, {"timestamp"}),
        ("SELECT count(*) FROM orders WHERE offset < unix_seconds(now())", 12, {"offset"}),
        ("SELECT count(*) FROM orders WHERE partition > 5 AND length(value) > 1", 12, None),
        ("SELECT * FROM orders WHERE partition = 2", 4, None),
        ("SELECT sum(_offset) FROM flights WHERE _partition = 1", 4, {"_offset", "_partition"}),
        ("SELECT sum(offset), max(b) FROM flights WHERE offset < 2", 12, {"offset", "b"}),
        (
            (
                "SELECT a.key FROM orders a JOIN orders b ON a.offset = b.offset "
                "WHERE a.partition = 0 AND b.partition = 1"
            ),
            8,
            {"key", "offset", "partition"},
        ),
        (
            (
                "SELECT key FROM orders WHERE partition = 0 UNION ALL "
                "SELECT value FROM orders WHERE offset = 3"
            ),
            12,
            {"key", "value", "offset", "partition"},
        ),
        (
            (
                "SELECT max(key) FROM orders WHERE partition = 0 AND offset > "
                "(SELECT min(offset) FROM orders WHERE partition = 1)"
            ),
            8,
            {"key", "offset", "partition"},
        ),
        (
            (
                "WITH t AS (SELECT *, row_number() OVER (PARTITION BY partition ORDER BY offset) n "
                "FROM orders) SELECT partition, max(n) FROM t GROUP BY partition"
            ),
            12,
            {"offset", "partition"},
        ),
        ("SELECT count(*) FROM orders a LEFT ANTI JOIN orders b ON a.offset = b.offset", 12, None),
    ],
)
def test_a_query_has_the_same_rows_from_the_bytes_and_columns_that_it_needs(
    place: Path,
    found: list[dict[Options, Needs]],
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    blocks: int,
    columns: set[str] | None,
) -> None:
    narrowed = rows(place, statement)
    ((key, needs),) = found[0].items()
    options = dict(key)
    whole = bytes_of(options, Needs())
    assert bytes_of(options, needs) == whole * blocks // (PARTITIONS * OBJECTS)
    if columns is not None:
        assert needs.columns == frozenset(columns)
    monkeypatch.setattr(shell, "is_query", lambda _: False)
    assert rows(place, statement) == narrowed


def test_a_view_over_a_topic_has_all_rows_after_a_query_that_needed_few(
    place: Path, found: list[dict[Options, Needs]]
) -> None:
    shown = rows(
        place,
        "CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT * FROM orders;"
        "SELECT count(key) AS few FROM orders WHERE partition = 0;"
        "SELECT count(key) AS every FROM mine;",
    )
    assert set(shown) == {"few", "20", "every", "60"}
    assert found


def test_a_group_without_a_commit_of_the_needed_partition_has_read_none_of_it(
    place: Path, found: list[dict[Options, Needs]]
) -> None:
    commit_offsets(place, "reports", "orders", {0: 7})
    read = "SELECT count(*) AS n FROM orders VERSION AS OF 'group:reports'"
    assert rows(place, f"{read} WHERE partition = 1") == ["0", "n"]
    assert found[0][next(iter(found[0]))].partitions == frozenset({1})
    assert rows(place, read) == ["7", "n"]


def test_bounds_that_move_with_the_time_do_not_leave_out_rows(
    place: Path, found: list[dict[Options, Needs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second analysis with wider bounds than the first one: the query reads whole views."""
    texts = iter(["offset < 3", "offset < 3", "offset < 13"])
    statement = "SELECT count(*) AS n FROM orders WHERE "
    real = SparkSession.sql
    monkeypatch.setattr(
        SparkSession,
        "sql",
        lambda self, text, *a, **k: (
            real(self, statement + next(texts), *a, **k)
            if text.startswith(statement)
            else real(self, text, *a, **k)
        ),
    )
    next(texts)
    assert rows(place, statement + "offset < 3") == ["9", "n"]
    first, second = found
    (key,) = first
    assert not first[key].covers(second[key])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT 1", True),
        (" with a as (select 1) select * from a", True),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", False),
        ("CREATE TABLE t AS SELECT 1", False),
        ("INSERT INTO t SELECT 1", False),
        ("FROM t INSERT INTO u SELECT *", False),
    ],
)
def test_only_queries_are_analyzed_twice(statement: str, expected: bool) -> None:
    assert is_query(statement) == expected
