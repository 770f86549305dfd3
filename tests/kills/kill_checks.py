"""What must hold when the killing is over."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import lakehead
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
    ENTRY,
    ICEBERG_TABLE,
    KEYED,
    PARTITIONS,
    PLAIN,
    TABLE,
    KillCampaign,
)

_VALUE_BYTES = 200


def faults(done: KillCampaign) -> list[str]:
    """Every broken promise, one line each."""
    return [
        *(f"traceback: {one}" for one in done.tally.tracebacks),
        *_table_faults(done),
        *_keyed_faults(done),
        *_plain_faults(done),
        *_object_faults(done.store),
        *_iceberg_faults(done),
        *_entry_faults(done),
        *_table_file_faults(done),
    ]


def table_of(done: KillCampaign) -> DeltaTable:
    """The Delta table of the topic that declares one."""
    return DeltaTable(str(done.data / "tables" / TABLE))


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
    """The catalog has one entry, which leads to the table and has its columns."""
    catalog, schema, name = ENTRY.split(".")
    entries = done.entries.tables(catalog, schema)
    if [one["name"] for one in entries] != [name]:
        return [f"the catalog has {[one['name'] for one in entries]}"]
    [entry] = entries
    columns = [field.name for field in table_of(done).schema().fields]
    found = []
    if entry["storage_location"] != (done.data / "tables" / TABLE).as_uri():
        found.append(f"the entry leads to {entry['storage_location']}")
    if [one["name"] for one in entry["columns"]] != columns:
        found.append(f"the entry has the columns {entry['columns']}")
    return found


def _keyed_faults(done: KillCampaign) -> list[str]:
    """The newest record of each key is there."""
    assert done.keyed is not None
    rows = lakehead.scan(str(done.store), KEYED).read_all().to_pylist()
    newest = {row["key"]: row["value"] for row in rows}
    found = [f"producer: {error}" for error in done.keyed.failed]
    return found + [
        f"key {key!r} is {newest.get(key)!r}, not {value!r}"
        for key, value in done.keyed.newest.items()
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
