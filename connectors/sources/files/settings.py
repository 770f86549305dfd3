"""What a files source can be told."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
    """When a file is not what it was: refuse; go on behind what was read, if that is still the
    same; or read it as a new one."""
    settle_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Leave a file alone until it was not written to for so long."""
    line_bytes_max: Annotated[int, Meta(ge=16, le=64 * 1024 * 1024)] = 1024 * 1024
    """What is longer is no record."""
    header: bool = True
    """CSV: whether the first row names the columns."""
    columns: tuple[str, ...] = ()
    """CSV: their names where no row does."""
    types: dict[str, ColumnType] = {}
    """CSV: columns that are no text."""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] | None = None
    """CSV: `,`, and a tab in .tsv, unless given."""
