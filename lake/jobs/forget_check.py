"""`forget --check`: looks for records of a certificate's keys in every object and file, also in
those that no reader finds and that are to be deleted.

The keys are given, or known by the hashes of the certificate and their salt. Records that
readers find are *held*: the certificate is wrong, or the keys came back. Records that are to be
deleted are *pending*, with the earliest time. Only without both is everything gone that the bucket
had of the keys.
"""

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehead.lake.jobs.forget_files import IsForgotten, rows_of
from lakehead.lake.jobs.forget_options import ForgetOptions, has_table
from lakehead.lake.jobs.forget_result import ForgetResult
from lakehead.lake.jobs.forget_versions import VersionsLook, delete_versions
from lakehead.storage.certificate_check import ObjectsChecked, check_objects
from lakehead.storage.certificates import (
    Certificate,
    Certificates,
    DeletedVersion,
    ForgetRequest,
    key_hash,
)
from lakehead.storage.compaction.forgetting import GivenKeys, HashedKeys, Keys
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.jobs.cluster import in_cluster
from lakehead.storage.jobs.job import JobContext
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from lakehead.lake.declaration.table_declaration import TableDeclaration
    from lakehead.lake.tables.delta_table import Table

_VACUUM_HOURS = 7 * 24
_HASHES_KEPT = 1 << 16


def checked(context: JobContext, options: ForgetOptions) -> ForgetResult:
    """Look everywhere, and return what was found. Raises NotFound without such a certificate,
    SettingsError, StoreUnavailable, CorruptObject, UnsupportedFormat, TableUnavailable.
    """
    found = in_cluster(context.path, "forget", lambda store, log: _objects(options, store, log))
    request, certificate, keys, is_forgotten, fault, objects = found
    held = [fault] if fault else []
    held += [
        f"{one.key}: {one.records} records of partition {one.partition}, offsets {one.first} to "
        f"{one.last}"
        for one in objects.held
        if not one.by
    ]
    pending = [] if certificate else [f"request {request.number} is not finished: run it again"]
    pending += [
        f"{one.key}: {one.records} records of partition {one.partition}, deleted by {one.by}"
        f"{_from(one.until_ms)}"
        for one in objects.held
        if one.by
    ]
    unreadable = list(objects.unreadable)
    tables = _checked_tables(context.path, request, is_forgotten)
    look = VersionsLook(
        path=context.path,
        roots=tuple(tables.roots),
        request=request,
        keys=keys,
        is_forgotten=is_forgotten,
    )
    versions = look.run()
    if options.old_versions and versions.held and certificate is not None and not fault:
        delete_versions(context.path, request.number, versions.held)
        versions = look.run()
    notes = in_cluster(context.path, "forget", partial(_notes, request.number))
    held += notes.faults
    old = versions.unknown + [_of_version(request, one) for one in versions.held]
    return ForgetResult(
        verdict=_verdict(
            request.number,
            held=held + tables.held,
            pending=pending + tables.pending + old,
            unreadable=unreadable + tables.unreadable,
        ),
        certificate=str(request.number),
        rows=tables.rows,
        bytes_read=objects.bytes,
        later=objects.later,
        versions=len(versions.held),
        versions_deleted=notes.versions,
        held=tuple(held + tables.held),
        pending=tuple(pending + tables.pending + old),
        unreadable=tuple(unreadable + tables.unreadable),
    )


def _verdict(number: int, *, held: list[str], pending: list[str], unreadable: list[str]) -> str:
    if held:
        return f"certificate {number} does NOT hold: records of its keys are found"
    if unreadable:
        return f"certificate {number} is not complete: some batches cannot be read"
    if pending:
        return (
            f"certificate {number} is pending: no reader finds a record of its keys, and "
            f"{len(pending)} places are to be deleted"
        )
    return f"certificate {number} holds: nothing in the bucket has a record of its keys"


def _from(ms: int) -> str:
    if ms < 0:
        return ""
    return f", from {datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec='seconds')} on"


# ------------------------------------------------------------------------------------------ objects


_Found = tuple[ForgetRequest, Certificate | None, Keys, IsForgotten, str, ObjectsChecked]


async def _objects(options: ForgetOptions, store: ObjectStore, log: MetadataLog) -> _Found:
    rng = random.SystemRandom()
    certificates = Certificates(store, rng)
    assert options.check is not None, "a check"
    request = await certificates.request(options.check)
    if request.topic != options.checked_topic():
        raise SettingsError(
            f"certificate {request.number} is about topic {request.topic}, not {options.topic}"
        )
    certificate = await certificates.certificate(request.number)
    salt = await certificates.salt(request)
    given = options.key_bytes() if options.keys else ()
    if salt is None and not given:
        raise SettingsError(
            f"the salt of certificate {request.number} was deleted: give the keys with --key"
        )
    if salt is not None and (others := {key_hash(salt, key) for key in given} - {*request.hashes}):
        raise SettingsError(
            f"{len(others)} of the keys are not among those of certificate {request.number}"
        )
    keys: Keys
    is_forgotten: IsForgotten
    if given:
        keys, is_forgotten = GivenKeys(given, rng), lambda key: key in given
    else:
        assert salt is not None, "looked at above"
        keys = HashedKeys(salt, request.hashes, rng)
        is_forgotten = hash_test(salt, request.hashes)
    fault = "" if certificate is None else certificate.fault(log.state.node_secret)
    if certificate is not None and certificate.request != request:
        fault = "the certificate is about another request"
    return (
        request,
        certificate,
        keys,
        is_forgotten,
        fault,
        await check_objects(store, log, request, keys),
    )


def hash_test(salt: bytes, hashes: Iterable[str]) -> IsForgotten:
    """Return what says of a key whether it has one of these hashes."""
    known = frozenset(hashes)

    @lru_cache(_HASHES_KEPT)
    def is_forgotten(key: bytes) -> bool:
        return key_hash(salt, key) in known

    return is_forgotten


class _Notes(NamedTuple):
    """The notes of deleted versions: how many versions they name, and what is wrong with them."""

    versions: int
    faults: list[str]


async def _notes(number: int, store: ObjectStore, log: MetadataLog) -> _Notes:
    notes = await Certificates(store, random.SystemRandom()).deleted_versions(number)
    faults = [one.fault(log.state.node_secret, "note of old versions") for one in notes]
    return _Notes(sum(len(one.versions) for one in notes), [one for one in faults if one])


def _of_version(request: ForgetRequest, one: DeletedVersion) -> str:
    return (
        f"{one.store}: {one.records} records in version {one.version_id} of {one.key}, which the "
        f"bucket keeps: delete it with lakehead forget {request.topic} --check {request.number} "
        "--old-versions, or by a rule of its lifecycle (NoncurrentVersionExpiration)"
    )


# ------------------------------------------------------------------------------------------- tables


class _Tables:
    """The findings about tables, in words."""

    def __init__(self) -> None:
        self.rows = 0
        self.held: list[str] = []
        self.pending: list[str] = []
        self.unreadable: list[str] = []
        self.roots: list[str] = []


def _checked_tables(path: str, request: ForgetRequest, is_forgotten: IsForgotten) -> _Tables:
    found = _Tables()
    if not has_table(path, request.topic):
        return found
    from lakehead.lake.jobs.forget_tables import table_uris
    from lakehead.lake.tables.delta_table import open_table

    for uri in table_uris(path, request):
        table = open_table(uri)
        if table is not None:
            found.roots.append(uri)
            _check_table(found, table, request, is_forgotten)
    _check_iceberg(found, path, request)
    return found


def _check_table(
    found: _Tables, table: "Table", request: ForgetRequest, is_forgotten: IsForgotten
) -> None:
    from lakehead.lake.tables.delta_table import removed_files
    from lakehead.lake.tables.table_root import is_data_file, names_below

    current = {uri.rsplit("/", 1)[-1] for uri in table.handle.file_uris()}
    removed = removed_files(table.uri)
    for name in names_below(table.uri):
        if not is_data_file(name) or not name.endswith(".parquet"):
            continue
        rows, batches = _rows_in(table.uri, name, request, is_forgotten)
        is_current = name.rsplit("/", 1)[-1] in current
        if is_current:
            found.unreadable += [f"{table.uri}: the dead letter at {one}" for one in batches]
        if not rows:
            continue
        found.rows += rows
        if is_current:
            found.held.append(f"{table.uri}: {rows} rows in {name}")
            continue
        at_ms = removed.get(name, 0)
        until_ms = at_ms + _VACUUM_HOURS * 3_600_000 if at_ms else -1
        found.pending.append(
            f"{table.uri}: {rows} rows in {name}, of an older version, deleted by lakehead vacuum"
            f"{_from(until_ms)}"
        )


def _rows_in(
    uri: str, name: str, request: ForgetRequest, is_forgotten: IsForgotten
) -> tuple[int, list[str]]:
    """Return how many rows of the keys a file has, and the places of whole batches in it."""
    from lakehead.lake.store_reader import store_reader
    from lakehead.storage.errors import ObjectNotFound

    reader = store_reader(uri)
    try:
        body = reader.run(reader.store.get(name))
    except ObjectNotFound:
        return 0, []  # deleted meanwhile
    return rows_of(body, request, is_forgotten)


def _check_iceberg(found: _Tables, path: str, request: ForgetRequest) -> None:
    from lakehead.lake.jobs.forget_tables import declarations

    for declared in declarations(path, request):
        if declared.has_iceberg:
            _check_iceberg_table(found, path, request, declared)


def _check_iceberg_table(
    found: _Tables, path: str, request: ForgetRequest, declared: "TableDeclaration"
) -> None:
    from lakehead.lake.jobs.catalog_publisher import open_iceberg_catalog
    from lakehead.lake.tables.delta_table import one_line, open_table
    from lakehead.lake.tables.iceberg import VERSION

    name = declared.iceberg_table
    try:
        table = open_iceberg_catalog(declared.iceberg_catalog).load_table(name)
    except LakeheadError:
        raise
    except Exception as error:  # noqa: BLE001 - of a catalog's client: whatever it raises
        found.pending.append(
            f"the Iceberg table {name} of catalog {declared.iceberg_catalog} cannot be looked at: "
            f"{one_line(error)}"
        )
        return
    delta = open_table(declared.uri(path))
    mark = f"lakehead:{request.topic_id}:forgotten:{request.number}"
    gone_from = -1 if delta is None else delta.txn_version(mark)
    old = [
        one.snapshot_id
        for one in table.snapshots()
        if _version_of(one) < gone_from and one.snapshot_id != _newest(table)
    ]
    if old:
        found.pending.append(
            f"the Iceberg table {name} has {len(old)} snapshots of before: run lakehead forget "
            "again"
        )
    if delta is not None and int(table.properties.get(VERSION, -1)) < gone_from:
        names = {place.rsplit("/", 1)[-1] for place in delta.handle.file_uris()}
        shown = {one["file_path"].rsplit("/", 1)[-1] for one in table.inspect.files().to_pylist()}
        if shown - names:
            found.held.append(f"the Iceberg table {name} shows an older version of the table")


def _version_of(snapshot: Any) -> int:
    """Return the Delta version that a snapshot shows; -1 if it does not say."""
    from lakehead.lake.tables.iceberg import VERSION

    summary = snapshot.summary
    return -1 if summary is None else int(summary.additional_properties.get(VERSION, -1))


def _newest(table: Any) -> int:
    snapshot = table.current_snapshot()
    return -1 if snapshot is None else int(snapshot.snapshot_id)
