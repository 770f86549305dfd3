"""Times as partition values have their zone in the log, whichever job wrote the files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.attest import JOB as ATTEST
from lakehead.lake.jobs.attest import AttestOptions
from lakehead.lake.jobs.forget import JOB as FORGET
from lakehead.lake.jobs.forget_options import ForgetOptions
from lakehead.lake.jobs.table_jobs import OPTIMIZE, OptimizeOptions
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.partition_zones import _with_zones
from lakehead.storage.failpoints import KILLED
from lakehead.storage.jobs.job import run_job
from tests.support.declared_tables import materialize_all
from tests.support.declared_topics import configure
from tests.support.record_batches import TestRecord
from tests.support.template_process import killed_job
from tests.support.topic_writer import write_topic

ALWAYS = {
    "enable": "true",
    "value.format": "json",
    "schema": "id bigint, at timestamp, n bigint",
    "partition.by": "at",
}
UPSERT = {"mode": "upsert", "keys": "id"}
TIMES = ("2026-03-08T07:30:00Z", "1969-12-31T23:59:59.999999Z", None)


def write(root: Path, number: int) -> None:
    values = [{"id": n, "at": at, "n": number} for n, at in enumerate(TIMES)]
    records = [
        TestRecord(offset=0, key=b"k%d" % n, value=json.dumps(one).encode())
        for n, one in enumerate(values)
    ]
    write_topic(root, "orders", {0: records})


def begin(root: Path, configs: dict[str, str]) -> Path:
    declared = {f"{PREFIX}{name}": value for name, value in (ALWAYS | configs).items()}
    write(root, 0)
    configure(root, "orders", declared)
    more(root, 1)
    return root / "tables/orders"


def more(root: Path, number: int) -> None:
    write(root, number)
    materialize_all(root)


def optimize(root: Path) -> None:
    run_job(OPTIMIZE, str(root), OptimizeOptions(topics=("orders",)))


def check(table: Path, count: int) -> None:
    """Each file has the zone, delta-rs reads each row once, and the table is its topic."""
    delta = DeltaTable(table)
    newest: dict[str, dict[str, Any]] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "add" in action:
                newest[action["add"]["path"]] = action["add"]
    named = pa.table(delta.get_add_actions()).column("path").to_pylist()
    assert len(named) == len(set(named))
    zoned = {"2026-03-08T07:30:00.000000Z", "1969-12-31T23:59:59.999999Z", None}
    assert {newest[path]["partitionValues"]["at"] for path in named} <= zoned
    query = QueryBuilder().register("t", delta).execute("SELECT id, at FROM t")
    rows = pa.table(query).to_pylist()
    assert len(rows) == count
    root = table.parents[1]
    assert run_job(ATTEST, str(root), AttestOptions(topic="orders")).found() == ()


@pytest.mark.parametrize("configs", [{}, UPSERT, UPSERT | {"deletion.vectors": "true"}])
def test_optimize_and_merge_leave_no_time_without_its_zone(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    table = begin(tmp_path, configs)
    more(tmp_path, 2)
    optimize(tmp_path)
    more(tmp_path, 3)
    check(table, 3 if configs else 12)


def test_a_time_beyond_the_years_of_python_stays_as_it_is() -> None:
    """delta-rs writes it, and a job that failed there would fail each time."""
    values = {"at": "+12026-03-08 07:30:00.000000", "then": "2026-03-08 07:30:00.000000"}
    file = LogicalFile(path="a", action={"path": "a", "partitionValues": values}, vector=None)
    assert _with_zones(file, ("at",)) is None
    action = _with_zones(file, ("at", "then"))
    assert action is not None
    zoned = values | {"then": "2026-03-08T07:30:00.000000Z"}
    assert action["add"]["partitionValues"] == zoned


def test_forget_leaves_no_time_without_its_zone(tmp_path: Path) -> None:
    table = begin(tmp_path, {})
    run_job(FORGET, str(tmp_path), ForgetOptions(topic="orders", keys=("k1",)))
    check(table, 4)


def test_after_a_kill_before_zones_were_added_the_next_merge_adds_them(tmp_path: Path) -> None:
    table = begin(tmp_path, UPSERT)
    write(tmp_path, 2)
    script = (
        "import sys; from pathlib import Path; "
        "from tests.support.declared_tables import materialize_all; "
        "materialize_all(Path(sys.argv[1]))"
    )
    assert killed_job(script, str(tmp_path), failpoint="table_committed") == KILLED
    more(tmp_path, 3)
    check(table, 3)
