"""`lakehead sql`: views over topics, output formats, errors in one line."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.sql import run_sql
from storage.errors import SettingsError, UnknownTopic
from tests.support.topic_writer import write_topic

Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sql") / "cluster"
    orders = [json.dumps({"id": n, "who": f"n{n % 2}"}).encode() for n in range(4)]
    write_topic(root, "my-orders", {0: orders})
    people = [b'{"who":"n0","full":"Ann"}', b'{"who":"n1","full":"Bob"}', b"\xff", None]
    write_topic(root, "people", {0: people})
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
    with pytest.raises(SettingsError, match="--json wants"):
        ask("SELECT 1", "=a INT")
    with pytest.raises(SettingsError, match="type WIBBLE"):
        ask("SELECT 1", "people=a WIBBLE")
