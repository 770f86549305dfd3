"""The job `backup`: a copy of a cluster in another store, as it is at one moment.

Plan: what the target does not have of the objects that the metadata name. Run: one unit, the
backup, which copies by itself what is missing (`lakehead.storage.backup.run`). A run that was
killed leaves the backup before it as it is, and another try copies the rest.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import (
    LINES_MAX,
    DamageFound,
    Fields,
    Job,
    JobContext,
    JobResult,
    Planned,
    Report,
    Table,
    Unit,
    text,
    total,
)
from lakehead.storage.jobs.options import option
from lakehead.storage.plain_text import moment

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.backup.manifest import LogElsewhere, Manifest
    from lakehead.storage.backup.run import BackupDone, Backups
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

T = TypeVar("T")

_WRITER = "backup"
_UNIT = "backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """The place of the backups, and how many of them stay."""

    target: str = option(
        "",
        "The place of the backups: a folder, or a store's URI (s3://bucket/prefix).",
        title="Target",
        metavar="TARGET",
        is_argument=True,
    )
    keep_last: int = option(
        2,
        "The newest backups that are kept.",
        title="Newest kept",
        flag="--keep-last",
        metavar="N",
        least=1,
    )
    keep_hours: int = option(
        24,
        "Hours of which the first backup each is kept, besides the newest.",
        title="Hours kept",
        flag="--keep-hours",
        metavar="HOURS",
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBackup(JobResult):
    """A backup: its number, the cluster, the time up to which it has all, and the objects and bytes
    that it names. Damaged objects did not match their checksums.
    """

    backup: int = total("backup")
    cluster_id: str = text("cluster id")
    has_all_until: str = text("has all until")
    objects: int = total("objects")
    bytes: int = total("bytes")
    tail_objects: int = total("objects of write-ahead logs")
    logs_elsewhere: str = text("without the logs of")
    damaged_objects: int = total("damaged objects")

    @classmethod
    def of(cls, manifest: "Manifest", **more: Any) -> Self:
        """Return the backup of a manifest, with more fields of a subclass."""
        return cls(
            backup=manifest.number,
            cluster_id=manifest.cluster_id,
            has_all_until=moment(manifest.position_ms),
            objects=manifest.objects,
            bytes=manifest.size,
            tail_objects=manifest.tail_objects,
            logs_elsewhere=elsewhere_text(manifest.logs_elsewhere),
            damaged_objects=len(manifest.damaged),
            **more,
        )


def elsewhere_text(logs: "Sequence[LogElsewhere]") -> str:
    """Return the nodes whose logs are not in a backup as text."""
    return ", ".join(f"node {one.node_id} ({one.wal})" for one in logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupResult(StoredBackup):
    """A backup that was made, what was copied for it, and the damaged objects."""

    copied_objects: int = total("copied objects")
    copied_bytes: int = total("copied bytes")
    took_ms: int = total("milliseconds")
    damaged: tuple[str, ...] = ()

    @classmethod
    def of_done(cls, done: "BackupDone") -> Self:
        """Return the result of a backup."""
        return cls.of(
            done.manifest,
            copied_objects=done.copied_objects,
            copied_bytes=done.copied_bytes,
            took_ms=done.took_ms,
            damaged=done.manifest.damaged,
        )

    def as_fields(self) -> Fields:
        """Return the result as XCom has it, with the first damaged objects."""
        return JobResult.as_fields(self) | {"damaged": list(self.damaged[:LINES_MAX])}


def with_backups(
    path: str,
    options: BackupOptions,
    work: "Callable[[Backups], Coroutine[Any, Any, BackupResult]]",
) -> BackupResult:
    """Run `work` on the backups of the cluster at `path`. Blocks. Raises SettingsError,
    RequestRefused, StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    import random

    from lakehead.storage.backup.pruning import Kept
    from lakehead.storage.backup.run import Backups
    from lakehead.storage.clock import SystemClock

    async def use(source: "ObjectStore", log: "MetadataLog", target: "ObjectStore") -> BackupResult:
        backups = await Backups.open(
            source,
            target,
            log,
            clock=SystemClock(),
            rng=random.SystemRandom(),
            kept=Kept(newest=options.keep_last, hours=options.keep_hours),
        )
        return await work(backups)

    return _between(path, options, use)


def _between(
    path: str,
    options: BackupOptions,
    work: "Callable[[ObjectStore, MetadataLog, ObjectStore], Coroutine[Any, Any, T]]",
) -> T:
    """Run `work` with the stores of the cluster and of its backups."""
    import random

    from lakehead.storage.encryption.settings import plain_address
    from lakehead.storage.jobs.cluster import in_cluster
    from lakehead.storage.object_store import open_retrying_store

    if not options.target:
        raise SettingsError("a backup needs a target: a folder, or a store's URI")

    async def use(source: "ObjectStore", log: "MetadataLog") -> T:
        target = open_retrying_store(options.target, rng=random.SystemRandom())
        try:
            if plain_address(source.uri) == plain_address(target.uri):
                raise SettingsError(
                    f"the cluster itself is in {target.uri}: give a backup another place"
                )
            return await work(source, log, target)
        finally:
            await target.close()

    return in_cluster(path, _WRITER, use)


def _plan(context: JobContext, options: BackupOptions) -> Planned:
    """Look at what is to be copied; as a part of an earlier plan at nothing."""
    from lakehead.storage.backup.manifest import named_objects
    from lakehead.storage.garbage import listed

    async def look(_: "ObjectStore", log: "MetadataLog", target: "ObjectStore") -> dict[str, int]:
        held = {one.key for one in await listed(target)}
        return {key: size for key, size in named_objects(log.state).items() if key not in held}

    missing = {} if context.is_part else _between(context.path, options, look)
    size = sum(missing.values())
    return Planned(
        units=(Unit(key=_UNIT, size=size, words=f"{len(missing)} objects to copy"),),
        fields={"objects_to_copy": len(missing)},
    )


def _run(context: JobContext, options: BackupOptions, units: Sequence[Unit]) -> BackupResult:
    async def make(backups: "Backups") -> BackupResult:
        return BackupResult.of_done(await backups.make(context.on_progress))

    return with_backups(context.path, options, make) if units else BackupResult()


def _finish(found: Fields) -> None:
    if count := found.get("damaged_objects", 0):
        raise DamageFound(
            f"{count} objects do not match their checksums and were copied as they are: "
            f"{found['damaged'][0]}; see: lakehead verify"
        )


def _show(result: BackupResult) -> Report:
    table = Table(
        name="damaged",
        columns={"object": "DAMAGED OBJECT, COPIED AS IT IS"},
        rows=[{"object": key} for key in result.damaged],
    )
    return Report(fields=result.labelled(), tables=(table,) if result.damaged else ())


def _show_plan(planned: Planned) -> Report:
    return Report(
        fields={
            "objects to copy": planned.fields["objects_to_copy"],
            "bytes to copy": planned.size,
        }
    )


JOB = Job(
    name="backup",
    help="""Copy a cluster to another store, as of one moment.

    Objects that are there are not copied again.

    The cluster runs meanwhile. A backup that was killed leaves the one before as it is.
    `lakehead restore` makes a cluster of a backup.
    """,
    dry_run_help="Show how much there is to copy, and copy nothing.",
    options=BackupOptions,
    plan=_plan,
    run=_run,
    finish=_finish,
    show_plan=_show_plan,
    show=_show,
    # One backup is one task, whatever its size.
    task_bytes=1 << 62,
)
