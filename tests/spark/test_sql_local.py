"""Views of small topics reach Spark as rows: without its Python workers, and only those named."""

import io
import json
import os
import statistics
import subprocess
import sys
import threading

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.spark import cache_folder, is_whole
from lakehead.lake.sql import views
from lakehead.lake.sql.delta_tables import may_name_delta
from lakehead.lake.sql.shell import run_sql
from lakehead.lake.sql.views import LocalRows, TopicViews, ViewSource, read_small
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

RECORDS = 400
GROUPED = "SELECT b, count(*) AS n, max(_offset) AS last FROM orders GROUP BY b ORDER BY b"
DECLARED = {"lakehead.table.value.format": "json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("local") / "cluster"
    values: list[bytes | None] = [
        json.dumps({"a": n, "b": f"x{n % 3}", "at": "2026-01-31T23:59:59.123456Z"}).encode()
        for n in range(RECORDS)
    ]
    for topic in ("orders", "orders-old", "order", "s"):
        write_topic(root, topic, {0: values[::2], 1: values[1::2]}, partitions=2)
        configure(root, topic, DECLARED)
    write_topic(root, "plain", {0: [b"v", None]})
    write_topic(root, "lakehead.topics", {0: [b"v"]})
    write_topic(root, "mixed", {0: [b'{"a":1}', b"{", b'{"a":3}']})
    configure(root, "mixed", DECLARED)
    return str(root)


@pytest.fixture
def no_workers(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python source that Spark asks anything ends the test."""
    monkeypatch.setattr(
        "lakehead.lake.sql.views.ViewSource.frame",
        lambda *_: pytest.fail("a view is read by Spark's Python workers"),
    )


def rows_of(place: str, statement: str) -> list[dict[str, object]]:
    out = io.StringIO()
    assert run_sql(place, execute=statement, output="json", out=out) == 0
    return list(map(json.loads, out.getvalue().splitlines()))


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    "statement",
    [
        GROUPED,
        "SELECT count(*) FROM orders JOIN plain p ON p.offset = orders._offset",
        "SELECT max(length(value)) FROM orders__raw",
        "SELECT t.topic, sum(end_offset) FROM lakehead.topics t, lakehead.partitions p GROUP BY 1",
        "SELECT upper(b) FROM Orders WHERE _offset < 2",
        "SELECT count(DISTINCT b) FROM `orders-old`",
    ],
)
def test_a_statement_over_small_topics_needs_no_python_worker(place: str, statement: str) -> None:
    assert rows_of(place, statement)


def test_rows_read_here_are_those_that_spark_reads(
    spark: SparkSession, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = [
        GROUPED,
        "SELECT *, typeof(at) FROM orders WHERE _offset < 3 ORDER BY _partition, _offset",
        "SELECT *, typeof(headers), typeof(timestamp) FROM plain ORDER BY offset",
        "SELECT *, typeof(configs) FROM lakehead.topics ORDER BY topic",
    ]
    here = [rows_of(place, statement) for statement in statements]
    schema = TopicViews(place).named("orders")["orders"]
    local = read_small({"orders": schema})["orders"]
    assert local.frame(spark).schema == schema.frame(spark).schema
    monkeypatch.setattr("lakehead.lake.sql.shell.read_small", lambda _: {})
    assert here == [rows_of(place, statement) for statement in statements]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("SELECT * FROM orders", {"orders"}),
        ("SELECT * FROM ORDERS s2, `Order`", {"orders", "order"}),
        ("SELECT * FROM orders__raw", {"orders__raw"}),
        ("SELECT s.b FROM plain AS p, s", {"plain", "s"}),
        ("SELECT ' it`s ', b FROM `orders-old`", {"orders-old", "orders", "s"}),
        ("SELECT * FROM IDENTIFIER('orders-' || 'old')", {"orders"}),
        ("EXECUTE IMMEDIATE 'SELECT * FROM `orders-old`'", {"orders-old", "orders"}),
        ("SELECT * FROM lakehead.partitions", {"lakehead.partitions"}),
        ("SELECT * FROM `lakehead.topics`", {"lakehead.topics", "`lakehead.topics`"}),
        ("SELECT topics FROM bordersx", set()),
        ("SELECT 1", set()),
    ],
)
def test_only_the_views_that_a_statement_names_are_made(
    place: str, statement: str, names: set[str]
) -> None:
    assert set(TopicViews(place).named(statement)) == names


@pytest.mark.parametrize("limit", ["OFFSETS_MAX", "FETCHED_BYTES_MAX", "HELD_BYTES_MAX"])
def test_a_topic_that_is_not_small_is_left_to_sparks_tasks(
    place: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = TopicViews(place).named("SELECT * FROM orders, plain")
    assert set(read_small(named)) == {"orders", "plain"}
    monkeypatch.setattr(views, limit, 1000 if limit != "OFFSETS_MAX" else RECORDS - 1)
    assert set(read_small(named)) == {"plain"}


def test_the_views_of_a_statement_share_one_bound(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = TopicViews(place).named("SELECT * FROM orders, `orders-old`")
    held = read_small(named)
    monkeypatch.setattr(views, "HELD_BYTES_MAX", held["orders"].table.nbytes * 3 // 2)
    assert len(read_small(named)) == 1


def test_a_value_that_cannot_be_decoded_ends_a_statement_only_if_it_is_needed(
    spark: SparkSession, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_sql(place, execute="SELECT sum(a) FROM mixed", out=io.StringIO()) == 1
    assert "topic mixed, partition 0, offset 1" in capfd.readouterr().err
    assert rows_of(place, "SELECT count(*) AS n FROM orders WHERE 'mixed' = b") == [{"n": 0}]


def test_topics_are_read_while_spark_starts(
    spark: SparkSession, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's start ends here only after the rows are there."""
    is_read = threading.Event()

    def read(named: dict[str, ViewSource]) -> dict[str, LocalRows]:
        rows = read_small(named)
        is_read.set()
        return rows

    def start(**_: object) -> SparkSession:
        assert is_read.wait(60), "rows wait for Spark"
        return spark

    monkeypatch.setattr("lakehead.lake.sql.shell.read_small", read)
    monkeypatch.setattr("lakehead.lake.sql.shell.spark_session", start)
    assert len(rows_of(place, GROUPED)) == 3


@pytest.mark.parametrize(
    ("statement", "may"),
    [
        (GROUPED, False),
        ("WITH a AS (SELECT 1) SELECT * FROM a", False),
        ("values (1), (2)", False),
        ("SELECT * FROM delta.`/t`", True),
        ("SELECT * FROM table_changes_by_path('/t', 0)", True),
        ("OPTIMIZE '/t'", True),
        ("DESCRIBE HISTORY '/t'", True),
        ("CREATE TABLE t (a INT) USING DELTA", True),
        ("/* x */ SELECT 1", True),
    ],
)
def test_a_statement_that_may_need_delta_is_known_by_its_text(statement: str, may: bool) -> None:
    assert may_name_delta([statement]) == may
    assert may_name_delta(["SELECT 1", statement]) == may


def test_queries_without_delta_start_spark_without_it(
    spark: SparkSession, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def start(*, delta: bool, **_: object) -> SparkSession:
        asked.append(delta)
        return spark

    monkeypatch.setattr("lakehead.lake.sql.shell.spark_session", start)
    run_sql(place, execute="SELECT 1 + 1", out=io.StringIO())
    run_sql(place, execute="SELECT 1 + 1; SELECT * FROM delta.`/nowhere`", out=io.StringIO())
    run_sql(place, source=io.StringIO("SELECT 1 + 1;"), out=io.StringIO())
    assert asked == [False, True, True]


_OURS = """\
from lakehead.lake.spark import spark_session
print(spark_session(delta=False).sql("SELECT count(*) FROM VALUES (1), (2) AS rows(a)").collect())
"""
"""The least that a session with our settings takes."""

_BARE = """\
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").getOrCreate()
print(session.sql("SELECT count(*) FROM VALUES (1), (2) AS rows(a)").collect())
"""
"""A session as PySpark makes it."""

_PAIRS = 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_statement_over_a_small_topic_takes_a_second_more_than_spark_alone(place: str) -> None:
    """Medians of differences between runs that follow each other, since a busy machine has the
    same neighbours then. CPU seconds count the whole of a run, its JVM's end too: on a busy machine
    they say more than what passed.
    """
    sql = ["-m", "lakehead", "sql", "--path", place, "-e", GROUPED]
    commands = {"bare": ["-c", _BARE], "ours": ["-c", _OURS], "sql": sql}
    assert _archive_is_there(sql)
    runs = [{name: _used(command) for name, command in commands.items()} for _ in range(_PAIRS)]
    for name in commands:
        cpu, elapsed = (statistics.median(one[name][unit] for one in runs) for unit in (0, 1))
        print(f"{name}: {cpu:.1f} CPU seconds, {elapsed:.1f} s; runs {[one[name] for one in runs]}")
    for unit, name in enumerate(("CPU seconds", "seconds")):
        more = {
            other: statistics.median(one["sql"][unit] - one[other][unit] for one in runs)
            for other in ("bare", "ours")
        }
        print(f"more {name}: {more}, load {os.getloadavg()}")
        assert more["bare"] < 1.0


def _archive_is_there(command: list[str]) -> bool:
    """Run a command that leaves the archive of classes, and wait for it: a first one has none."""
    _used(command)
    return any(map(is_whole, cache_folder().glob("spark-classes-*.jsa")))


def _used(arguments: list[str]) -> tuple[float, float]:
    """Return CPU seconds of a Python program and all that it started, and seconds until it ended.

    The JVM outlives its program: a parent of its own takes it over, and waits for it.
    """
    run = subprocess.run(
        [sys.executable, "-c", _METER, sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    cpu, elapsed = map(float, run.stdout.split())
    return cpu, elapsed


_METER = """\
import ctypes, os, subprocess, sys, time
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
begin = time.monotonic()
null = subprocess.DEVNULL
subprocess.run(sys.argv[1:], check=True, stdout=null, stderr=null, env=environment)
elapsed = time.monotonic() - begin
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
times = os.times()
print(times.children_user + times.children_system, elapsed)
"""
