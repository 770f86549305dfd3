"""An empty text in a partition column is null for every reader of a Delta table, and for jobs."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.storage.jobs.job import run_job
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

ALWAYS = {
    "enable": "true",
    "value.format": "json",
    "schema": "id bigint, place string, n bigint",
    "partition.by": "place",
    "on.error": "dead_letter",
}
UPSERT = {"mode": "upsert", "keys": "id"}


def declare(root: Path, configs: dict[str, str]) -> None:
    configure(root, "orders", {f"{PREFIX}{name}": value for name, value in configs.items()})


def write(root: Path, *values: bytes) -> None:
    records = [TestRecord(offset=0, key=b"k%d" % n, value=one) for n, one in enumerate(values)]
    write_topic(root, "orders", {0: records})


@pytest.mark.parametrize("mode", [{}, UPSERT])
def test_attest_takes_it_for_what_the_record_has(tmp_path: Path, mode: dict[str, str]) -> None:
    write(tmp_path, b'{"id": 1, "place": ""}', b'{"id": 2, "place": "x"}', b'{"id": 3}')
    declare(tmp_path, ALWAYS | mode)
    materialize_all(tmp_path)
    result = run_job(ATTEST, str(tmp_path), AttestOptions(topic="orders"))
    assert (result.rows, result.found()) == (3, ())


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_as_part_of_a_key_it_names_no_row(tmp_path: Path, vectors: str) -> None:
    """No MERGE would find the row again: each change of it would be one row more."""
    declared = ALWAYS | UPSERT | {"keys": "id,place", "deletion.vectors": vectors}
    write(tmp_path, b'{"id": 1, "place": "", "n": 1}', b'{"id": 1, "place": "x", "n": 2}')
    declare(tmp_path, declared)
    materialize_all(tmp_path)
    write(tmp_path, b'{"id": 1, "place": "", "n": 3}', b'{"id": 1, "place": "x", "n": 4}')
    materialize_all(tmp_path)
    letters = DeltaTable(tmp_path / "tables/orders__dlq").to_pyarrow_table(columns=["error"])
    assert letters.column("error").to_pylist() == ["no id, place: it names no row"] * 2
    assert run_job(ATTEST, str(tmp_path), AttestOptions(topic="orders")).rows == 1
