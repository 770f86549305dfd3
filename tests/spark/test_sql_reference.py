"""Results of `lakehead sql` beside those of a program that knows the records and nothing else."""

import io
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.sql import views
from lakehead.lake.sql.shell import run_sql
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic

Row = dict[str, Any]
PARTITIONS, RECORDS = 3, 240
SCHEMA = "id BIGINT, shop STRING, amount DOUBLE, who STRUCT<name: STRING, age: INT>"
SHOPS = ["Århus", "北京", "a,b", 'quo"te', "", None]


def sale(rng: random.Random) -> Row | None:
    """A record, some of whose fields are null or not there; None is a tombstone."""
    if rng.random() < 0.05:
        return None
    made: Row = {
        "id": rng.choice([rng.randrange(50), 2**53 + 1, -(2**63), None]),
        "shop": rng.choice(SHOPS),
        "amount": rng.choice([rng.randrange(-400, 400) / 4, 0.0, None]),
        "who": rng.choice([None, {"name": "Ann", "age": rng.randrange(90)}, {"name": None}]),
    }
    return {name: value for name, value in made.items() if rng.random() < 0.9}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    root, rng = tmp_path_factory.mktemp("reference") / "cluster", random.Random(11)
    made = {number: [sale(rng) for _ in range(RECORDS)] for number in range(PARTITIONS)}
    encoded: dict[int, list[bytes | None]] = {
        number: [None if one is None else json.dumps(one).encode() for one in records]
        for number, records in made.items()
    }
    write_topic(root, "sales", encoded, partitions=PARTITIONS, batch_records=50)
    places = [{"shop": shop, "city": f"c{n}"} for n, shop in enumerate(SHOPS[:4])]
    write_topic(root, "shops", {0: [json.dumps(one).encode() for one in places]})
    table = {"lakehead.table.value.format": "json", "lakehead.table.schema": SCHEMA}
    configure(root, "sales", table)
    configure(root, "shops", {"lakehead.table.value.format": "json"})
    rows = [
        {
            "partition": number,
            "offset": offset,
            "id": (one or {}).get("id"),
            "shop": (one or {}).get("shop"),
            "amount": (one or {}).get("amount"),
            "name": ((one or {}).get("who") or {}).get("name"),
            "age": ((one or {}).get("who") or {}).get("age"),
        }
        for number, records in made.items()
        for offset, one in enumerate(records)
    ]
    return root, rows


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return found


def known(rows: Iterable[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


def total(rows: Iterable[Row]) -> float | None:
    values = known(rows, "amount")
    return sum(values) if values else None


STATEMENTS: dict[str, Callable[[list[Row]], list[tuple[Any, ...]]]] = {
    "SELECT count(*) AS n FROM sales": lambda rows: [(len(rows),)],
    "SELECT count(id) AS a, count(DISTINCT id) AS b, min(id) AS c, max(id) AS d FROM sales": (
        lambda rows: [
            (
                len(known(rows, "id")),
                len(set(known(rows, "id"))),
                min(known(rows, "id")),
                max(known(rows, "id")),
            )
        ]
    ),
    "SELECT shop, count(*) AS n, sum(amount) AS s FROM sales GROUP BY shop": lambda rows: [
        (shop, len(some), total(some)) for shop, some in grouped(rows, "shop").items()
    ],
    "SELECT _partition, _offset FROM sales WHERE amount > 10 AND shop IS NOT NULL": lambda rows: [
        (row["partition"], row["offset"])
        for row in rows
        if row["amount"] is not None and row["amount"] > 10 and row["shop"] is not None
    ],
    "SELECT who.name AS name, sum(who.age) AS s FROM sales GROUP BY who.name": lambda rows: [
        (name, sum(known(some, "age")) if known(some, "age") else None)
        for name, some in grouped(rows, "name").items()
    ],
    "SELECT city, count(*) AS n FROM sales JOIN shops USING (shop) GROUP BY city": lambda rows: [
        (f"c{number}", len(grouped(rows, "shop")[shop])) for number, shop in enumerate(SHOPS[:4])
    ],
    "SELECT count(*) AS n FROM sales WHERE NOT amount > 10": lambda rows: [
        (sum(not amount > 10 for amount in known(rows, "amount")),)
    ],
}
"""Each statement, and what a program makes of the records."""


@pytest.mark.parametrize(
    "is_local",
    [
        pytest.param(True, id="read here"),
        pytest.param(False, id="read by tasks", marks=pytest.mark.slow),
    ],
)
def test_results_are_those_of_a_program_that_has_the_records(
    spark: SparkSession,
    cluster: tuple[Path, list[Row]],
    monkeypatch: pytest.MonkeyPatch,
    is_local: bool,
) -> None:
    root, rows = cluster
    if not is_local:
        monkeypatch.setattr(views, "OFFSETS_MAX", 0)
    for statement, reference in STATEMENTS.items():
        out = io.StringIO()
        assert run_sql(str(root), execute=statement, out=out, output="json") == 0
        found = [tuple(json.loads(line).values()) for line in out.getvalue().splitlines()]
        assert sorted(found, key=repr) == sorted(reference(rows), key=repr), statement


@pytest.mark.parametrize("statement", ["SELECT * FROM sales", "SELECT id, shop FROM sales"])
def test_limits_and_offsets_divide_the_rows(
    spark: SparkSession, cluster: tuple[Path, list[Row]], statement: str
) -> None:
    root, rows = cluster

    def ask(text: str) -> list[str]:
        out = io.StringIO()
        assert run_sql(str(root), execute=text, out=out, output="json") == 0
        return out.getvalue().splitlines()

    whole = ask(statement)
    assert len(whole) == len(rows)
    parts = [ask(f"{statement} LIMIT 300 OFFSET {first}") for first in range(0, 900, 300)]
    assert [line for part in parts for line in part] == whole
