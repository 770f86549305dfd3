"""The rules that the table of a topic must keep, at each of its versions, beside the topic's log.

`table_violations` names every breach on a line of its own that begins with its kind:

- table duplicate: a version has a record twice;
- table gap: a version lacks a record below others of the partition that it has;
- table unsaid: a version has a record that the log does not have there, or another value of it;
- table backwards: a version lacks what an earlier one had;
- table behind: the last version lacks records that are in the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Values = Mapping[int, Sequence[tuple[int, bytes]]]
"""By partition: (offset, value) of every record that readers see, in the order of offsets."""


class TableView(NamedTuple):
    """The rows of a version of a table: (partition, offset, value), in any order."""

    version: int
    rows: Sequence[tuple[int, int, bytes]]


def table_violations(name: str, log: Values, views: Sequence[TableView]) -> list[str]:
    """Every broken promise, one line each. `views` are in the order in which they were read; the
    last one was read when the table had to be complete.
    """
    found: list[str] = []
    before: dict[int, int] = {}
    for view in views:
        of_view = f"{name}, version {view.version}"
        held = _held(view)
        for partition in sorted(set(log) | set(held)):
            found += _partition(
                f"{of_view}, partition {partition}",
                log.get(partition, ()),
                held.get(partition, []),
                before.get(partition, 0),
            )
            before[partition] = max(before.get(partition, 0), len(held.get(partition, [])))
    last = _held(views[-1]) if views else {}
    found += [
        f"table behind: {name}, partition {partition} has {len(last.get(partition, []))} of "
        f"{len(records)} records"
        for partition, records in log.items()
        if len(last.get(partition, [])) < len(records)
    ]
    return found


def _held(view: TableView) -> dict[int, list[tuple[int, bytes]]]:
    held: dict[int, list[tuple[int, bytes]]] = {}
    for partition, offset, value in view.rows:
        held.setdefault(partition, []).append((offset, value))
    for rows in held.values():
        rows.sort()
    return held


def _partition(
    where: str, log: Sequence[tuple[int, bytes]], rows: Sequence[tuple[int, bytes]], before: int
) -> Iterator[str]:
    """The first breach of each kind in a partition."""
    offsets = [offset for offset, _ in rows]
    for offset, following in pairwise(offsets):
        if offset == following:
            yield f"table duplicate: {where} has offset {offset} more than once"
            break
    known = dict(log)
    for offset, value in rows:
        if known.get(offset) != value:
            yield f"table unsaid: {where} has {value[:40]!r} at offset {offset}"
            break
    have = set(offsets)
    for offset, _ in log:
        if offsets and offset < offsets[-1] and offset not in have:
            yield f"table gap: {where} lacks offset {offset}, and has {offsets[-1]}"
            break
    if len(rows) < before:
        yield f"table backwards: {where} has {len(rows)} records, an earlier version {before}"
