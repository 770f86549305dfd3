"""The jobs `optimize` and `vacuum`: large files from small ones, and deletion of unused files.

OPTIMIZE of a table with clustering columns puts its new files in order, and leaves others alone.

Both hold the table's lease, as every writer does: delta-spark commits to S3 without
compare-and-set, and would overwrite a concurrent commit. Both commit nothing but the table's own
log: killed anywhere, or run twice, they change no row. The process that holds the lease may append
at the same time; of an OPTIMIZE and a MERGE that rewrite the same files one or both are refused,
and run again. VACUUM keeps files that are younger than the retention, and so those that are about
to be committed.

The time of the last run of each is a `txn` action of the table, which checkpoints
keep: a table that gets a commit every few seconds has lost yesterday's history.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import TableDeclaration, dead_letters_uri
from lakehead.lake.errors import as_error
from lakehead.lake.jobs.table_clustering import cubes_to_make, make_cube
from lakehead.lake.jobs.table_compaction import SMALL_SHARE, groups_to_join, join
from lakehead.lake.jobs.table_due import chosen_tables, declared_tables, topic_of
from lakehead.lake.jobs.vector_purge import files_to_purge, purge
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.cubes import new_files
from lakehead.lake.tables.delta_table import (
    NOTHING,
    CommitConflict,
    Table,
    TableUnavailable,
    one_line,
    open_table,
)
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.merge_engine import MergeEngineName
from lakehead.lake.tables.table_root import (
    OWN_ROOT,
    check_declared_place,
    is_data_file,
    names_below,
)
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.failpoints import failpoint

RETENTION_HOURS = 7 * 24
"""The retention of VACUUM, and its minimum: running readers and writers need that long."""

_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_SMALL_FILES = 16
_ATTEMPTS = 3
_DELETED_AT_ONCE = 1000

Hold = Callable[[], AbstractContextManager[None]]
"""Holds the lease of a table while a block runs. Raises TableTaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A table to keep, by its key, or the table of its dead letters. `order_by`: rows that are
    near in these columns come to lie together, in cubes of up to `cube_bytes`. The configs
    `lakehead.table.optimize.*` and `vacuum.*` decide when maintenance is due. `cluster` is the URI
    of the store; `place_error` is the fault of the root or of the declaration. It is checked again
    before a file is deleted.
    """

    key: str
    topic: str
    topic_id: str
    uri: str
    file_bytes: int
    order_by: tuple[str, ...] = ()
    cube_bytes: int = 8 << 30
    optimize_every_ms: int = 3600 * 1000
    small_percent: int = 50
    deleted_percent: int = 10
    vacuum_every_ms: int = 24 * 3600 * 1000
    is_of_letters: bool = False
    cluster: str = ""
    place_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """The result of a job on a table, or its plan. A file is small below a quarter of its target
    size, with another such file in its partition. `new_files` are not clustered yet. `names` are
    the files that VACUUM deleted, below the table's root, `removed` their number; `others` are
    files there that no version names and that are not known to be the table's: they stay.
    """

    topic: str
    table: str
    job: str
    files: int = 0
    small_files: int = 0
    new_files: int = 0
    files_after: int = 0
    removed: int = 0
    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    is_due: bool = False
    error: LakeheadError | None = None


def targets(catalog: Catalog, topics: Sequence[str] = ()) -> list[TableTarget]:
    """Return the declared tables of a cluster, or those of `topics`; behind each the table of its
    dead letters, which need not be there, where it may have some.

    Work at one of `topics` whose declaration is invalid fails with the reason; of all, such a one
    is left out. Raises UnknownTopic, and SettingsError for a topic that declares none.
    """
    declared = chosen_tables(catalog, topics)
    found = []
    for key, one in declared.items():
        if isinstance(one, TableDeclaration):
            table = _target(one, catalog)
            found.append(table)
            if "dead_letter" in (one.on_error, one.evolution):
                letters = dead_letters_uri(table.uri)
                found.append(replace(table, uri=letters, order_by=(), is_of_letters=True))
        elif topics:
            topic = catalog.topic(topic_of(key))
            found.append(
                TableTarget(
                    key=topic.name,
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    uri="",
                    file_bytes=0,
                    place_error=str(one),
                )
            )
    return found


def _target(declared: TableDeclaration, catalog: Catalog) -> TableTarget:
    place_error = ""
    try:
        check_declared_place(catalog, declared)
    except SettingsError as error:
        place_error = str(error)
    return TableTarget(
        key=declared.key,
        topic=declared.topic,
        topic_id=declared.topic_id,
        uri=declared.uri(catalog.uri),
        cluster=catalog.uri,
        place_error=place_error,
        file_bytes=declared.file_bytes,
        order_by=declared.cluster_by,
        cube_bytes=declared.cluster_bytes,
        optimize_every_ms=declared.optimize_interval_ms,
        small_percent=declared.optimize_small_percent,
        deleted_percent=declared.optimize_deleted_percent,
        vacuum_every_ms=declared.vacuum_interval_ms,
    )


def maintain_files(
    target: TableTarget, hold: Hold, *, dry_run: bool = False
) -> Iterator[MaintenanceResult]:
    """Run OPTIMIZE and VACUUM of a table where they are due, without a JVM. Yield a result for
    each (with `dry_run`, of what is due), or its error.
    """
    for job in (optimize, vacuum):
        found = job(target, hold, dry_run=True, only_if_due=True)
        if found.is_due and found.error is None and not dry_run:
            found = job(target, hold, only_if_due=True)
        if found.is_due or found.error is not None:
            yield found


def look(target: TableTarget) -> MaintenanceResult:
    """Return how a table's files are, and whether OPTIMIZE is due. Raises TableUnavailable,
    SettingsError.
    """
    found = MaintenanceResult(topic=target.topic, table=target.uri, job="optimize")
    table = open_table(target.uri)
    if table is None:
        return found
    added = pa.table(table.handle.get_add_actions(flatten=True))
    small = _small_files(added, target.file_bytes // SMALL_SHARE)
    new = 0
    if target.order_by:
        new = len(new_files(table.logical_files().files.values(), target.order_by))
    return replace(
        found,
        files=len(added),
        small_files=small,
        new_files=new,
        files_after=len(added),
        is_due=(
            is_optimize_due(target, files=len(added), small_files=small, new_files=new)
            or is_purge_due(target, table)
        )
        and _is_time(table, "optimized", target, target.optimize_every_ms, since_created=False),
    )


def _small_files(added: pa.Table, small_bytes: int) -> int:
    """Return how many files are small and have another such file in their partition: OPTIMIZE joins
    none of two.
    """
    small = added.filter(pc.less(added.column("size_bytes"), small_bytes))
    parts = [name for name in added.column_names if name.startswith("partition.")]
    if not parts:
        return small.num_rows if small.num_rows > 1 else 0
    counts = small.group_by(parts).aggregate([([], "count_all")]).column("count_all")
    return pc.sum(counts.filter(pc.greater(counts, 1))).as_py() or 0


def is_optimize_due(
    target: TableTarget, *, files: int, small_files: int, new_files: int = 0
) -> bool:
    """Return whether a table has many small files, and enough of its files are small; of one with
    clustering columns, whether it has many files that are not clustered yet.
    """
    if target.order_by:
        return new_files >= _SMALL_FILES
    return small_files >= _SMALL_FILES and small_files * 100 >= target.small_percent * files


def is_purge_due(target: TableTarget, table: Table) -> bool:
    """Return true if enough rows of a table's files are deleted for a purge: any, if it takes no
    deletion vectors any more. Raises TableUnavailable.
    """
    if not table.has_vectors:
        return False
    files = list(table.logical_files().files.values())
    deleted = sum(file.vector.rows for file in files if file.vector is not None)
    if not table.takes_vectors:
        return deleted > 0
    return deleted * 100 >= target.deleted_percent * sum(map(LogicalFile.row_count, files)) > 0


def optimize(
    target: TableTarget,
    hold: Hold,
    *,
    engine: MergeEngineName = "delta-rs",
    dry_run: bool = False,
    only_if_due: bool = False,
) -> MaintenanceResult:
    """Make big files of a table's small ones, under its lease. Failures are in the result."""
    found = MaintenanceResult(topic=target.topic, table=target.uri, job="optimize")
    try:
        _check_place(target)
        if dry_run:
            return look(target)
        with hold():
            found = look(target)  # its former holder may have done it
            if not found.files or (only_if_due and not found.is_due):
                return found
            _check_place_again(target)
            _purge(target)
            if target.order_by:
                _cluster(target)
            elif engine == "spark":
                _compact_by_spark(target)
            else:
                _compact(target)
            _note(target, "optimized")
            return replace(found, files_after=look(target).files)
    except BaseException as caught:  # noqa: BLE001 - one table never stops the others
        return replace(found, error=as_error(caught, f"{found.job} {target.uri}"))


def _purge(target: TableTarget) -> None:
    for attempt in range(_ATTEMPTS):
        table = open_table(target.uri)
        if table is None:
            raise TableUnavailable(f"there is no table at {target.uri}")
        files = files_to_purge(table, target.deleted_percent)
        if not files:
            return
        try:
            purge(table, files, file_bytes=target.file_bytes)
        except CommitConflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            failpoint("optimize_purged")
            return


def _cluster(target: TableTarget) -> None:
    """Make the cubes that the table needs now; what is appended meanwhile may wait for the next
    time. With either engine: neither of them leaves old files alone in a table that both can write.
    """
    left, lost = None, 0
    while left != 0:
        table = open_table(target.uri)
        if table is None:
            raise TableUnavailable(f"there is no table at {target.uri}")
        cubes = cubes_to_make(table, target.order_by, target.cube_bytes)
        left = min(len(cubes) if left is None else left, len(cubes))
        failpoint("optimize_opened")
        if not left:
            return
        try:
            make_cube(table, cubes[0], target.order_by, file_bytes=target.file_bytes)
        except CommitConflict:
            lost += 1
            if lost == _ATTEMPTS:
                raise
        else:
            left -= 1
            failpoint("optimize_committed")


def _compact(target: TableTarget) -> None:
    for attempt in range(_ATTEMPTS):
        table = open_table(target.uri)
        if table is None:
            raise TableUnavailable(f"there is no table at {target.uri}")
        groups = groups_to_join(table, target.file_bytes)
        failpoint("optimize_opened")
        try:
            join(table, groups, file_bytes=target.file_bytes)
        except CommitConflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _compact_by_spark(target: TableTarget) -> None:
    from lakehead.lake.tables.delta_spark import optimize_by_spark

    optimize_by_spark(target.uri, file_bytes=target.file_bytes)


def vacuum(
    target: TableTarget,
    hold: Hold,
    *,
    retention_hours: int = RETENTION_HOURS,
    engine: MergeEngineName = "delta-rs",
    dry_run: bool = False,
    only_if_due: bool = False,
) -> MaintenanceResult:
    """Delete files that no version of the last hours needs, under the table's lease: those that its
    log names, and where its root is its own those that killed runs left, by their names. Failures
    are in the result. Raises SettingsError for a retention below seven days.
    """
    if retention_hours < RETENTION_HOURS:
        raise SettingsError(
            f"a table keeps {RETENTION_HOURS} hours at least: readers of an older version, and "
            "files that are being written, need them"
        )
    if engine == "spark" and retention_hours != RETENTION_HOURS:
        raise SettingsError(
            f"delta-spark keeps what the table's property says, {RETENTION_HOURS} hours unless it "
            "is set: leave the retention out, or use delta-rs"
        )
    found = MaintenanceResult(topic=target.topic, table=target.uri, job="vacuum")
    try:
        _check_place(target)
        with nullcontext() if dry_run else hold():
            table = open_table(target.uri)
            if table is None:
                return found
            found = _with_vacuum(found, table, target)
            if only_if_due and not found.is_due:
                return found
            names, others = _unneeded(table, retention_hours)
            if not dry_run:
                _check_place_again(target)
                _delete(target, names, engine)
            failpoint("vacuum_done")
            if not dry_run:
                _note(target, "vacuumed")
            return replace(found, removed=len(names), names=names, others=others)
    except BaseException as caught:  # noqa: BLE001 - one table never stops the others
        return replace(found, error=as_error(caught, f"{found.job} {target.uri}"))


def _with_vacuum(found: MaintenanceResult, table: Table, target: TableTarget) -> MaintenanceResult:
    files = len(table.handle.file_uris())
    is_due = _is_time(table, "vacuumed", target, target.vacuum_every_ms, since_created=True)
    return replace(found, files=files, files_after=files, is_due=is_due)


def _unneeded(table: Table, retention_hours: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files below a table's root, old enough, that no version of the last hours needs: those
    that are the table's, and all others.
    """
    from deltalake.exceptions import DeltaError

    try:
        every = table.handle.vacuum(retention_hours, dry_run=True, full=True)
        removed = set(table.handle.vacuum(retention_hours, dry_run=True, full=False))
    except (DeltaError, OSError) as error:
        raise TableUnavailable(f"cannot vacuum {table.uri}: {one_line(error)}") from error
    if removed - set(every):  # gone already, or in folders that the table is not partitioned by
        removed &= set(names_below(table.uri))
    needed = _vector_files(table, retention_hours) if table.has_vectors else set()
    has_own_root = table.txn_version(OWN_ROOT) != NOTHING
    names = removed | {name for name in every if has_own_root and is_data_file(name)}
    names -= needed
    return tuple(sorted(names)), tuple(sorted(set(every) - names - needed))


def _vector_files(table: Table, retention_hours: int) -> set[str]:
    """The files of deletion vectors that a version of the last hours needs. Delta-rs takes each for
    a file that no version names.
    """
    # Checkpoints have the removals of a week, or of the time that this property says.
    is_longer = retention_hours > RETENTION_HOURS or _FILE_RETENTION in table.configuration
    state = table.logical_files(by_whole_log=is_longer)
    since_ms = SystemClock().now_ms() - retention_hours * 3600 * 1000
    vectors = [one.vector for one in state.files.values() if one.vector is not None]
    vectors += [vector for vector, at_ms in state.removed.items() if at_ms >= since_ms]
    return {vector.path for vector in vectors if vector.path is not None}


def _delete(target: TableTarget, names: Sequence[str], engine: MergeEngineName) -> None:
    if engine == "spark":
        from lakehead.lake.tables.delta_spark import vacuum_by_spark

        vacuum_by_spark(target.uri, names)
        return
    reader = store_reader(target.uri)
    for first in range(0, len(names), _DELETED_AT_ONCE):
        reader.run(reader.store.delete(names[first : first + _DELETED_AT_ONCE]))


# ------------------------------------------------------------------------------- whose files it is


def _check_place(target: TableTarget) -> None:
    if target.place_error:
        raise SettingsError(target.place_error)


def _check_place_again(target: TableTarget) -> None:
    """Raise SettingsError unless the topic declares this table still, in a root of its own."""
    catalog = store_reader(target.cluster).open_catalog()
    declared = declared_tables(catalog.state, [target.topic]).get(target.key)
    if isinstance(declared, SettingsError):
        raise declared
    if declared is None or declared.topic_id != target.topic_id:
        raise SettingsError(f"topic {target.topic} declares no table any more: {target.key}")
    check_declared_place(catalog, declared)
    if target.uri not in (uri := declared.uri(catalog.uri), dead_letters_uri(uri)):
        raise SettingsError(f"topic {target.topic} declares another table now: {uri}")


# --------------------------------------------------------------------------- when it was done last


def _app(target: TableTarget, what: str) -> str:
    return f"lakehead:{target.topic_id}:{what}"


def _is_time(
    table: Table, what: str, target: TableTarget, every_ms: int, *, since_created: bool
) -> bool:
    """Return whether `every_ms` have passed since it was done, or else since the table was made."""
    if not every_ms:
        return False
    done_ms = table.txn_version(_app(target, what))
    if done_ms < 0 and since_created:
        done_ms = table.handle.metadata().created_time or 0
    return SystemClock().now_ms() - done_ms >= every_ms


def _note(target: TableTarget, what: str) -> None:
    """Record in the table the time of this run. A conflicting commit of another run has recorded
    its own.
    """
    table = open_table(target.uri)
    if table is None:
        return
    now_ms = SystemClock().now_ms()
    with suppress(CommitConflict):
        table.commit([], {_app(target, what): now_ms}, modified_ms=now_ms, commit_info={})
