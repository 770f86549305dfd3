"""`lakehead sql`: views over topics, output formats, errors in one line."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.decode.modes import checked_mode
from lakehead.lake.sql.direct import run_direct
from lakehead.lake.sql.shell import run_sql
from lakehead.lake.sql.views import TopicViews
from lakehead.storage.errors import SettingsError, UnknownTopic
from tests.support.declared_topics import configure
from tests.support.group_commits import commit_offsets
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch, seal_batch
from tests.support.topic_writer import write_topic

Ask = Callable[..., tuple[int, str]]

HOUR = 3_600_000
FLIGHTS = [
    {"origin": "JFK", "dep_delay": 10.5},
    {"origin": "JFK", "dep_delay": 1},
    {"origin": "EWR", "dep_delay": None},
    {"origin": "EWR", "dep_delay": 4},
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sql") / "cluster"
    orders = [json.dumps({"id": n, "who": f"n{n % 2}"}).encode() for n in range(4)]
    write_topic(root, "my-orders", {0: orders})
    people = [b'{"who":"n0","full":"Ann"}', b'{"who":"n1","full":"Bob"}', b"\xff", None]
    write_topic(root, "people", {0: people})
    flights = [
        TestRecord(offset=0, timestamp=n * HOUR, value=json.dumps(flight).encode())
        for n, flight in enumerate(FLIGHTS)
    ]
    write_topic(root, "flights", {0: flights}, batch_records=1)
    configure(root, "flights", {"lakehead.table.value.format": "json"})
    nested = {
        "at": "2026-01-31T23:59:59.123456Z",
        "day": "2026-02-28",
        "price": 12.5,
        "tags": {"a": 1},
        "seen": ["1970-01-01T00:00:00Z"],
        "deep": {"at": "2000-01-01T00:00:00Z", "none": None},
    }
    rows: dict[int, list[bytes | None]] = {0: [json.dumps(nested).encode(), b"{}"], 1: [None]}
    write_topic(root, "nested", rows, partitions=2)
    write_topic(root, "mixed", {0: [b'{"a":1}', b"{", b'{"a":3}']})
    configure(root, "mixed", {"lakehead.table.value.format": "json"})
    write_topic(root, "drifting", {0: [b'{"a":1}', b'{"a":"x"}', b'{"a":3}']})
    configure(root, "drifting", {"lakehead.table.value.format": "json"})
    return root


@pytest.fixture
def ask(spark: SparkSession, place: Path) -> Ask:
    def run(statement: str | None, *json_topics: str, **options: str) -> tuple[int, str]:
        out = io.StringIO()
        source = io.StringIO(options.pop("typed", ""))
        status = run_sql(
            str(place),
            execute=statement,
            json_topics=json_topics,
            out=out,
            source=source,
            **options,  # type: ignore[arg-type]
        )
        return status, out.getvalue()

    return run


def test_a_topic_is_a_view_of_its_records(ask: Ask) -> None:
    status, out = ask("SELECT offset, value FROM people ORDER BY offset", output="csv")
    assert status == 0
    assert out == (
        'offset,value\n0,"{""who"":""n0"",""full"":""Ann""}"\n'
        '1,"{""who"":""n1"",""full"":""Bob""}"\n2,ff\n3,\n'
    )


def test_json_fields_are_columns_and_views_join(ask: Ask) -> None:
    status, out = ask(
        "SELECT full, count(*) AS n, max(people._offset) AS last "
        "FROM `my-orders` JOIN people USING (who) GROUP BY full ORDER BY full;",
        "my-orders",
        "people=who STRING, full STRING",
        output="json",
        undecodable="null",
    )
    assert status == 0
    assert list(map(json.loads, out.splitlines())) == [
        {"full": "Ann", "n": 2, "last": 0},
        {"full": "Bob", "n": 2, "last": 1},
    ]
    status, out = ask("SELECT count(headers), count(*) FROM people__raw", "people", output="csv")
    assert out.splitlines()[1] == "0,4"


def test_a_table_for_people(ask: Ask) -> None:
    status, out = ask("SELECT id, who FROM `my-orders` WHERE id < 2 ORDER BY id", "my-orders")
    assert status == 0
    assert [line.split() for line in out.splitlines()[::2]] == [
        ["id", "who"],
        ["0", "n0"],
        ["2", "rows"],
    ]


def test_each_statement_sees_what_is_there_when_it_begins(ask: Ask, tmp_path: Path) -> None:
    class Growing(io.StringIO):
        """Writes to the topic before it gives out the next line."""

        def __next__(self) -> str:  # type: ignore[override]
            line = super().__next__()
            write_topic(tmp_path / "grows", "t", {0: [b'{"a":1}']})
            return line

    write_topic(tmp_path / "grows", "t", {0: [b'{"a":1}']})
    for json_topics in ((), ("t",)):
        out = io.StringIO()
        typed = Growing("SELECT count(*) AS n FROM t;\n" * 3)
        run_sql(
            str(tmp_path / "grows"), json_topics=json_topics, source=typed, out=out, output="json"
        )
        counts = [json.loads(line)["n"] for line in out.getvalue().splitlines()]
        assert counts == [counts[0], counts[0] + 1, counts[0] + 2]


def test_statements_from_a_pipe_stop_at_the_first_error(
    ask: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out = ask(None, typed="SELECT 1 AS a;\nSELECT\n nope;\nSELECT 2 AS a;", output="json")
    assert status == 1
    assert out == '{"a": 1}\n'
    error = capfd.readouterr().err
    assert error.startswith("error: [UNRESOLVED_COLUMN")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "SELEC 1",
        "SELECT * FROM nope",
        "SELECT 1/0",
        "SELECT nope FROM people",
        "SELECT raise_error('x')",
    ],
)
def test_an_error_is_one_line(ask: Ask, capfd: pytest.CaptureFixture[str], statement: str) -> None:
    assert ask(statement) == (1, "")
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_views_are_listed(ask: Ask) -> None:
    _, out = ask("SHOW VIEWS", "people", output="csv")
    assert {line.split(",")[1] for line in out.splitlines()[1:]} >= {
        "my-orders",
        "people",
        "people__raw",
    }


def test_what_cannot_work_is_said_before_anything_runs(ask: Ask) -> None:
    with pytest.raises(UnknownTopic):
        ask("SELECT 1", "nope")
    with pytest.raises(SettingsError, match="--json-values wants"):
        ask("SELECT 1", "=a INT")
    with pytest.raises(SettingsError, match="type WIBBLE"):
        ask("SELECT 1", "people=a WIBBLE")


def test_a_declared_topic_is_decoded_without_a_cast(ask: Ask) -> None:
    status, out = ask(
        "SELECT origin, avg(dep_delay) AS delay FROM flights GROUP BY origin ORDER BY origin",
        output="csv",
    )
    assert (status, out) == (0, "origin,delay\nEWR,4.0\nJFK,5.75\n")
    _, out = ask("SELECT count(value) AS n FROM flights__raw", output="csv")
    assert out == "n\n4\n"


def test_a_value_that_cannot_be_decoded_is_named_or_null(
    ask: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask("SELECT sum(a) FROM mixed") == (1, "")
    error = capfd.readouterr().err
    assert error.startswith("error: topic mixed, partition 0, offset 1: ")
    assert error.count("\n") == 1
    assert "--undecodable null" in error
    _, out = ask(
        "SELECT sum(a), count(*), count(_error), min(_offset) FILTER (WHERE _error IS NOT NULL) "
        "FROM mixed",
        output="csv",
        undecodable="null",
    )
    assert out.splitlines()[1] == "4,3,1,1"


def test_a_topic_with_one_value_of_another_type_has_a_view(
    ask: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    _, out = ask(
        "SELECT a, _error FROM drifting ORDER BY _offset", output="json", undecodable="null"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("a") for row in rows] == [1, None, 3]
    assert rows[1]["_error"] == "field a: text that is not BIGINT"
    assert ask("SELECT sum(a) FROM drifting") == (1, "")
    error = capfd.readouterr().err
    assert error.startswith("error: topic drifting, partition 0, offset 1: field a: text")


def test_the_cluster_can_be_asked_about(ask: Ask, place: Path) -> None:
    configure(place, "people", {"lakehead.table.enable": "true"})
    _, out = ask(
        "SELECT t.topic, t.offsets, p.end_offset, size(t.configs) AS configs "
        "FROM lakehead.topics t JOIN lakehead.partitions p USING (topic) WHERE topic = 'mixed';"
        "SELECT count(*) FROM lakehead.objects WHERE exists(ranges, r -> r.topic = 'flights');"
        "SELECT wal, is_fenced FROM lakehead.nodes; SELECT count(*) FROM lakehead.groups;"
        "SELECT topic, records_behind, version, error FROM lakehead.tables",
        output="json",
    )
    rows = list(map(json.loads, out.splitlines()))
    assert rows[0] == {"topic": "mixed", "offsets": 3, "end_offset": 3, "configs": 1}
    assert list(rows[1].values()) == [1]
    assert rows[2]["is_fenced"] is not None
    assert list(rows[3].values()) == [0]
    assert rows[4] == {"topic": "people", "records_behind": 4, "version": None, "error": None}
    _, out = ask("SHOW VIEWS IN lakehead", output="csv")
    assert {line.split(",")[1] for line in out.splitlines()[1:]} >= {"topics", "tables", "groups"}


@pytest.mark.parametrize(
    ("arguments", "offset"),
    [
        ("TIMESTAMP '1970-01-01 02:00:00', 'flights'", 2),
        ("'1970-01-01 00:30:00', 'flights'", 1),
        (f"{3 * HOUR}, 'flights'", 3),
        ("now(), concat('fl', 'ights')", 4),
        ("DATE '1970-01-01', 'flights'", 0),
    ],
)
def test_offsets_for_a_timestamp(ask: Ask, arguments: str, offset: int) -> None:
    status, out = ask(
        f"SELECT o.offset FROM lakehead.Offsets_For ({arguments}) o -- lakehead.offsets_for(1)",
        output="csv",
    )
    assert (status, out) == (0, f"offset\n{offset}\n")


def test_offsets_for_a_timestamp_join_what_came_since(ask: Ask) -> None:
    since = "TIMESTAMP '1970-01-01 01:00:00'"
    _, out = ask(
        f"SELECT origin FROM flights f JOIN lakehead.offsets_for({since}) o ON f._topic = o.topic "
        "AND f._partition = o.partition WHERE f._offset >= o.offset ORDER BY _offset;"
        "SELECT a.offset, b.offset FROM lakehead.offsets_for(0, 'flights') a, "
        "lakehead.offsets_for(3600001, 'flights') b",
        output="csv",
    )
    assert out.split() == ["origin", "JFK", "EWR", "EWR", "offset,offset", "0,2"]


@pytest.mark.parametrize("arguments", ["", "NULL", "-1", "nope", "'soon'", "0, 'no-such-topic'"])
def test_offsets_for_what_is_no_timestamp(
    ask: Ask, capfd: pytest.CaptureFixture[str], arguments: str
) -> None:
    assert ask(f"SELECT * FROM lakehead.offsets_for({arguments})") == (1, "")
    assert capfd.readouterr().err.count("\n") == 1


_NESTED = (
    "nested=at TIMESTAMP, day DATE, price DECIMAL(9,2), tags MAP<STRING, BIGINT>, "
    "seen ARRAY<TIMESTAMP>, deep STRUCT<at: TIMESTAMP, none: STRING>"
)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM `my-orders`",
        "select COUNT( 1 ) from flights limit 1",
        "SELECT count(*) FROM flights LIMIT 0",
        "SELECT * FROM `my-orders`",
        "SELECT offset, `value` FROM people LIMIT 3",
        "SELECT * FROM flights",
        "SELECT _offset, dep_delay FROM flights LIMIT 2",
        "SELECT * FROM flights__raw",
        "SELECT * FROM nested",
        "SELECT deep, tags FROM nested",
        "SELECT * FROM mixed",
        "SELECT count(*) FROM mixed",
        "SELECT topic, partitions, configs FROM lakehead.topics",
        "SELECT topic, start_offset, newest FROM `lakehead`.partitions",
        "SELECT kind, ranges FROM lakehead.objects",
        "SELECT * FROM lakehead.groups",
    ],
)
def test_a_statement_that_needs_no_spark_has_the_rows_that_spark_gives(
    ask: Ask, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = "table" if statement == "SELECT * FROM nested" else "json"

    def never(**_: object) -> SparkSession:
        raise AssertionError("Spark was started")

    with monkeypatch.context() as without_spark:
        without_spark.setattr("lakehead.lake.sql.shell.spark_session", never)
        direct = ask(statement, _NESTED, output=output)
    monkeypatch.setattr("lakehead.lake.sql.shell.run_direct", lambda *_: None)
    assert direct == ask(statement, _NESTED, output=output)


@pytest.mark.parametrize("in_spark", [False, True], ids=["direct", "Spark"])
@pytest.mark.parametrize("is_decoded", [False, True], ids=["bytes", "decoded"])
def test_a_mode_says_what_becomes_of_batches_that_cannot_be_read(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_decoded: bool,
    in_spark: bool,
) -> None:
    cluster = LakeCluster(str(tmp_path))
    cluster.create_topic("t", 1)
    values = [TestRecord(offset=n, value=b'{"a":%d}' % n) for n in (0, 4)]
    late = TestRecord(offset=5, value=b'{"a":5}', timestamp=1 << 62)
    noise = seal_batch(b"\xff" * 9, base_offset=1, last_offset_delta=2, record_count=3)
    cluster.write({("t", 0): [encode_batch(values[:1]), noise, encode_batch([values[1], late])]})
    if is_decoded:
        configure(tmp_path, "t", {"lakehead.table.value.format": "json"})
    if in_spark:
        monkeypatch.setattr("lakehead.lake.sql.shell.run_direct", lambda *_: None)
    offset = "_offset" if is_decoded else "offset"

    def ask(mode: str, what: str) -> list[str]:
        out = io.StringIO()
        statement = f"SELECT {what} FROM t"
        run_sql(str(tmp_path), execute=statement, mode=checked_mode(mode), output="csv", out=out)
        return out.getvalue().splitlines()[1:]

    for mode, offsets in (("DROPMALFORMED", "04"), ("PERMISSIVE", "0145"), ("FAILFAST", "")):
        counted = [str(len(offsets))][: len(offsets)]
        if mode == "FAILFAST" and not is_decoded:
            counted = ["6"]  # by headers: no record is looked at
        assert ask(mode, "count(*)") == counted
        assert ask(mode, offset) == list(offsets)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "topic t, partition 0, offsets 1 to 3: " in error
    assert "--mode of lakehead sql" in error


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM flights WHERE _offset > 1",
        "SELECT count(DISTINCT value) FROM people",
        "SELECT * FROM flights ORDER BY _offset",
        "SELECT * FROM flights, people",
        "SELECT OFFSET FROM people",
        "SELECT * FROM Flights",
        "SELECT * FROM no_such_topic",
        "SELECT * FROM delta.`/nowhere`",
        "SELECT offset AS o FROM people",
        "SHOW TABLES",
        "SELECT * FROM flights LIMIT 1 -- all",
    ],
)
def test_any_other_statement_is_left_to_spark(place: Path, statement: str) -> None:
    assert run_direct(TopicViews(str(place)), statement) is None


def test_a_topic_is_read_as_of_a_time_offsets_and_the_commits_of_a_group(
    ask: Ask, place: Path
) -> None:
    commit_offsets(place, "reports", "flights", {0: 3})

    def delays(relation: str) -> list[str]:
        status, out = ask(f"SELECT _offset FROM {relation} ORDER BY 1", output="csv")
        assert status == 0, relation
        return out.split()[1:]

    # A record of that very millisecond is there, as a commit of that time is with Delta.
    assert delays("flights TIMESTAMP AS OF '1970-01-01 01:00:00Z'") == ["0", "1"]
    assert delays("flights TIMESTAMP AS OF '1970-01-01 00:59:59.999Z'") == ["0"]
    at = "TIMESTAMP '1970-01-01 05:00:00Z' - INTERVAL 3 HOURS"
    assert delays(f"flights FOR SYSTEM_TIME AS OF {at}") == ["0", "1", "2"]
    assert delays("flights VERSION AS OF 'group:reports'") == ["0", "1", "2"]
    assert delays("flights VERSION AS OF 1 f") == ["0"]
    assert delays("flights VERSION AS OF 1 WHERE flights._offset >= 0") == ["0"]
    assert delays("`flights` VERSION AS OF '{\"0\":-1}'") == ["0", "1", "2", "3"]
    added = "flights VERSION AS OF 4 a LEFT ANTI JOIN flights VERSION AS OF 'group:reports' b"
    assert delays(f"{added} ON a._offset = b._offset") == ["3"]


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ("flights VERSION AS OF 'group:nobody'", "group 'nobody' has committed no offset"),
        ("flights VERSION AS OF 9", "Cannot end at offset 9 of flights-0"),
        ("nested VERSION AS OF 1", "topic nested has 2 partitions: name an offset for each"),
        ("flights VERSION AS OF 'newest'", "a version of topic flights is 'group:NAME'"),
        ("flights TIMESTAMP AS OF NULL", "TIMESTAMP AS OF wants a timestamp since 1970, not NULL"),
        ("lakehead.topics VERSION AS OF 1", "lakehead.topics has rows of now alone"),
    ],
)
def test_what_no_topic_can_be_as_of_is_one_line(
    ask: Ask, capsys: pytest.CaptureFixture[str], relation: str, message: str
) -> None:
    status, out = ask(f"SELECT * FROM {relation}")
    assert (status, out) == (1, "")
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
