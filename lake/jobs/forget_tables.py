"""The rows of forgotten keys in a topic's table, its dead letters, and an unfinished rebuild.

Rows are found by their record's key, and deleted by partition and offset: a condition of a DELETE
is in the table's log, which must not have the key. A second commit has the notes of the
certificate: its number, and the digests of the offset ranges from which records went, as the topic
has them now. Both are under the table's lease, after the topic's objects were replaced, so that no
run of `materialize` that has read the old ones commits later. Killed anywhere, the next run does
the rest.

A file whose rows of the keys a deletion vector has deleted is rewritten first: DELETE passes over
such rows, whose bytes are still there. Files of older versions are deleted by VACUUM.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.declaration.table_declaration import (
    TableDeclaration,
    dead_letters_uri,
    rebuild_uri,
)
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.decode.invalid import InvalidBatch, InvalidTimes
from lakehead.lake.decode.record_digest import RecordDigest
from lakehead.lake.errors import DataLoss
from lakehead.lake.jobs.catalog_publisher import open_iceberg_catalog
from lakehead.lake.jobs.forget_options import may_have_table
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.lake.jobs.table_item import FILE_BYTES
from lakehead.lake.jobs.table_lease import TableLeases
from lakehead.lake.jobs.vector_purge import purge
from lakehead.lake.moved_ranges import find_indexes, read_moved
from lakehead.lake.planner import OffsetRange, plan_splits
from lakehead.lake.record_reader import decode_all
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.delta_table import (
    NOTHING,
    CommitConflict,
    Table,
    TableUnavailable,
    one_line,
    open_table,
)
from lakehead.lake.tables.iceberg import expire_others, publish
from lakehead.lake.tables.layout import DECODED
from lakehead.lake.tables.owner import check_topic
from lakehead.lake.tables.partition_zones import add_zones
from lakehead.lake.tables.range_digests import (
    FORGOTTEN,
    RangeDigest,
    digest_note,
    held_digests,
)
from lakehead.lake.tables.table_file import TableFile
from lakehead.lake.tables.table_root import check_declared_place
from lakehead.storage.certificates import (
    Certificates,
    ForgetRequest,
    ForgetStep,
    ForgottenRows,
)
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.failpoints import failpoint
from lakehead.storage.jobs.job import JobContext

_PLACES_AT_ONCE = 10_000
"""Rows of one DELETE: its condition names each, and is in the table's log."""
_ATTEMPTS = 5


class CatalogUnavailable(LakeheadError):
    """The Iceberg table could not be brought up. The Delta table is done; run again."""


def rows_of_keys(
    context: JobContext, request: ForgetRequest, keys: Sequence[bytes]
) -> ForgetResult:
    """Return how many rows there are, the tables that have some, and the bytes of files that would
    be rewritten. Raises SettingsError, OtherTopic, TableUnavailable.
    """
    found = ForgetResult()
    for table in _tables(context.path, request):
        rows = size = 0
        sizes = _file_sizes(table)
        for file, places in rows_by_file(table, request, keys):
            rows += places.num_rows
            size += sizes.get(file.rsplit("/", 1)[-1], 0)
        found = found.plus(ForgetResult(rows=rows, tables=int(rows > 0), bytes_rewritten=size))
    return found


def forget_rows(
    context: JobContext, request: ForgetRequest, keys: Sequence[bytes]
) -> tuple[ForgottenRows, ...]:
    """Delete rows of the keys, and note the certificate in each table. Raises TableTaken,
    SettingsError, OtherTopic, TableUnavailable, CommitConflict, CatalogUnavailable.
    """
    done = []
    with closing(TableLeases.open(context.path, on_wait=context.on_wait)) as leases:
        if not _tables(context.path, request):
            return ()
        with leases.held(request.topic_id, wait_s=context.wait_s):
            for table in _tables(context.path, request):
                leases.check(request.topic_id)
                rows = _delete(table, request, keys)
                leases.check(request.topic_id)
                version = _note(context.path, table.uri, request)
                failpoint("forget_table_noted")
                done.append(ForgottenRows(table=table.uri, version=version, rows=rows))
            _publish(context.path, request)
    return tuple(done)


def declarations(path: str, request: ForgetRequest) -> tuple[TableDeclaration, ...]:
    """Return the tables that the topic of a request declares, or declared until they were switched
    off (`lakehead.table.enable`); none if the topic was deleted. Raises SettingsError for a
    declaration or place that cannot be.
    """
    catalog = store_reader(path).open_catalog()
    topic = catalog.state.topics.get(request.topic)
    if topic is None or topic.topic_id != request.topic_id or not may_have_table(topic):
        return ()
    try:
        each = TableDeclaration.each_of(topic)
    except SettingsError as error:
        raise SettingsError(f"topic {request.topic}: {error}") from None
    for declared in each:
        check_declared_place(catalog, declared)
    return each


def table_uris(path: str, request: ForgetRequest) -> list[str]:
    """Return the places of the tables that may have rows of a topic."""
    uris = [declared.uri(path) for declared in declarations(path, request)]
    both = [place for uri in uris for place in (uri, rebuild_uri(uri))]
    return [place for uri in both for place in (uri, dead_letters_uri(uri))]


def _tables(path: str, request: ForgetRequest) -> list[Table]:
    found = []
    for uri in table_uris(path, request):
        table = open_table(uri)
        if table is None:
            continue
        check_topic(table, request.topic, request.topic_id)
        if missing := {"_partition", "_offset", "_key"} - set(table.schema.names):
            raise SettingsError(
                f"{uri} has no column {min(missing)}: it is not a table that Lakehead made"
            )
        found.append(table)
    return found


# --------------------------------------------------------------------------------------------- rows


def below_ends(request: ForgetRequest) -> Any:
    """Return the condition for rows of records that a request means."""
    condition = pc.scalar(False)
    for one in request.ranges:
        condition |= (ds.field("_partition") == one.partition) & (ds.field("_offset") < one.end)
    return condition


def rows_by_file(
    table: Table, request: ForgetRequest, keys: Sequence[bytes]
) -> Iterator[tuple[str, Any]]:
    """Yield the path of each data file that has rows of the keys, and their places. Raises
    TableUnavailable for a file that cannot be read.
    """
    for file in table.data_files(below_ends(request)):
        if (rows := _places_in(file, request, keys)).num_rows:
            yield file.path, rows


def _places_in(file: TableFile, request: ForgetRequest, keys: Sequence[bytes]) -> Any:
    """Return the places of the rows of the keys that a data file has, deleted ones too."""
    try:
        rows = file.rows_with_deleted(["_partition", "_offset", "_key"], below_ends(request))
    except (OSError, pa.ArrowException) as error:
        raise TableUnavailable(f"cannot read {file.path}: {one_line(error)}") from error
    # Not in the condition: Arrow does not compare the kinds of bytes that files have.
    wanted = pa.array(keys, pa.binary())
    rows = rows.filter(pc.is_in(rows.column("_key").cast(pa.binary()), wanted))
    return rows.drop_columns(["_key"])


def _purge(table: Table, request: ForgetRequest, keys: Sequence[bytes]) -> None:
    """Rewrite the files with rows of the keys that a deletion vector has deleted, of which DELETE
    knows nothing.
    """
    for attempt in range(_ATTEMPTS):
        files = [
            file
            for file in (table.data_files(below_ends(request)) if table.has_vectors else ())
            if file.file is not None
            and file.file.vector is not None
            and _places_in(file, request, keys).num_rows
        ]
        if not files:
            return
        try:
            purge(table, files, file_bytes=FILE_BYTES)
        except CommitConflict:
            if attempt == _ATTEMPTS - 1:
                raise
        failpoint("forget_rows_purged")
        table = open_table(table.uri) or table


def _file_sizes(table: Table) -> Mapping[str, int]:
    added = pa.table(table.handle.get_add_actions(flatten=True))
    paths = [path.rsplit("/", 1)[-1] for path in added.column("path").to_pylist()]
    return dict(zip(paths, added.column("size_bytes").to_pylist(), strict=True))


def _delete(table: Table, request: ForgetRequest, keys: Sequence[bytes]) -> int:
    """Delete the rows of the keys, and return how many there were."""
    _purge(table, request, keys)
    table = open_table(table.uri) or table
    count = conflicts = 0
    while places := _places(table, request, keys):
        try:
            count += _delete_places(table, places[:_PLACES_AT_ONCE])
        except CommitConflict:
            conflicts += 1
            if conflicts == _ATTEMPTS:
                raise
        failpoint("forget_rows_deleted")
        add_zones(table)
        table = open_table(table.uri) or table
    return count


def _places(table: Table, request: ForgetRequest, keys: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return partition and offset of the rows of the keys, in order."""
    found: set[tuple[int, int]] = set()
    for _, rows in rows_by_file(table, request, keys):
        columns = (rows.column(name).to_pylist() for name in ("_partition", "_offset"))
        found.update(zip(*columns, strict=True))
    return sorted(found)


def _delete_places(table: Table, places: Sequence[tuple[int, int]]) -> int:
    from deltalake.exceptions import DeltaError

    by_partition: dict[int, list[int]] = {}
    for partition, offset in places:
        by_partition.setdefault(partition, []).append(offset)
    condition = " OR ".join(
        f"(_partition = {partition} AND _offset IN ({', '.join(map(str, offsets))}))"
        for partition, offsets in by_partition.items()
    )
    try:
        return int(table.handle.delete(condition)["num_deleted_rows"])
    except (DeltaError, OSError) as error:
        now = open_table(table.uri)
        if now is not None and now.version != table.version:
            raise CommitConflict(f"another run has committed to {table.uri}") from error
        raise TableUnavailable(
            f"no rows can be deleted in {table.uri}: {one_line(error)}"
        ) from error


# -------------------------------------------------------------------------------------------- notes


def _note(path: str, uri: str, request: ForgetRequest) -> int:
    """Have the certificate noted in a table, with the digests of ranges that changed; return the
    version from which on its rows are gone.
    """
    mark = f"lakehead:{request.topic_id}:forgotten:{request.number}"
    for _ in range(_ATTEMPTS):
        table = open_table(uri)
        if table is None:
            raise TableUnavailable(f"table {uri} is gone")
        known = table.txn_version(mark)
        if known != NOTHING:
            return known
        digests = digest_note(_new_digests(path, table, request))
        note = json.dumps({"certificate": request.number, "salt": request.salt})
        try:
            table.commit(
                [],
                {mark: table.version},
                modified_ms=SystemClock().now_ms(),
                commit_info={"lakehead.topic": request.topic, FORGOTTEN: note, **digests},
            )
        except CommitConflict:
            continue
        return table.version
    raise CommitConflict(f"{uri} was written {_ATTEMPTS} times meanwhile: run it again")


def _new_digests(path: str, table: Table, request: ForgetRequest) -> list[RangeDigest]:
    reader = store_reader(path)
    changed = _changed_offsets(reader, request)
    held = [
        one
        for one in held_digests(table)
        if any(first < one.end and end > one.first for first, end in changed.get(one.partition, ()))
    ]
    if not held:
        return []
    logs = {
        log.id.partition: log for log in committed_now(reader, reader.open_catalog(), request.topic)
    }
    made = (_digest(reader, logs[one.partition], one) for one in held if one.partition in logs)
    return [one for one in made if one is not None]


def _changed_offsets(
    reader: StoreReader, request: ForgetRequest
) -> dict[int, list[tuple[int, int]]]:
    """Return the offsets of batches that were rewritten, by partition."""
    certificates = Certificates(reader.store, random.SystemRandom())
    steps: list[ForgetStep] = reader.run(certificates.steps(request.number, lambda _: True))
    found: dict[int, list[tuple[int, int]]] = {}
    for step in steps:
        for partition, spans in step.batches.items():
            found.setdefault(int(partition), []).extend((first, end) for first, end in spans)
    return found


class _Digested:
    """The reading of a range for its digest: nothing is refused (`InvalidPolicy`)."""

    keeps_batches = False
    keeps_times = True

    def __init__(self) -> None:
        self.digest = RecordDigest()

    def take_batch(self, found: InvalidBatch) -> None:
        self.digest.add_batch(found)

    def take_times(self, found: InvalidTimes) -> None:
        """Go on: the record counts."""


def _digest(reader: StoreReader, log: PartitionLog, held: RangeDigest) -> RangeDigest | None:
    """Return the digest of a range as the topic has it now; None if it has not all of it."""
    if held.first < log.start_offset or held.end > log.end_offset:
        return None
    requested = [OffsetRange(log=log, start=held.first, end=held.end)]
    try:
        present, indexes = find_indexes(reader, requested, fail_on_data_loss=True)
    except DataLoss:
        return None
    splits = plan_splits(present, indexes, split_bytes=1 << 62)
    ranges = [one for split in splits for one in split.ranges]
    reading = _Digested()
    decoder = RecordDecoder(DECODED, invalid=reading)
    for batch in decode_all(read_moved(reader, ranges), decoder):
        if batch.num_rows:
            reading.digest.add(batch)
    return RangeDigest(
        partition=held.partition,
        first=held.first,
        end=held.end,
        records=reading.digest.records,
        digest=reading.digest.hexdigest(),
    )


# ------------------------------------------------------------------------------------------ Iceberg


def _publish(path: str, request: ForgetRequest) -> None:
    """Bring each Iceberg table up to its Delta table, and remove its snapshots of before."""
    for declared in declarations(path, request):
        if declared.has_iceberg:
            _publish_one(path, declared)


def _publish_one(path: str, declared: TableDeclaration) -> None:
    try:
        catalog = open_iceberg_catalog(declared.iceberg_catalog)
        publish(declared.uri(path), catalog, declared.iceberg_table)
        expire_others(catalog, declared.iceberg_table)
    except SettingsError:
        raise
    except Exception as error:
        raise CatalogUnavailable(
            f"the rows are gone from the Delta table; the Iceberg table {declared.iceberg_table} "
            f"of catalog {declared.iceberg_catalog} still shows them ({one_line(error)}): run it "
            "again when the catalog responds"
        ) from error
    failpoint("forget_iceberg_published")
