"""Settings of a connector: the tables of its TOML file."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lakehead.connectors.runtime.dead_letters import OnError
from lakehead.connectors.runtime.settings import Name, RunSettings


class TopicsSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="topic",
):
    """The table `[source]` with `type = "topic"`."""

    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    start: Literal["earliest", "latest"] = "earliest"
    """The start in a partition that was never read."""
    when_lost: Literal["fail", "earliest"] = "fail"
    """If retention has removed unread records: fail, or continue at the earliest one."""


Format = Literal["json", "csv", "parquet"]
Compression = Literal["none", "gzip", "zstd"]
ColumnType = Literal["string", "integer", "number", "boolean"]

FORMATS: dict[str, Format] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}


class FilesSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="files",
):
    """The table `[source]` with `type = "files"`."""

    path: Annotated[str, Meta(min_length=1)]
    """A file, a folder with all that is below it, or a pattern with `*`, `?` and `**`; in a local
    file system or `s3://bucket/prefix?option=value`."""
    format: Format | None = None
    """By the file's suffix unless given: .json .jsonl .ndjson, .csv .tsv, .parquet."""
    compression: Compression | None = None
    """By the file's suffix unless given: .gz, .zst."""
    key: tuple[str, ...] = ()
    """Columns that make the record's key."""
    timestamp: str | None = None
    """Column that gives the record's timestamp: ISO 8601, or a number in `timestamp_unit`."""
    timestamp_unit: Literal["s", "ms", "us"] = "ms"
    order: Literal["name", "modified"] = "name"
    """In which files are read."""
    changed: Literal["fail", "append", "reread"] = "fail"
    """If a file has changed: fail; continue behind the part that was read, if that is still the
    same; or read it as a new one.
    """
    settle_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Leave a file alone until it was not written to for so long."""
    line_bytes_max: Annotated[int, Meta(ge=16, le=64 * 1024 * 1024)] = 1024 * 1024
    """Longer values are bad input."""
    header: bool = True
    """CSV: whether the first row names the columns."""
    columns: tuple[str, ...] = ()
    """CSV: their names where no row does."""
    types: dict[str, ColumnType] = {}
    """CSV: columns that are no text."""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] | None = None
    """CSV: `,`, and a tab in .tsv, unless given."""


class DeltaSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="delta",
):
    """The table `[source]` with `type = "delta"`."""

    path: Annotated[str, Meta(min_length=1)]
    """The table: a folder, or `s3://bucket/prefix?option=value`."""
    key: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Columns that make the record's key: a deleted row is a tombstone of its key."""
    start: Annotated[int, Meta(ge=0)] | Literal["earliest", "latest"] = "earliest"
    """The first version whose changes are read, by number or name, when the connector first runs.
    """
    keys_change: bool = False
    """True if an UPDATE may change a key: then every update is a tombstone of the row before it, of
    the key that this had, and the row after it.
    """


class TopicSinkSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="topic",
):
    """The table `[sink]` with `type = "topic"`."""

    topic: Annotated[str, Meta(min_length=1)]
    """In copies of topics `{topic}` stands for the one that is read."""
    partitions: Annotated[int, Meta(ge=1)] | None = None
    """Create the topic with so many partitions if there is none."""
    keep_partitions: bool = True
    """In copies of topics: the same partition, not one by the key."""
    on_error: OnError = OnError.FAIL
    """The handling of bad input."""
    dead_letter_topic: Name | None = None
    """TOPIC.dead-letters unless given."""
    kafka: dict[str, Any] = {}
    """In copies of topics: the cluster to write to, if it is another."""


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    name: Name
    """Of the connector: its positions, its group and its transactional id have it."""
    source: FilesSettings | DeltaSettings | TopicsSettings
    sink: TopicSinkSettings
    kafka: dict[str, Any] = {}
    """Settings of librdkafka for the cluster."""
    run: RunSettings = RunSettings()
