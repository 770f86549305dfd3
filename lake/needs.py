"""The part of a read that a query needs: columns, and bounds of partitions, offsets and times.

It is a hint. A reader may leave out rows beyond the bounds and may have nulls in other columns; it
may as well have all of them, so the query itself still filters. Without Arrow and the store.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from lakehead.lake.planner import OffsetRange

_OFFSETS_END = 2**63 - 1
_NAMES = {"columns", "partitions", "offsets", "since", "limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """`columns` and `partitions` None: all. Offsets [first_offset, end_offset) of each partition.
    `since_ms`: records of that time or newer; at or below 0: of any time. `limit`: any of
    those are enough, up to this number of rows; None: all of them.
    """

    columns: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = _OFFSETS_END
    since_ms: int = 0
    limit: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Needs":
        """Return what `form` wrote. Raises SettingsError."""
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or not set(found) <= _NAMES:
                raise ValueError(text)
            first, end = map(int, found.get("offsets", (0, _OFFSETS_END)))
            return cls(
                columns=_names(found.get("columns")),
                partitions=_numbers(found.get("partitions")),
                first_offset=first,
                end_offset=end,
                since_ms=int(found.get("since", 0)),
                limit=int(found["limit"]) if "limit" in found else None,
            )
        except (ValueError, TypeError):
            raise SettingsError(
                'option \'needs\' must be like {"columns":["value"],"partitions":[0,2],'
                f'"offsets":[100,200],"since":1700000000000,"limit":10}}, not {text}'
            ) from None

    def form(self) -> str:
        """Return it as JSON."""
        found: dict[str, Any] = {"offsets": [self.first_offset, self.end_offset]}
        if self.columns is not None:
            found["columns"] = sorted(self.columns)
        if self.partitions is not None:
            found["partitions"] = sorted(self.partitions)
        if self.limit is not None:
            found["limit"] = self.limit
        return json.dumps(found | {"since": self.since_ms})

    def both(self, other: "Needs") -> "Needs":
        """Return the bounds that hold for rows within these and within `other`; their columns and
        their limit are those of this.
        """
        partitions = self.partitions
        if other.partitions is not None:
            partitions = other.partitions & (other.partitions if partitions is None else partitions)
        return replace(
            self,
            partitions=partitions,
            first_offset=max(self.first_offset, other.first_offset),
            end_offset=min(self.end_offset, other.end_offset),
            since_ms=max(self.since_ms, other.since_ms),
        )

    def either(self, other: "Needs") -> "Needs":
        """Return what covers these and `other`."""

        def union(one: frozenset[Any] | None, two: frozenset[Any] | None) -> frozenset[Any] | None:
            return None if one is None or two is None else one | two

        is_limited = self.limit is not None and other.limit is not None
        return Needs(
            columns=union(self.columns, other.columns),
            partitions=union(self.partitions, other.partitions),
            first_offset=min(self.first_offset, other.first_offset),
            end_offset=max(self.end_offset, other.end_offset),
            since_ms=min(self.since_ms, other.since_ms),
            limit=max(self.limit or 0, other.limit or 0) if is_limited else None,
        )

    def covers(self, other: "Needs") -> bool:
        """Return whether a read of these has all of `other`."""
        return self.either(other) == self

    def narrowed(self, requested: "Sequence[OffsetRange]") -> "list[OffsetRange]":
        """Return the part of a read that is within the bounds; empty ranges are left out."""
        narrowed = [
            replace(
                one,
                start=max(one.start, self.first_offset),
                end=min(one.end, self.end_offset),
                since_ms=self.since_ms,
            )
            for one in requested
            if self.partitions is None or one.log.id.partition in self.partitions
        ]
        return [one for one in narrowed if one.start < one.end]


ALL = Needs()


def _names(value: Any) -> frozenset[str] | None:
    if value is not None and not (isinstance(value, list) and all(type(x) is str for x in value)):
        raise ValueError(value)
    return None if value is None else frozenset(value)


def _numbers(value: Any) -> frozenset[int] | None:
    if value is not None and not (isinstance(value, list) and all(type(x) is int for x in value)):
        raise ValueError(value)
    return None if value is None else frozenset(value)
