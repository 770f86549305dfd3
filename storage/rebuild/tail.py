"""Where a stream ends of which a crash left the last objects with one missing among them: pure.

A node has several uploads, and several groups of its write-ahead log, on their way at once, and a
crash may leave the later without the earlier. What lies behind such a hole was never committed:
of a log of objects it was not acknowledged, of a log of records the log still holds it. So the
stream ends at the hole, and a node that starts again goes on there; bridging it would take the
place of records that the log brings back.

A hole that is further from a node's last object than its writes reach is a loss, and no end.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise

from lakehead.storage.format.object_names import DataName
from lakehead.storage.rebuild.found import FoundRange
from lakehead.storage.wal.object.names import WalName

AT_ONCE_MAX = 128
"""Objects that a node may have on their way at once: of its log 32, of uploads those of three
snapshots.
"""


class _Series(Enum):
    WAL = 0
    DATA = 1


_Numbered = tuple[_Series, int, int]
"""Objects that are numbered in the order of their records: by a node in an epoch."""

LastNumbers = Mapping[_Numbered, int]


def last_numbers(keys: Iterable[str]) -> dict[_Numbered, int]:
    """Return the last number of each series that names tell of, of nodes in their last epochs."""
    found: dict[_Numbered, int] = {}
    epochs: dict[int, int] = {}
    for key in keys:
        numbered = _numbered(key)
        if numbered is not None:
            series, number = numbered
            found[series] = max(number, found.get(series, number))
            epochs[series[1]] = max(series[2], epochs.get(series[1], 0))
    return {series: number for series, number in found.items() if series[2] == epochs[series[1]]}


def counted_until(ranges: Sequence[FoundRange], last: LastNumbers) -> int:
    """Return how many of a stream's ranges, in the order of offsets, count: those before the first
    hole behind which all is of the last writes of one node in its last epoch.
    """
    for number, (before, after) in enumerate(pairwise(ranges), 1):
        if before.end_offset < after.start_offset and _is_tail(ranges[number:], last):
            return number
    return len(ranges)


def _is_tail(ranges: Collection[FoundRange], last: LastNumbers) -> bool:
    nodes = set[int]()
    for one in ranges:
        series, number = _numbered(one.key) or (None, 0)
        if series is None or number + AT_ONCE_MAX <= last.get(series, number + AT_ONCE_MAX):
            return False
        nodes.add(series[1])
    return len(nodes) == 1


def _numbered(key: str) -> tuple[_Numbered, int] | None:
    wal = WalName.parse(key)
    if wal is not None:
        return (_Series.WAL, wal.node_id, wal.epoch), wal.number
    data = DataName.parse(key)
    if data is not None:
        return (_Series.DATA, data.node_id, data.epoch), data.number
    return None
