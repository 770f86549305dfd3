"""`lakehead sql --timing`: where the time of a statement goes, in Spark's terms."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehead.lake import spark
from lakehead.lake.sql.shell import run_sql
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

GROUPED = "SELECT b, count(*) AS n FROM orders GROUP BY b ORDER BY b"
START = ["Spark's launcher", "JVM", "SparkContext and SparkSession"]
PLANNING = ["parsing", "analysis", "optimization", "planning", "execution"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("timing") / "cluster"
    write_topic(root, "orders", {0: [json.dumps({"b": f"x{n % 3}"}).encode() for n in range(90)]})
    configure(root, "orders", {"lakehead.table.value.format": "json"})
    return str(root)


def phases_of(text: str) -> dict[str, float]:
    found = re.findall(r"^  ( *)(\S.*?) +(\d+\.\d\d)$", text, re.MULTILINE)
    return {("beside " if indent else "") + name: float(seconds) for indent, name, seconds in found}


def test_the_phases_of_a_statement_add_up_to_its_time(
    spark: SparkSession, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    assert run_sql(place, execute=GROUPED, output="json", timing=True, out=out) == 0
    assert len(out.getvalue().splitlines()) == 3  # rows are not mixed with times
    told = capfd.readouterr().err
    phases = phases_of(told)
    assert set(PLANNING) | {"catalog", "views handed to Spark", "rest"} < set(phases)
    assert {"beside views read and decoded", "beside compiling generated code"} < set(phases)
    taken = re.match(r"Time taken: (\d+\.\d\d) seconds, fetched 3 row\(s\)\n", told)
    assert taken is not None
    parts = sum(seconds for name, seconds in phases.items() if not name.startswith("beside"))
    assert parts == pytest.approx(float(taken[1]), abs=0.005 * (len(phases) + 1))
    assert spark.sql("SELECT 1").collect()  # a session that was there before is not stopped


def test_a_statement_without_spark_and_one_without_rows_have_times_too(
    spark: SparkSession, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    statements = "SELECT count(*) FROM orders; CREATE TEMPORARY VIEW v AS SELECT 1; SELECT * FROM v"
    assert run_sql(place, execute=statements, timing=True, out=io.StringIO()) == 0
    times = re.findall(r"^Time taken: .*", capfd.readouterr().err, re.MULTILINE)
    assert [one.partition("seconds, ")[2] for one in times] == [
        "fetched 1 row(s), without Spark",
        "fetched 0 row(s)",
        "fetched 1 row(s)",
    ]


def test_a_statement_that_fails_has_its_error_alone(
    spark: SparkSession, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_sql(place, execute="SELECT nothing FROM orders o", timing=True) == 1
    assert capfd.readouterr().err.count("\n") == 1


def sql(place: str, cache: Path, options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lakehead", "sql", "--path", place, "--timing", "-e", GROUPED],
        env={**os.environ, "LAKEHEAD_CACHE": str(cache), "JAVA_TOOL_OPTIONS": options},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_the_start_and_the_stop_of_spark_are_told_apart(place: str, tmp_path: Path) -> None:
    run = sql(place, tmp_path, "-Xshare:auto")
    phases = phases_of(run.stderr)
    assert list(phases)[:1] == ["catalog"]
    assert set(START) | {"session state (catalog, extensions)"} | set(PLANNING) < set(phases)
    assert all(phases[name] > 0 for name in START)
    assert re.fullmatch(r"Spark stopped in \d+\.\d\d seconds", run.stderr.splitlines()[-1])
    assert not list(tmp_path.glob("*.jsa"))  # the user's options about archives count


@pytest.mark.slow
def test_the_second_session_maps_the_classes_of_the_first(place: str, tmp_path: Path) -> None:
    log = tmp_path / "classes.log"
    options = f"-Xlog:class+load:file={log}"
    first = sql(place, tmp_path, "-Dfirst=1")
    assert wait_until(lambda: any(map(spark.is_whole, tmp_path.glob("*.jsa"))), deadline_s=300)
    (archive,) = tmp_path.glob("*.jsa")
    second = sql(place, tmp_path, options)
    assert second.stdout == first.stdout
    mapped = log.read_text().count("shared objects file (top)")
    assert mapped > 8000, "classes that Spark needs come from its jars"
    assert list(tmp_path.glob("*.jsa")) == [archive]
