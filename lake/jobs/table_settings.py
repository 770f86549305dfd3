"""Settings and result of a run that materializes one topic into one table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lakehead.lake.declaration.table_declaration import (
    Evolution,
    OnError,
    PartitionPart,
    TableDeclaration,
    TableMode,
    ValueLayout,
    dead_letters_uri,
)
from lakehead.lake.jobs.table_item import FILE_BYTES
from lakehead.lake.planner import SPLIT_BYTES
from lakehead.lake.tables.merge_engine import MergeEngineName
from lakehead.lake.tables.route import Route
from lakehead.lake.tables.values.decoder import ValueFormat, ValueSpec
from lakehead.lake.tables.values.json_inference import SAMPLE_RECORDS

COMMIT_BYTES = 4 << 30
"""Bytes of stored records per commit: what a killed run may have to do again."""

MERGE_BYTES = 256 << 20
"""Bytes of changes in memory per MERGE: decoded rows, however small their records are stored."""
_PARTS_OF_MERGE = 8

Progress = Callable[[int, int], None]
"""Called with (bytes of stored records done, bytes of the run)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSettings:
    """Settings of a run: topic, table, and the reading of values.

    `path` is the cluster's object-store URI, `table` the table's. `schema` is that of the values as
    their format has it (DDL for JSON, or `@file` with DDL): left out, the table's own wins, and for
    a new table it is inferred from the first `sample_records`, or found by ids in the values.
    `route` chooses the records of one of several tables. `mode` upsert makes each key a row, or
    with `scd` 2 each of its values; `engine` runs the MERGE, which marks replaced rows by deletion
    vectors if the table `takes_vectors`. `written_by` names the run in the note of each commit
    (`lakehead.lake.tables.table_history`). `workers` work at once in this process. A table that
    `has_no_gaps` takes nothing that comes after records that were removed before they reached it.
    """

    path: str
    topic: str
    table: str
    value_format: ValueFormat = "json"
    schema: str | None = None
    message: str = ""
    registry: str = ""
    keys: tuple[str, ...] = ()
    layout: ValueLayout = "flat"
    partition_by: tuple[PartitionPart, ...] = ()
    evolution: Evolution = "evolve"
    sample_records: int = SAMPLE_RECORDS
    on_error: OnError = "pause"
    mode: TableMode = "append"
    scd: int = 1
    route: Route | None = None
    takes_vectors: bool = False
    engine: MergeEngineName = "delta-rs"
    workers: int = 2
    split_bytes: int = SPLIT_BYTES
    commit_bytes: int = COMMIT_BYTES
    merge_bytes: int = MERGE_BYTES
    file_bytes: int = FILE_BYTES
    dry_run: bool = False
    has_no_gaps: bool = False
    written_by: str = ""

    @property
    def round_bytes(self) -> int:
        """Bytes of stored records that are planned at once."""
        is_upsert = self.mode == "upsert"
        return min(self.commit_bytes, self.merge_bytes) if is_upsert else self.commit_bytes

    @property
    def part_bytes(self) -> int | None:
        """Bytes of rows in memory of the parts that a MERGE is put together from; None for a table
        without MERGEs.
        """
        return self.merge_bytes // _PARTS_OF_MERGE if self.mode == "upsert" else None

    @property
    def dead_letters(self) -> str:
        """URI of the table of records that could not be read."""
        return dead_letters_uri(self.table)

    @property
    def spec(self) -> ValueSpec:
        """The form of the values, for their decoder."""
        return ValueSpec(
            value_format=self.value_format,
            schema=self.schema or "",
            message=self.message,
            registry=self.registry,
            keys=self.keys,
        )


def declared_settings(
    declared: TableDeclaration,
    path: str,
    *,
    workers: int = 2,
    dry_run: bool = False,
    engine: MergeEngineName = "delta-rs",
    written_by: str = "",
) -> MaterializeSettings:
    """Return what a topic's declaration says, for the cluster whose store is at `path`."""
    spec = value_spec(declared)
    return MaterializeSettings(
        path=path,
        topic=declared.topic,
        table=declared.uri(path),
        value_format=spec.value_format,
        schema=spec.schema or None,
        message=spec.message,
        registry=spec.registry,
        keys=spec.keys,
        layout=declared.layout,
        partition_by=declared.partition_by,
        evolution=declared.evolution,
        on_error=declared.on_error,
        mode=declared.mode,
        scd=declared.scd,
        route=_route(declared),
        takes_vectors=declared.takes_vectors,
        engine=engine,
        workers=workers,
        file_bytes=declared.file_bytes,
        dry_run=dry_run,
        written_by=written_by,
    )


def _route(declared: TableDeclaration) -> Route | None:
    if not declared.route_field:
        return None
    names = declared.table_names
    return Route(
        field=declared.route_field,
        values=declared.route_values,
        number=names.index(declared.name),
    )


def value_spec(declared: TableDeclaration) -> ValueSpec:
    """Return how values of a topic are read, by its declaration."""
    first, _, rest = declared.schema.partition("\n")
    message, schema = "", declared.schema
    if declared.value_format == "protobuf" and first.startswith("message="):
        message, schema = first.removeprefix("message=").strip(), rest
    return ValueSpec(
        value_format=declared.value_format,
        schema=schema,
        message=message,
        registry=declared.schema_registry_url,
        keys=declared.keys,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeResult:
    """The result of a run; of a dry run, its plan (then only bytes and offsets are known).

    `lost` are offsets that retention removed before they reached the table, `left_out` records that
    are rows without the fields that the table has no column for. `schema` is that of the values.
    """

    records: int = 0
    dead_letters: int = 0
    dropped: int = 0
    left_out: int = 0
    lost: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    files: int = 0
    commits: int = 0
    end_offsets: tuple[int, ...] = ()
    schema: Any = None

    def plus(self, **counts: int) -> "MaterializeResult":
        """Return this result with counts added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in counts.items()})

    def since(self, before: "MaterializeResult") -> "MaterializeResult":
        """Return the difference between this result and an earlier one."""
        return self.plus(**{name: -getattr(before, name) for name in _COUNTS})


_COUNTS = (
    *("records", "dead_letters", "dropped", "left_out", "lost"),
    *("bytes_read", "bytes_written", "files", "commits"),
)


class Guard(Protocol):
    """The right to write the table, and a receiver of its progress."""

    def check(self) -> None:
        """Raise what ends the run if the table is not ours to write any more."""

    def report(self, offsets: tuple[int, ...]) -> None:
        """Take note that the table holds what lies below these offsets of its partitions."""


class Unguarded:
    """The guard of a table that no topic declares: its log alone decides between two commits."""

    def check(self) -> None:
        """Let it go on."""

    def report(self, offsets: tuple[int, ...]) -> None:
        """Take no note."""
