"""Tables with a VARIANT column: every job that writes, rewrites or compares rows of a table."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import VariantVal

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.attest_result import verdict
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.table_maintenance import optimize, targets, vacuum
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import open_table
from lakehead.storage.failpoints import KILLED
from lakehead.storage.jobs.job import run_job
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import killed_job
from tests.support.topic_writer import write_topic

TOPIC = "events"
MISSING = object()
"""The field is not there."""

BODIES: tuple[Any, ...] = (
    {"a": {"b": "x"}, "list": [1, -300, 70_000, 1 << 40, 2.5, True, None]},
    None,
    MISSING,
    "text",
    [],
    {},
    1e300,
    {"name": "ä" * 100, "Ä": 1e-30},
    -(1 << 63),
)


def record(number: int, body: Any, key: bytes | None = None) -> TestRecord:
    value = {"id": number} | ({} if body is MISSING else {"body": body})
    return TestRecord(
        offset=0,
        timestamp=1_700_000_000_000 + number,
        key=key or b"k%d" % number,
        value=json.dumps(value).encode(),
    )


def write(root: Path, first: int, bodies: Sequence[Any] = BODIES) -> None:
    records = [record(first + number, body) for number, body in enumerate(bodies)]
    write_topic(root, TOPIC, {0: records})


def declare(root: Path, schema: str = "id bigint, body variant", **configs: str) -> None:
    named = {"enable": "true", "value.format": "json", "schema": schema}
    named |= {name.replace("_", "."): text for name, text in configs.items()}
    configure(root, TOPIC, {f"{PREFIX}{name}": text for name, text in named.items()})


def outcome(root: Path, **options: Any) -> TableOutcome:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(str(root), **options)
    tables.catch_up(all_of_them=True, on_table=outcomes.append)
    tables.close()
    return outcomes[0]


def refresh(root: Path) -> None:
    assert outcome(root).error is None


def place(root: Path) -> Path:
    return root.parent / "tables" / TOPIC


def bodies(root: Path, column: str = "body") -> list[Any]:
    """The values of the column, in order of offsets, by Spark's decoder."""
    table = open_table(str(place(root)))
    assert table is not None
    rows = table.rows(["_offset", column], None)
    found = [row[column] for row in rows.sort_by("_offset").to_pylist()]
    return [
        MISSING if one is None else VariantVal(one["value"], one["metadata"]).toPython()
        for one in found
    ]


WHOLE = "the table is its topic, row for row"


def check(
    root: Path, expected: Sequence[Any], verdict_wanted: str = WHOLE, column: str = "body"
) -> None:
    """The rows are those, and they are the topic's."""
    assert bodies(root, column) == list(expected)
    result = run_job(ATTEST, str(root), AttestOptions(topic=TOPIC))
    assert verdict(result.as_fields()) == verdict_wanted
    assert result.rows == len(expected)


@contextmanager
def hold() -> Iterator[None]:
    yield


def run_upkeep(root: Path) -> None:
    target = targets(store_reader(str(root)).open_catalog(), [TOPIC])[0]
    assert optimize(target, hold).error is None
    assert vacuum(target, hold).error is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write(root, 0)
    return root


@pytest.mark.parametrize("configs", [{}, {"cluster_by": "id"}, {"partition_by": "day(_timestamp)"}])
def test_rows_stay_through_upkeep_and_checkpoints(root: Path, configs: dict[str, str]) -> None:
    declare(root, **configs)
    refresh(root)
    write(root, 100)
    refresh(root)
    check(root, BODIES * 2)
    delta = DeltaTable(place(root))
    assert delta.protocol().reader_features == ["variantType"]
    assert len(delta.file_uris()) == 2
    run_upkeep(root)
    delta = DeltaTable(place(root))
    assert len(delta.file_uris()) == 1
    check(root, BODIES * 2)
    delta.create_checkpoint()
    write(root, 200)
    refresh(root)
    check(root, BODIES * 3)


def test_each_value_whole_is_a_variant(root: Path) -> None:
    write_topic(root, TOPIC, {0: [b"[1]", None, b' { "a" : 1 } ', b'{"a": 1, "a": 2}', b"{}"]})
    declare(root, "variant", on_error="dead_letter")
    refresh(root)
    wholes = [
        {"id": number} | ({} if body is MISSING else {"body": body})
        for number, body in enumerate(BODIES)
    ]
    check(root, [*wholes, MISSING, {"a": 1}, {}], column="value")
    letters = DeltaTable(f"{place(root)}__dlq").to_pyarrow_table()
    assert sorted(letters.column("error_class").to_pylist()) == ["malformed", "misfit"]
    run_upkeep(root)
    refresh(root)
    check(root, [*wholes, MISSING, {"a": 1}, {}], column="value")


@pytest.mark.parametrize("step", ["materialize_files_written", "table_committed"])
def test_a_killed_run_leaves_each_record_once(root: Path, step: str) -> None:
    declare(root)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.integration.test_variant_tables import refresh; "
        "refresh(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(root), failpoint=step) == KILLED
    write(root, 100)
    refresh(root)
    check(root, BODIES * 2)


@pytest.mark.parametrize("configs", [{}, {"cluster_by": "id"}])
def test_a_column_that_is_declared_later_is_null_in_the_rows_before(
    root: Path, configs: dict[str, str]
) -> None:
    declare(root, "id bigint", **configs)
    refresh(root)
    assert DeltaTable(place(root)).protocol().min_reader_version == 1
    declare(root)
    write(root, 100)
    refresh(root)
    assert bodies(root) == [MISSING] * len(BODIES) + list(BODIES)
    run_upkeep(root)
    assert bodies(root) == [MISSING] * len(BODIES) + list(BODIES)
    assert run_job(ATTEST, str(root), AttestOptions(topic=TOPIC)).found() == ()


@pytest.mark.parametrize("before", ["body string", "body struct<a: struct<b: string>>"])
def test_a_column_of_another_type_becomes_a_variant_by_a_rebuild(root: Path, before: str) -> None:
    declare(root, f"id bigint, {before}", on_error="drop")
    refresh(root)
    declare(root, on_error="pause")
    assert "rebuild-table" in str(outcome(root).error)
    tables = DeclaredTables(str(root))
    tables.rebuild(TOPIC)
    tables.close()
    check(root, BODIES)
    assert DeltaTable(place(root)).protocol().reader_features == ["variantType"]


def test_a_wider_number_beside_files_from_before_the_variant(root: Path) -> None:
    """All files are rewritten, and the oldest ones have no VARIANT at all."""
    declare(root, "id int")
    refresh(root)
    declare(root, "id int, body variant")
    write(root, 100)
    refresh(root)
    declare(root, "id bigint, body variant")
    write(root, 200)
    refresh(root)
    assert bodies(root) == [*[MISSING] * len(BODIES), *BODIES, *BODIES]


def test_values_that_are_no_variant_are_faults_of_their_records(root: Path) -> None:
    write_topic(
        root,
        TOPIC,
        {
            0: [
                b'{"id": 1, "body": {"a": 1, "a": 2}}',
                b'{"id": 2, "body": [1e999]}',
                b'{"id": 1099511627776, "body": {"a": 1}}',
            ]
        },
    )
    declare(root, "id int, body variant", on_error="dead_letter")
    refresh(root)
    check(root, BODIES)
    letters = DeltaTable(f"{place(root)}__dlq").to_pyarrow_table()
    assert letters.column("error_class").to_pylist() == ["misfit"] * 3
    reasons = sorted(letters.column("error").to_pylist())
    assert reasons[0] == "field body: a number beyond DOUBLE"
    assert reasons[1] == "field body: an object that has a name twice, for VARIANT"
    declare(root, on_error="dead_letter")  # id is BIGINT now: each file is rewritten
    tables = DeclaredTables(str(root))
    result = tables.replay(TOPIC)
    tables.close()
    assert (result.replayed, result.left) == (1, 2)
    check(root, [*BODIES, {"a": 1}])


def test_a_forgotten_key_takes_its_rows_with_it(root: Path) -> None:
    declare(root)
    refresh(root)
    result = run_job(
        FORGET, str(root), ForgetOptions(topic=TOPIC, keys=("k0",), requested_by="anna")
    )
    assert result.records == 1
    check(root, BODIES[1:], f"{WHOLE}; records were forgotten by certificate 1")


@pytest.mark.parametrize(
    "configs", [{}, {"keys": "id"}, {"keys": "id", "deletion_vectors": "true"}, {"scd": "2"}]
)
def test_an_upsert_keeps_the_newest_variant(root: Path, configs: dict[str, str]) -> None:
    upsert = {"mode": "upsert", "optimize_deleted_percent": "1", **configs}
    declare(root, **upsert)
    refresh(root)
    changes = [record(0, [1]), record(1, {"new": 1}), record(7, MISSING), record(30, None)]
    write_topic(root, TOPIC, {0: [*changes, TestRecord(offset=0, key=b"k3", value=None)]})
    refresh(root)
    kept = BODIES if "scd" in configs else [BODIES[n] for n in (2, 4, 5, 6, 8)]
    expected = [*kept, [1], {"new": 1}, MISSING, None]
    whole = f"{WHOLE}, as far as a table by upsert shows it: each row is a record"
    check(root, expected, whole)
    run_upkeep(root)
    check(root, expected, whole)


def test_delta_spark_does_not_merge_variants(root: Path) -> None:
    declare(root, mode="upsert")
    error = str(outcome(root, engine="spark").error)
    assert error.endswith("has a VARIANT column, which --engine spark does not merge: leave it out")
    refresh(root)
    assert bodies(root) == list(BODIES)
