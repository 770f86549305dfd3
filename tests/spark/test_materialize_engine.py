"""`lakehead materialize --engine spark`: the table that delta-rs makes, and each takes it up."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from lakehead.broker.cli.app import app
from tests.integration.test_upsert_tables import declare, record
from tests.support.topic_writer import write_topic

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def lakehead(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def engines(table: Path) -> list[str]:
    """Who ran the MERGEs, the newest last."""
    history = DeltaTable(table).history()
    merges = [entry for entry in reversed(history) if entry["operation"] == "MERGE"]
    return ["spark" if "Spark" in str(entry.get("engineInfo")) else "delta-rs" for entry in merges]


def test_both_engines_keep_a_declared_table_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    root, table = tmp_path / "store", tmp_path / "table"
    model: dict[bytes, bytes] = {}
    wanted = ["spark", "delta-rs", "spark"]
    for turn, engine in enumerate(wanted):
        puts = {b"k%d" % (n % 7): b"v%d.%d" % (turn, n) for n in range(turn, turn + 9)}
        gone = b"k%d" % turn
        records = [record(key, value) for key, value in puts.items()] + [record(gone, None)]
        places: dict[int, list[Any]] = {0: [], 1: []}
        for one in records:
            assert one.key is not None
            places[one.key[-1] % 2].append(one)
        write_topic(root, "states", places, partitions=2)
        model |= puts
        del model[gone]
        declare(root, "states", path=str(table))
        lakehead("materialize", "states", "--path", str(tmp_path), "--engine", engine)
        held = DeltaTable(table).to_pyarrow_table(columns=["_key", "value"]).to_pydict()
        assert sorted(zip(held["_key"], held["value"], strict=True)) == sorted(model.items())
    assert engines(table) == wanted
    lakehead("rebuild-table", "states", "--path", str(tmp_path), "--engine", "spark")
    held = DeltaTable(table).to_pyarrow_table(columns=["_key", "value"]).to_pydict()
    assert sorted(zip(held["_key"], held["value"], strict=True)) == sorted(model.items())
    assert spark.read.format("delta").load(str(table)).count() == len(model)
