"""What the readers of formats yield."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record of a file, or what stands where one should be."""

    end: int
    """The position behind it: a byte of the (uncompressed) text, or a row of Parquet."""
    number: int
    """Its line or row, for people; the first is 1."""
    next_number: int
    """The line or row behind it."""
    value: bytes
    """What the record's value will be; or the raw text, if it is none."""
    columns: Mapping[str, Any] | None
    """None if the value is JSON but no object."""
    reason: str = ""
    """Why it is no record; empty if it is."""
    size: int = 0
    """Bytes of the file that it took, about."""
    may_be_cut: bool = False
    """Whether the file ends within it: what is no record may be the beginning of one."""
