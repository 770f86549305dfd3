"""What a source of a Delta table's changes can be told."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


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
    """Whether an UPDATE may change a key: then every update is a tombstone of the row before it, of
    the key that this had, and the row after it."""
