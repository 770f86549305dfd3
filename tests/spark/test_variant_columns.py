"""VARIANT columns as Spark has them: the bytes of `parse_json`, read by its own functions."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.attest_result import verdict
from lakehead.lake.tables.delta_spark import optimize_by_spark
from lakehead.storage.jobs.job import run_job
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.topic_writer import Value, write_topic
from tests.support.variants import encoded

pytestmark = [pytest.mark.timeout(600)]

NUMBERS = (
    *("0", "-0", "-0.0", "0.00", "127", "-128", "128", "-129", "32768", "-32769", "2147483648"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.50", "-123456.789"),
    *("999999999.9", "1234567890.12345678", "12345678901234567890.12345", "1e3", "1E-7", "1e0"),
    *("0." + "0" * 37 + "1", "0." + "0" * 38 + "1", "9" * 38, "9" * 39, "-" + "9" * 38),
    *("0." + "9" * 38, "1." + "9" * 38, "5e-324", "-2.5e+300", "12345678901234567890123456789e-5"),
)
NAMES = [f"{prefix}{n}" for prefix in ("n", "a longer name ", "ä") for n in range(150)]


def some_text(rng: random.Random, depth: int = 0) -> str:
    """A JSON value, with blanks and escapes."""
    kind = rng.randrange(7 if depth < 4 else 5)
    if kind == 0:
        return rng.choice(["null", "true", "false"])
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        size = rng.choice([0, 1, 5, 63, 64, 300])
        text = "".join(rng.choice('abc"\\/\n\tä€😀') for _ in range(size))
        return json.dumps(text, ensure_ascii=rng.random() < 0.5)
    blank = rng.choice(["", " ", "\n\t"])
    if kind == 5:
        count = rng.choice([0, 1, 3, 300]) if depth == 0 else rng.randrange(4)
        items = (some_text(rng, depth + 1) for _ in range(count))
        return f"[{blank}{f',{blank}'.join(items)}{blank}]"
    count = rng.choice([0, 1, 5, 300]) if depth == 0 else rng.randrange(5)
    names = rng.sample(NAMES, count)
    fields = (f"{json.dumps(name)}{blank}:{some_text(rng, depth + 1)}" for name in names)
    return "{" + f",{blank}".join(fields) + blank + "}"


def test_bytes_are_those_of_parse_json(spark: SparkSession) -> None:
    rng = random.Random(7)
    texts = [*NUMBERS, *(some_text(rng) for _ in range(600))]
    rows = spark.createDataFrame([(text,) for text in texts], "t string")
    expected = [row[0] for row in rows.selectExpr("parse_json(t)").collect()]
    found = encoded([text.encode() for text in texts])
    for text, (value, names, fault), variant in zip(texts, found, expected, strict=True):
        assert fault == 0, text
        assert (value, names) == (variant.value, variant.metadata), text


def test_spark_reads_a_declared_table_and_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    many = {f"field{n}": n for n in range(100)}
    bodies: list[Any] = [{"a": {"b": "x"}, "n": 1.5}, "text", None, many, [1, [2]]]
    values: list[Value] = [json.dumps({"id": n, "body": b}).encode() for n, b in enumerate(bodies)]
    write_topic(root, "events", {0: [*values, b'{"id": 5}', None]})
    configs = {"enable": "true", "value.format": "json", "schema": "id bigint, body variant"}
    configure(root, "events", {f"{PREFIX}{name}": text for name, text in configs.items()})
    materialize_all(root)
    write_topic(root, "events", {0: [b'{"id": 6, "body": {"b": 1, "a": {"b": 2}}}']})
    materialize_all(root)
    check_by_spark(spark, root, bodies)
    optimize_by_spark(str(root.parent / "tables/events"), file_bytes=1 << 27)
    check_by_spark(spark, root, bodies)
    result = run_job(ATTEST, str(root), AttestOptions(topic="events"))
    assert verdict(result.as_fields()) == "the table is its topic, row for row"


def check_by_spark(spark: SparkSession, root: Path, bodies: list[Any]) -> None:
    table = spark.read.format("delta").load(str(root.parent / "tables/events"))
    assert table.schema["body"].dataType.simpleString() == "variant"
    table.createOrReplaceTempView("variant_events")

    def column(expression: str) -> list[Any]:
        query = f"SELECT {expression} FROM variant_events ORDER BY _offset"
        return [row[0] for row in spark.sql(query).collect()]

    got = column("to_json(body)")
    assert [None if one is None else json.loads(one) for one in got] == [
        *bodies,
        *(None, None, {"a": {"b": 2}, "b": 1}),
    ]
    assert got[2] == "null"
    assert column("variant_get(body, '$.a.b', 'string')") == ["x", *[None] * 6, "2"]
    assert column("body:field77::int") == [*[None] * 3, 77, *[None] * 4]
    assert column("body IS NULL") == [*[False] * 5, True, True, False]
    # The topic itself, by a reader of any version: the JSON as it is written.
    topic = spark.read.format("lakehead").option("path", str(root)).option("subscribe", "events")
    rows = topic.option("decode", "declared").load().orderBy("_offset")
    assert rows.schema["body"].dataType.simpleString() == "string"
    texts = [row["body"] for row in rows.collect()]
    assert texts == [*map(json.dumps, bodies), None, None, '{"b": 1, "a": {"b": 2}}']
