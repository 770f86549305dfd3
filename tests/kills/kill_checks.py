"""What must hold when the killing is over."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog import load_catalog

import lakehead
from lakehead.lake.tables.deletion_vectors import DeletionVector
from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.iceberg import VERSION
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.object_names import JOB_ENTRIES_MAX, JobName
from lakehead.storage.garbage import (
    GARBAGE,
    SweepTimes,
    check_leaks,
    find_garbage,
    judge,
    listed,
    perform,
)
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import FileStore
from tests.checker.history import Sent, value_of
from tests.kills.kill_campaign import (
    CATALOG,
    ENTRIES,
    ICEBERG_TABLE,
    KEYED,
    PARTITIONS,
    PLAIN,
    TABLE,
    UPSERTED,
    KillCampaign,
)

_VALUE_BYTES = 200
_LONG_AGO_S = 1_000_000_000


def faults(done: KillCampaign) -> list[str]:
    """Every broken promise, one line each."""
    return [
        *(f"traceback: {one}" for one in done.tally.tracebacks),
        *_table_faults(done),
        *_upserted_faults(done),
        *_keyed_faults(done),
        *_plain_faults(done),
        *_object_faults(done.store),
        *_iceberg_faults(done),
        *_entry_faults(done),
        *_table_file_faults(done),
        *_vector_file_faults(done),
    ]


def table_of(done: KillCampaign, topic: str = TABLE) -> DeltaTable:
    """The Delta table of a topic that declares one."""
    return DeltaTable(str(done.data / "tables" / topic))


def _upserted_faults(done: KillCampaign) -> list[str]:
    """The table by upsert has each key once, with its newest value, and none that was deleted: as
    Lakehead reads it and as delta-rs does.
    """
    table = open_table(str(done.data / "tables" / UPSERTED))
    assert table is not None
    wanted = sorted(
        (key, value) for key, value in done.keyed[UPSERTED].newest.items() if value is not None
    )
    query = QueryBuilder().register("t", table_of(done, UPSERTED))
    found = [f"producer: {error}" for error in done.keyed[UPSERTED].failed]
    for reader, rows in (
        ("Lakehead", table.rows(["_key", "value"], None)),
        ("delta-rs", pa.table(query.execute("SELECT _key, value FROM t"))),
    ):
        held = sorted(
            zip(rows.column("_key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        )
        if held != wanted:
            wrong = sorted(set(held) ^ set(wanted))[:3]
            found.append(
                f"{reader} reads {len(held)} rows of {UPSERTED}, not {len(wanted)}: {wrong}"
            )
    if not wanted:
        found.append(f"nothing was produced to {UPSERTED}")
    return found


def _table_faults(done: KillCampaign) -> list[str]:
    """Each committed record is in the table once, with its value."""
    rows = table_of(done).to_pyarrow_table(columns=["_partition", "_offset", "value"]).to_pylist()
    held = {(row["_partition"], row["_offset"]): row["value"] for row in rows}
    found = [] if len(held) == len(rows) else [f"{len(rows) - len(held)} rows are there twice"]
    for partition in range(PARTITIONS):
        offsets = sorted(offset for one, offset in held if one == partition)
        if offsets != list(range(len(offsets))):
            found.append(f"partition {partition}: {len(offsets)} rows up to {offsets[-1]}")
    acknowledged = done.history.acknowledged
    if not acknowledged:
        found.append("nothing was produced")
    for sent, offset in acknowledged.items():
        partition = sent.number % PARTITIONS
        if held.get((partition, offset)) != value_of(sent, _VALUE_BYTES):
            found.append(f"{sent} is not at offset {offset} of partition {partition}")
    return found[:20]


def _iceberg_faults(done: KillCampaign) -> list[str]:
    """The Iceberg table has the rows and the files of the Delta table, each version once."""
    delta = table_of(done)
    iceberg = load_catalog(CATALOG, **done.iceberg).load_table(ICEBERG_TABLE)
    found = []
    columns = ("_partition", "_offset", "value")
    rows = {
        kind: sorted(zip(*(table.column(one).to_pylist() for one in columns), strict=True))
        for kind, table in (
            ("Delta", delta.to_pyarrow_table(columns=list(columns))),
            ("Iceberg", iceberg.scan(selected_fields=columns).to_arrow()),
        )
    }
    if rows["Delta"] != rows["Iceberg"]:
        found.append(f"Iceberg has {len(rows['Iceberg'])} rows, Delta {len(rows['Delta'])}")
    files = [one["file_path"] for one in iceberg.inspect.files().to_pylist()]
    if len(set(files)) < len(files) or len(files) != len(delta.file_uris()):
        found.append(f"Iceberg has {len(files)} files, Delta {len(delta.file_uris())}")
    versions = [
        int(one.summary[VERSION] or -1) if one.summary else -1 for one in iceberg.snapshots()
    ]
    if versions != sorted(set(versions)):
        found.append(f"snapshots show the versions {versions}")
    return found


def _entry_faults(done: KillCampaign) -> list[str]:
    """The catalog has one entry of each table, which leads to the table and has its columns."""
    catalog, schema, _ = ENTRIES[TABLE].split(".")
    entries = {one["name"]: one for one in done.entries.tables(catalog, schema)}
    names = {topic: name.split(".")[-1] for topic, name in ENTRIES.items()}
    if sorted(entries) != sorted(names.values()):
        return [f"the catalog has {sorted(entries)}"]
    found = []
    for topic, name in names.items():
        entry = entries[name]
        columns = [field.name for field in table_of(done, topic).schema().fields]
        if entry["storage_location"] != (done.data / "tables" / topic).as_uri():
            found.append(f"the entry of {topic} leads to {entry['storage_location']}")
        if [one["name"] for one in entry["columns"]] != columns:
            found.append(f"the entry of {topic} has the columns {entry['columns']}")
    return found


def _keyed_faults(done: KillCampaign) -> list[str]:
    """The newest record of each key is there."""
    keyed = done.keyed[KEYED]
    rows = lakehead.scan(str(done.store), KEYED).read_all().to_pylist()
    newest = {row["key"]: row["value"] for row in rows}
    found = [f"producer: {error}" for error in keyed.failed]
    return found + [
        f"key {key!r} is {newest.get(key)!r}, not {value!r}"
        for key, value in keyed.newest.items()
        if newest.get(key) != value
    ]


def _plain_faults(done: KillCampaign) -> list[str]:
    """Every record is there, as it was sent."""
    rows = lakehead.scan(str(done.store), PLAIN).read_all().to_pylist()
    values = sorted(row["value"] for row in rows)
    count = len(values)
    wanted = sorted(value_of(Sent("plain", number), _VALUE_BYTES) for number in range(count))
    return [] if values == wanted and count else [f"{PLAIN} does not hold what was sent"]


def _object_faults(store: Path) -> list[str]:
    """Everything referred to is there and unharmed; nothing else is, after a sweep."""
    report = run_job(VERIFY, str(store))
    return [str(damage) for damage in report.damages] + asyncio.run(_leaks(store))


async def _leaks(folder: Path) -> list[str]:
    store, clock = FileStore(folder), SystemClock()
    log = await MetadataLog.open(store, writer_id="judge", clock=clock, rng=random.Random(1))
    settings = SweepTimes(grace_ms=0, margin_ms=0)
    await perform(await find_garbage(store, log, clock, settings), store, log)
    report = await check_leaks(store, log)
    kinds = {"missing": report.missing, "leaked": report.leaked, "delayed": report.delayed}
    found = [f"{kind}: {keys}" for kind, keys in kinds.items() if keys]
    # What killed jobs left under names that may still be committed goes when the log is far on.
    later = replace(log.state, next_entry=log.state.next_entry + JOB_ENTRIES_MAX + 1)
    for item in await listed(store):
        if JobName.parse(item.key) and item.key not in log.state.objects:
            verdict = judge(later, item.key, item.size)
            if verdict not in GARBAGE:
                found.append(f"never to be swept: {item.key}")
    return found


def _table_file_faults(done: KillCampaign) -> list[str]:
    """Each file of the table is there; after a vacuum no other is."""
    table = table_of(done)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    folder = done.data / "tables" / TABLE
    there = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }
    wanted = {uri.removeprefix(f"{folder}/").removeprefix("file://") for uri in table.file_uris()}
    return [] if there == wanted else [f"files of the table: {sorted(there ^ wanted)[:5]}"]


def vectors_made(done: KillCampaign) -> int:
    """Return how many deletion vectors commits of the table by upsert have added."""
    return sum("deletionVector" in action.get("add", {}) for action in _log_actions(done))


def _log_actions(done: KillCampaign) -> Iterator[dict[str, Any]]:
    for entry in sorted((done.data / "tables" / UPSERTED / "_delta_log").glob("*.json")):
        yield from map(json.loads, entry.read_text().splitlines())


def _vector_file_faults(done: KillCampaign) -> list[str]:
    """Each file and each vector that a version of the table by upsert names is there, and after a
    vacuum that takes all files for old ones no other is.
    """
    folder = done.data / "tables" / UPSERTED
    for path in folder.iterdir():
        os.utime(path, (_LONG_AGO_S, _LONG_AGO_S))
    if (vacuum := done.lakehead("vacuum", UPSERTED)).returncode:
        return [f"vacuum: {vacuum.stderr}"]
    wanted: set[str] = set()
    for action in _log_actions(done):
        for named in (action[kind] for kind in ("add", "remove") if kind in action):
            wanted.add(unquote(named["path"]))
            if descriptor := named.get("deletionVector"):
                wanted |= {DeletionVector.of(descriptor).path or ""} - {""}
    there = {path.name for path in folder.iterdir() if path.is_file()}
    return [] if there == wanted else [f"files of {UPSERTED}: {sorted(there ^ wanted)[:5]}"]
