"""The jobs `optimize` and `vacuum`: big files of a table's small ones, and no files that nobody
needs.

Both commit nothing but the table's own log, by compare-and-set: killed anywhere, run twice, or run
beside `materialize`, they change no row. OPTIMIZE conflicts with a MERGE that rewrites the same
files; whoever commits second looks again. VACUUM leaves what is younger than the retention alone,
so also what another run is about to commit.

delta-rs does both without a JVM. delta-spark commits to S3 without compare-and-set, so with it the
table's lease is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lake.jobs.table_due import declared_tables
from lake.jobs.table_lease import TableLeases
from lake.store_reader import store_reader
from lake.tables.delta_table import Table, TableMoved, TableUnavailable, one_line, open_table
from lake.tables.merge_engine import MergeEngineName
from storage.clock import SystemClock
from storage.errors import LakeheadError, SettingsError
from storage.failpoints import failpoint
from storage.metadata.table_declaration import TableDeclaration

RETENTION_HOURS = 7 * 24
"""What VACUUM keeps, and the least it may be told to: readers and writers that are at work."""

_SMALL = 4
_SMALL_FILES = 16
_SMALL_RATIO = 0.5
_VACUUM_EVERY_MS = 24 * 3600 * 1000
_HISTORY = 1000
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A table to keep. `order_by`: rows that are near in these columns come to lie together."""

    topic: str
    topic_id: str
    uri: str
    file_bytes: int
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepResult:
    """What a job did to a table, or would do. A file is small below a quarter of its size to be.
    `removed` are the files that VACUUM deleted (-1: as many as there were, Spark does not say).
    """

    topic: str
    table: str
    files: int = 0
    small_files: int = 0
    files_after: int = 0
    removed: int = 0
    is_due: bool = False
    error: LakeheadError | None = None


def targets(path: str, topics: Sequence[str] = ()) -> list[TableTarget]:
    """Return the declared tables of a cluster, or those of `topics`.

    Raises UnknownTopic, SettingsError for a topic that declares none, and as `Catalog.open`.
    """
    catalog = store_reader(path).open_catalog()
    declared = declared_tables(catalog.state, topics)
    for topic in topics:
        catalog.topic(topic)
        if topic not in declared:
            raise SettingsError(f"topic {topic} declares no table: set lakehead.table.enable=true")
    found = []
    for one in declared.values():
        if isinstance(one, TableDeclaration):
            found.append(_target(one, path))
        elif topics:
            raise one
    return found


def _target(declared: TableDeclaration, path: str) -> TableTarget:
    return TableTarget(
        topic=declared.topic,
        topic_id=declared.topic_id,
        uri=declared.uri(path),
        file_bytes=declared.file_bytes,
        order_by=declared.cluster_by,
    )


def look(target: TableTarget) -> UpkeepResult:
    """Return how a table's files are, and whether OPTIMIZE is due: many small files, and most of
    them small. Raises TableUnavailable, SettingsError.
    """
    table = open_table(target.uri)
    if table is None:
        return UpkeepResult(topic=target.topic, table=target.uri)
    added = pa.table(table.handle.get_add_actions(flatten=True))
    sizes = added.column("size_bytes")
    small = pc.sum(pc.less(sizes, target.file_bytes // _SMALL)).as_py() or 0
    return UpkeepResult(
        topic=target.topic,
        table=target.uri,
        files=len(sizes),
        small_files=small,
        files_after=len(sizes),
        is_due=is_optimize_due(files=len(sizes), small_files=small),
    )


def is_optimize_due(*, files: int, small_files: int) -> bool:
    """Whether a table has many small files, and most of its files are small."""
    return small_files >= _SMALL_FILES and small_files >= _SMALL_RATIO * files


def optimize(
    path: str, target: TableTarget, *, engine: MergeEngineName = "delta-rs", dry_run: bool = False
) -> UpkeepResult:
    """Make big files of a table's small ones. What fails is in the result."""
    found = UpkeepResult(topic=target.topic, table=target.uri)
    try:
        found = look(target)
        if dry_run or not found.files:
            return found
        if engine == "spark":
            _optimize_by_spark(path, target)
        else:
            _optimize(target)
        return replace(found, files_after=look(target).files)
    except LakeheadError as error:
        return replace(found, error=error)


def _optimize(target: TableTarget) -> None:
    from deltalake.exceptions import DeltaError

    for attempt in range(_ATTEMPTS):
        table = open_table(target.uri)
        if table is None:
            raise TableUnavailable(f"there is no table at {target.uri}")
        optimizer = table.handle.optimize
        failpoint("optimize_opened")
        try:
            if target.order_by:
                optimizer.z_order(list(target.order_by), target_size=target.file_bytes)
            else:
                optimizer.compact(target_size=target.file_bytes)
        except (DeltaError, OSError) as error:
            now = open_table(target.uri)
            if now is None or now.version == table.version:
                text = one_line(error)
                raise TableUnavailable(f"cannot optimize {target.uri}: {text}") from error
            if attempt == _ATTEMPTS - 1:
                raise TableMoved(
                    f"{target.uri} was written each time while it was optimized: run it again"
                ) from error
            continue
        failpoint("optimize_committed")
        return


def _optimize_by_spark(path: str, target: TableTarget) -> None:
    from lake.tables.delta_spark import optimize_by_spark

    leases = TableLeases.open(path)
    try:
        leases.take(target.topic_id)
        optimize_by_spark(target.uri, order_by=target.order_by, file_bytes=target.file_bytes)
    finally:
        leases.close()


def vacuum(
    path: str,
    target: TableTarget,
    *,
    retention_hours: int = RETENTION_HOURS,
    engine: MergeEngineName = "delta-rs",
    dry_run: bool = False,
) -> UpkeepResult:
    """Delete files that no version of the last hours needs, those of killed runs among them. What
    fails is in the result. Raises SettingsError for a retention below seven days.
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
    found = UpkeepResult(topic=target.topic, table=target.uri)
    try:
        table = open_table(target.uri)
        if table is None:
            return found
        found = replace(look(target), is_due=is_vacuum_due(table, SystemClock().now_ms()))
        if engine == "spark":
            removed = _vacuum_by_spark(path, target, dry_run)
        else:
            removed = _vacuum(table, retention_hours, dry_run)
        failpoint("vacuum_done")
        return replace(found, removed=removed)
    except LakeheadError as error:
        return replace(found, error=error)


def is_vacuum_due(table: Table, now_ms: int) -> bool:
    """Whether the last VACUUM, or else the oldest commit of a log, is a day ago."""
    history = table.handle.history(_HISTORY)
    vacuums = [h for h in history if str(h.get("operation", "")).startswith("VACUUM")]
    since = vacuums[0] if vacuums else history[-1]
    return now_ms - int(since.get("timestamp", 0)) >= _VACUUM_EVERY_MS


def _vacuum(table: Table, retention_hours: int, dry_run: bool) -> int:
    from deltalake.exceptions import DeltaError

    try:
        # full: also what no version ever named, from the same age on.
        files = table.handle.vacuum(retention_hours, dry_run=dry_run, full=True)
    except (DeltaError, OSError) as error:
        raise TableUnavailable(f"cannot vacuum {table.uri}: {one_line(error)}") from error
    return len(files)


def _vacuum_by_spark(path: str, target: TableTarget, dry_run: bool) -> int:
    from lake.tables.delta_spark import vacuum_by_spark

    leases = TableLeases.open(path)
    try:
        leases.take(target.topic_id)
        return vacuum_by_spark(target.uri, dry_run=dry_run)
    finally:
        leases.close()
