"""The streams and objects of a checkpoint, made into values when they are asked for."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from lakehead.storage.format.checkpoint import Columns, rows_of
from lakehead.storage.format.columns import Column, Flags, Longs, Texts, Words
from lakehead.storage.metadata.extents import ExtentColumns, ExtentRows, Extents
from lakehead.storage.metadata.state import ObjectState, StreamState

C = TypeVar("C", Longs, Texts, Words, Flags)


def rows_between(column: Longs, first: int, last: int) -> tuple[int, int]:
    """Return the rows of an ascending column that hold values from `first` to `last`."""
    values = column.values
    return bisect_left(values, first), bisect_right(values, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochColumns:
    """The epochs of all streams, by stream, oldest first."""

    stream_ids: Longs
    epochs: Longs
    start_offsets: Longs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamRows:
    """Streams by id, with their epochs and extents."""

    stream_ids: Longs
    topic_ids: Texts
    partitions: Longs
    stream_epochs: Longs
    node_ids: Longs
    is_open: Flags
    start_offsets: Longs
    end_offsets: Longs
    assigned: Longs
    preferred: Longs
    state_from: Longs
    epochs: EpochColumns
    extents: ExtentColumns
    state_extents: ExtentColumns

    def __len__(self) -> int:
        return len(self.stream_ids)

    def place(self, stream_id: int) -> int:
        """Return the first row whose id is not below."""
        return bisect_left(self.stream_ids.values, stream_id)

    def find(self, key: int) -> int:
        """Return the row of a stream; -1 if there is none."""
        row = self.place(key)
        return row if row < len(self) and self.stream_ids[row] == key else -1

    def key(self, row: int) -> int:
        """Return a row's stream id."""
        return self.stream_ids[row]

    def value(self, row: int) -> StreamState:
        """Return a row's stream."""
        stream_id = self.stream_ids[row]
        epochs = self.epochs
        first, end = rows_between(epochs.stream_ids, stream_id, stream_id)
        return StreamState(
            stream_id=stream_id,
            topic_id=self.topic_ids[row],
            partition=self.partitions[row],
            epoch=self.stream_epochs[row],
            node_id=self.node_ids[row],
            is_open=self.is_open[row],
            start_offset=self.start_offsets[row],
            end_offset=self.end_offsets[row],
            epochs=tuple((epochs.epochs[n], epochs.start_offsets[n]) for n in range(first, end)),
            extents=_extents_of(self.extents, stream_id),
            assigned=self.assigned[row],
            preferred=self.preferred[row],
            state_from=self.state_from[row],
            state_extents=_extents_of(self.state_extents, stream_id),
        )


def _extents_of(columns: ExtentColumns, stream_id: int) -> Extents:
    first, end = rows_between(columns.stream_ids, stream_id, stream_id)
    return Extents((ExtentRows(columns, first, end),) if end > first else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceColumns:
    """Which streams refer to which objects, by row of the object and stream."""

    objects: Longs
    stream_ids: Longs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObjectRows:
    """Objects by key, with the streams that refer to them."""

    keys: Texts
    kinds: Words
    sizes: Longs
    node_ids: Longs
    node_epochs: Longs
    created_ms: Longs
    unreferenced_ms: Longs
    references: ReferenceColumns

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: str) -> int:
        """Return the row of an object; -1 if there is none."""
        return self.keys.find(key)

    def key(self, row: int) -> str:
        """Return a row's key."""
        return self.keys[row]

    def value(self, row: int) -> ObjectState:
        """Return a row's object."""
        first, end = rows_between(self.references.objects, row, row)
        return ObjectState(
            key=self.keys[row],
            kind=self.kinds[row],
            size=self.sizes[row],
            node_id=self.node_ids[row],
            node_epoch=self.node_epochs[row],
            created_ms=self.created_ms[row],
            stream_ids=frozenset(self.references.stream_ids.values[first:end]),
            unreferenced_ms=self.unreferenced_ms[row],
        )


def object_rows(tables: Mapping[str, Columns]) -> ObjectRows:
    """Return the objects of a checkpoint. Raises KeyError, TypeError for tables of another kind."""
    objects, references = _Reader(tables, "objects"), _Reader(tables, "references")
    return ObjectRows(
        keys=objects.column("key", Texts),
        kinds=objects.column("kind", Words),
        sizes=objects.column("size", Longs),
        node_ids=objects.column("node_id", Longs),
        node_epochs=objects.column("node_epoch", Longs),
        created_ms=objects.column("created_ms", Longs),
        unreferenced_ms=objects.column("unreferenced_ms", Longs),
        references=ReferenceColumns(
            objects=references.column("object", Longs),
            stream_ids=references.column("stream_id", Longs),
        ),
    )


def stream_rows(tables: Mapping[str, Columns], objects: ObjectRows) -> StreamRows:
    """Return the streams of a checkpoint. Raises KeyError, TypeError for tables of another kind."""
    streams, epochs = _Reader(tables, "streams"), _Reader(tables, "epochs")
    return StreamRows(
        stream_ids=streams.column("stream_id", Longs),
        topic_ids=streams.column("topic_id", Texts),
        partitions=streams.column("partition", Longs),
        stream_epochs=streams.column("stream_epoch", Longs),
        node_ids=streams.column("node_id", Longs),
        is_open=streams.column("is_open", Flags),
        start_offsets=streams.column("start_offset", Longs),
        end_offsets=streams.column("end_offset", Longs),
        assigned=streams.column_or("assigned", -1),
        preferred=streams.column_or("preferred", -1),
        state_from=streams.column_or("state_from", -1),
        epochs=EpochColumns(
            stream_ids=epochs.column("stream_id", Longs),
            epochs=epochs.column("stream_epoch", Longs),
            start_offsets=epochs.column("start_offset", Longs),
        ),
        extents=_extent_columns(tables, "extents", objects),
        state_extents=_extent_columns(tables, "state_extents", objects),
    )


def _extent_columns(tables: Mapping[str, Columns], name: str, objects: ObjectRows) -> ExtentColumns:
    extents = _Reader(tables, name)
    return ExtentColumns(
        stream_ids=extents.column("stream_id", Longs),
        start_offsets=extents.column("start_offset", Longs),
        end_offsets=extents.column("end_offset", Longs),
        objects=extents.column("object", Longs),
        max_timestamps=extents.column("max_timestamp", Longs),
        sizes=extents.column("size", Longs),
        keys=objects.keys,
    )


class _Reader:
    """A table's columns; all of them empty when the checkpoint has no such table."""

    def __init__(self, tables: Mapping[str, Columns], name: str) -> None:
        self._columns = tables.get(name)

    def column(self, name: str, kind: type[C]) -> C:
        column = _EMPTY[kind] if self._columns is None else self._columns[name]
        if not isinstance(column, kind):
            raise TypeError(f"column {name} holds {type(column).__name__}")
        return column

    def column_or(self, name: str, default: int) -> Longs:
        """Return a column that older checkpoints do not have: `default` in every row of those."""
        if self._columns is None or name in self._columns:
            return self.column(name, Longs)
        return Longs([default] * rows_of(self._columns))


_EMPTY: dict[type, Column] = {
    Longs: Longs(()),
    Texts: Texts.of(()),
    Words: Words.of(()),
    Flags: Flags(()),
}
