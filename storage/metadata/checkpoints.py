"""Convert a metadata image to the tables of a checkpoint, and back.

Streams and objects have tables of columns; the small tables hold everything else, a row per value.
Rows of streams and objects become values when they are read.

Values that have not changed since the last checkpoint are copied from column to column, in runs; so
a checkpoint of a million objects of which a thousand changed costs little more than the copy. Both
directions run in steps, between which the caller may run other tasks.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from immutables import Map

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.checkpoint import Checkpoint, Columns, rows_of
from lakehead.storage.format.columns import Column, Doubles, Flags, Longs, Texts, Words, text
from lakehead.storage.format.feature_level import METADATA_VERSION, NEWEST_LEVEL, unknown_here
from lakehead.storage.metadata.additions import columns_at
from lakehead.storage.metadata.extents import Extent, ExtentColumns, ExtentRows, Extents
from lakehead.storage.metadata.records import TAIL, AclBinding
from lakehead.storage.metadata.state import (
    ControllerState,
    DelegationToken,
    KnownLog,
    LostLog,
    MetadataImage,
    NodeState,
    ObjectState,
    QuotaEntity,
    ScramCredential,
    StreamState,
    TableState,
    TopicState,
    WriterState,
    topic_maps,
)
from lakehead.storage.metadata.table import Table

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
    """The references of streams to objects, by row of the object and stream."""

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


Steps = Generator[None, None, None]
_STEP = 8 * 1024


class _Run(NamedTuple):
    """Rows [first, end) of the old checkpoint, or, where `value` is set, one new row."""

    first: int
    end: int
    value: Any = None


def tables_of(state: MetadataImage) -> Generator[None, None, Checkpoint]:
    """Return a state as a checkpoint. Raises CorruptObject when a stream refers to an object that
    the state does not have: what is wrong is not written down as if it were right.
    """
    tables = catalog_tables(state)
    yield
    objects = _Objects(state)
    yield from objects.number()
    tables["objects"] = yield from objects.table()
    tables["references"] = yield from objects.references()
    streams = _Streams(state, objects)
    yield
    tables["streams"] = yield from streams.table()
    tables["epochs"] = yield from streams.epochs()
    tables["extents"] = yield from streams.extents(
        lambda rows: rows.extents, lambda stream: stream.extents
    )
    tables["state_extents"] = yield from streams.extents(
        lambda rows: rows.state_extents, lambda stream: stream.state_extents
    )
    level = state.metadata_version
    return Checkpoint(number=state.next_entry, tables=columns_at(tables, level), version=level)


def _runs(
    rows: int, changes: Iterable[tuple[Any, Any]], place: Callable[[Any], int], key_at: Any
) -> list[_Run]:
    """Return how old rows and changes, ascending by key, lie in the new table."""
    runs, at = [], 0
    for key, value in changes:
        row = place(key)
        if row > at:
            runs.append(_Run(at, row))
        if value is not None:
            runs.append(_Run(0, 0, value))
        at = row + (row < rows and key_at(row) == key)
    if rows > at:
        runs.append(_Run(at, rows))
    return runs


def _longs(runs: list[_Run], old: Longs, value: Callable[[Any], int]) -> Longs:
    column = array("q")
    for run in runs:
        if run.value is not None:
            column.append(value(run.value))
        else:
            column.frombytes(old.plain(run.first, run.end))
    return Longs(memoryview(column))


def _missing(key: str) -> CorruptObject:
    return CorruptObject(key, 0, "the metadata refer to it and have dropped it")


class _Objects:
    """The objects of a new checkpoint: runs, and the new row of each key."""

    def __init__(self, state: MetadataImage) -> None:
        rows = state.objects.rows
        self._old = rows if isinstance(rows, ObjectRows) else object_rows({})
        changes = sorted(
            ((key.encode(), value) for key, value in state.objects.changes.items()),
            key=lambda change: change[0],
        )
        keys = self._old.keys
        self._runs = _runs(len(keys), changes, keys.place, keys.raw)
        self._numbers = array("q")
        self._moved = array("q", [-1]) * len(keys)
        self._new: dict[str, int] = {}

    def number(self) -> Steps:
        """Give every object its row. To be done first."""
        row, keys = 0, self._old.keys
        for run in self._runs:
            if run.value is not None:
                self._new[run.value.key] = row
                known = keys.find(run.value.key)
                if known >= 0:
                    self._moved[known] = row
                row += 1
                continue
            for first in range(run.first, run.end, _STEP):
                end = min(first + _STEP, run.end)
                self._moved[first:end] = array("q", range(row, row + end - first))
                row += end - first
                yield
        for first in range(0, row, _STEP):
            self._numbers.extend(range(first, min(first + _STEP, row)))
            yield

    def row(self, key: str) -> int:
        """Return the new row of an object. Raises CorruptObject if there is none."""
        row = self._new.get(key)
        if row is None:
            known = self._old.find(key)
            row = self._moved[known] if known >= 0 else -1
        if row < 0:
            raise _missing(key)
        return row

    def moved(self, rows: memoryview) -> "array[int]":
        """Return the new rows of old rows. Raises CorruptObject for an object that is gone."""
        moved = array("q", map(self._moved.__getitem__, rows))
        if -1 in moved:
            raise _missing(self._old.keys[rows[moved.index(-1)]])
        return moved

    def table(self) -> Generator[None, None, Columns]:
        old, runs = self._old, self._runs
        keys = [
            text(run.value.key) if run.value is not None else old.keys.plain(run.first, run.end)
            for run in runs
        ]
        yield
        columns: dict[str, Any] = {"object": Longs(memoryview(self._numbers))}
        columns["key"] = yield from Texts.reading(b"".join(keys))
        columns["kind"] = self._kinds()
        getters: list[tuple[str, Longs, Callable[[ObjectState], int]]] = [
            ("size", old.sizes, lambda one: one.size),
            ("node_id", old.node_ids, lambda one: one.node_id),
            ("node_epoch", old.node_epochs, lambda one: one.node_epoch),
            ("created_ms", old.created_ms, lambda one: one.created_ms),
            ("unreferenced_ms", old.unreferenced_ms, lambda one: one.unreferenced_ms),
        ]
        for name, column, getter in getters:
            columns[name] = _longs(runs, column, getter)
            yield
        return columns

    def _kinds(self) -> Words:
        known = {word: code for code, word in enumerate(self._old.kinds.words)}
        codes = bytearray()
        for run in self._runs:
            if run.value is not None:
                codes.append(known.setdefault(run.value.kind, len(known)))
            else:
                codes += self._old.kinds.codes[run.first : run.end]
        return Words(bytes(codes), tuple(known))

    def references(self) -> Generator[None, None, Columns]:
        rows, streams = array("q"), array("q")
        at = 0
        for run in self._runs:
            if run.value is not None:
                ids = sorted(run.value.stream_ids)
                rows.extend([at] * len(ids))
                streams.extend(ids)
                at += 1
                continue
            old = self._old.references
            first, end = rows_between(old.objects, run.first, run.end - 1)
            for start in range(first, end, _STEP):
                stop = min(start + _STEP, end)
                rows.extend(self.moved(old.objects.values[start:stop]))
                streams.frombytes(old.stream_ids.plain(start, stop))
                yield
            at += run.end - run.first
        return {"object": Longs(memoryview(rows)), "stream_id": Longs(memoryview(streams))}


class _Streams:
    """The streams of a new checkpoint."""

    def __init__(self, state: MetadataImage, objects: _Objects) -> None:
        rows, old_objects = state.streams.rows, object_rows({})
        self._old = rows if isinstance(rows, StreamRows) else stream_rows({}, old_objects)
        self._objects = objects
        changes = sorted(state.streams.changes.items(), key=lambda change: change[0])
        self._runs = _runs(len(self._old), changes, self._old.place, self._old.key)

    def table(self) -> Generator[None, None, Columns]:
        old, runs = self._old, self._runs
        topic_ids = [
            text(run.value.topic_id)
            if run.value is not None
            else old.topic_ids.plain(run.first, run.end)
            for run in runs
        ]
        flags = [
            bytes([run.value.is_open])
            if run.value is not None
            else old.is_open.values[run.first : run.end]
            for run in runs
        ]
        yield
        columns: dict[str, Any] = {"is_open": Flags(b"".join(flags))}
        columns["topic_id"] = yield from Texts.reading(b"".join(topic_ids))
        getters: list[tuple[str, Longs, Callable[[StreamState], int]]] = [
            ("stream_id", old.stream_ids, lambda one: one.stream_id),
            ("partition", old.partitions, lambda one: one.partition),
            ("stream_epoch", old.stream_epochs, lambda one: one.epoch),
            ("node_id", old.node_ids, lambda one: one.node_id),
            ("start_offset", old.start_offsets, lambda one: one.start_offset),
            ("end_offset", old.end_offsets, lambda one: one.end_offset),
            ("assigned", old.assigned, lambda one: one.assigned),
            ("preferred", old.preferred, lambda one: one.preferred),
            ("state_from", old.state_from, lambda one: one.state_from),
        ]
        for name, column, getter in getters:
            columns[name] = _longs(runs, column, getter)
            yield
        return columns

    def epochs(self) -> Generator[None, None, Columns]:
        ids, epochs, starts = array("q"), array("q"), array("q")
        for number, run in enumerate(self._runs):
            if number % 1024 == 0:
                yield
            if run.value is not None:
                ids.extend([run.value.stream_id] * len(run.value.epochs))
                epochs.extend(epoch for epoch, _ in run.value.epochs)
                starts.extend(start for _, start in run.value.epochs)
                continue
            old = self._old.epochs
            first, end = rows_between(
                old.stream_ids, self._old.key(run.first), self._old.key(run.end - 1)
            )
            ids.frombytes(old.stream_ids.plain(first, end))
            epochs.frombytes(old.epochs.plain(first, end))
            starts.frombytes(old.start_offsets.plain(first, end))
        return {
            "stream_id": Longs(memoryview(ids)),
            "stream_epoch": Longs(memoryview(epochs)),
            "start_offset": Longs(memoryview(starts)),
        }

    def extents(
        self,
        columns: Callable[[StreamRows], ExtentColumns],
        extents: Callable[[StreamState], Extents],
    ) -> Generator[None, None, Columns]:
        """Return the table of one kind of extents: how to get at the old ones, and the new."""
        gathered, old = _Extents(self._objects), columns(self._old)
        for run in self._runs:
            if run.value is None:
                first, end = rows_between(
                    old.stream_ids, self._old.key(run.first), self._old.key(run.end - 1)
                )
                yield from gathered.copy(old, first, end)
                continue
            for segment in extents(run.value).segments:
                if isinstance(segment, ExtentRows):
                    yield from gathered.copy(segment.columns, segment.first, segment.end)
                else:
                    gathered.add(run.value.stream_id, segment.values)
            yield
        return gathered.columns()


class _Extents:
    """Gathers the extents of a new checkpoint."""

    def __init__(self, objects: _Objects) -> None:
        self._objects = objects
        self._ids = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self._rows = array("q")
        self._times = array("q")
        self._sizes = array("q")

    def copy(self, old: ExtentColumns, first: int, end: int) -> Steps:
        for start in range(first, end, _STEP):
            stop = min(start + _STEP, end)
            self._ids.frombytes(old.stream_ids.plain(start, stop))
            self._starts.frombytes(old.start_offsets.plain(start, stop))
            self._ends.frombytes(old.end_offsets.plain(start, stop))
            self._rows.extend(self._objects.moved(old.objects.values[start:stop]))
            self._times.frombytes(old.max_timestamps.plain(start, stop))
            self._sizes.frombytes(old.sizes.plain(start, stop))
            yield

    def add(self, stream_id: int, values: tuple[Extent, ...]) -> None:
        self._ids.extend([stream_id] * len(values))
        self._starts.extend(extent.start_offset for extent in values)
        self._ends.extend(extent.end_offset for extent in values)
        self._rows.extend(self._objects.row(extent.object_key) for extent in values)
        self._times.extend(extent.max_timestamp for extent in values)
        self._sizes.extend(extent.size for extent in values)

    def columns(self) -> Columns:
        return {
            "stream_id": Longs(memoryview(self._ids)),
            "start_offset": Longs(memoryview(self._starts)),
            "end_offset": Longs(memoryview(self._ends)),
            "object": Longs(memoryview(self._rows)),
            "max_timestamp": Longs(memoryview(self._times)),
            "size": Longs(memoryview(self._sizes)),
        }


@cache
def _known_columns() -> Mapping[str, frozenset[str]]:
    """Return the columns of each table, as this release writes them at its newest level."""
    newest = MetadataImage(features=Map({METADATA_VERSION: NEWEST_LEVEL}))
    steps = tables_of(newest)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Checkpoint = end.value
            return {table: frozenset(columns) for table, columns in found.tables.items()}


def state_of(key: str, checkpoint: Checkpoint) -> Generator[None, None, MetadataImage]:
    """Return the state that a checkpoint holds. Raises, naming it by `key`, CorruptObject when its
    tables are not those of a state, UnsupportedFormat when there are more than this release knows.
    """
    tables = checkpoint.tables
    known = _known_columns()
    for table, columns in tables.items():
        if unknown := columns.keys() - known.get(table, frozenset()):
            raise unknown_here(key, f"a column {table}.{min(unknown)}")
    try:
        state = catalog_state(tables)
        yield
        objects = object_rows(tables)
        unreferenced: dict[str, int] = {}
        tails: dict[str, int] = {}
        has_tails = TAIL in objects.kinds.words
        for row, since in enumerate(objects.unreferenced_ms.values):
            if since >= 0:
                unreferenced[objects.keys[row]] = since
            elif has_tails and objects.kinds[row] == TAIL:
                tails[objects.keys[row]] = objects.node_ids[row]
            if row % _STEP == 0:
                yield
        streams = stream_rows(tables, objects)
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
        raise CorruptObject(key, 0, f"its tables hold no state: {error!r}") from error
    if state.next_entry != checkpoint.number:
        raise CorruptObject(key, 0, f"it holds entry {state.next_entry}, not {checkpoint.number}")
    return replace(
        state,
        objects=Table(objects),
        streams=Table(streams),
        unreferenced=Map(unreferenced),
        tails=Map(tails),
    )


_json = msgspec.json.encode
_NO_LOSS = LostLog(log_id="", epoch=-1, time_ms=0, streams=0)


class _Credential(msgspec.Struct, frozen=True, kw_only=True):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def catalog_tables(state: MetadataImage) -> dict[str, Columns]:
    """Return the tables of what is small in a state."""
    return {
        "cluster": _cluster(state),
        "nodes": _nodes(state),
        "topics": _topics(state),
        "configs": _configs(state),
        "quotas": _quotas(state),
        "acls": {
            "document": Texts.of(sorted(_json(acl, order="sorted").decode() for acl in state.acls))
        },
        "credentials": _credentials(state),
        "delegation_tokens": _delegation_tokens(state),
        "writers": _writers(state),
        "tables": _tables(state),
        "table_offsets": _table_offsets(state),
        "features": {
            "name": Texts.of(sorted(state.features)),
            "level": Longs(level for _, level in sorted(state.features.items())),
        },
    }


def _cluster(state: MetadataImage) -> Columns:
    return {
        "cluster_id": Texts.of([state.cluster_id]),
        "next_entry": Longs([state.next_entry]),
        "next_stream_id": Longs([state.next_stream_id]),
        "next_producer_id": Longs([state.next_producer_id]),
        "forgotten_entry": Longs([state.forgotten_entry]),
        "node_id": Longs([state.controller.node_id]),
        "node_epoch": Longs([state.controller.node_epoch]),
        "term": Longs([state.controller.term]),
        "features_epoch": Longs([state.features_epoch]),
        "node_secret": Texts.of([state.node_secret]),
    }


def _nodes(state: MetadataImage) -> Columns:
    nodes = [state.nodes[node_id] for node_id in sorted(state.nodes)]
    retired = sorted(state.retired_nodes.items())
    blank = [0] * len(retired)
    lost = [node.lost_log or _NO_LOSS for node in nodes]
    return {
        "node_id": Longs([*(node.node_id for node in nodes), *(node for node, _ in retired)]),
        "node_epoch": Longs([*(node.epoch for node in nodes), *(epoch for _, epoch in retired)]),
        "incarnation": Texts.of([*(node.incarnation for node in nodes), *("" for _ in retired)]),
        "host": Texts.of([*(node.host for node in nodes), *("" for _ in retired)]),
        "port": Longs([*(node.port for node in nodes), *blank]),
        "rack": Texts.of([*(node.rack or "" for node in nodes), *("" for _ in retired)]),
        "is_fenced": Flags([*(node.is_fenced for node in nodes), *blank]),
        "is_retired": Flags([*(0 for _ in nodes), *(1 for _ in retired)]),
        "wal_epoch": Longs([*(node.wal_epoch for node in nodes), *blank]),
        "wal_floor": Longs([*(node.wal_floor for node in nodes), *blank]),
        "host_id": Texts.of([*(node.host_id for node in nodes), *("" for _ in retired)]),
        "wal": Texts.of([*(node.wal for node in nodes), *("" for _ in retired)]),
        "process": Texts.of([*(node.process for node in nodes), *("" for _ in retired)]),
        "is_draining": Flags([*(node.is_draining for node in nodes), *blank]),
        "min_level": Longs([*(node.min_level for node in nodes), *blank]),
        "max_level": Longs([*(node.max_level for node in nodes), *blank]),
        "tables": Texts.of([*(node.tables for node in nodes), *("" for _ in retired)]),
        "endpoints": Texts.of([*(node.endpoints for node in nodes), *("" for _ in retired)]),
        "log_id": Texts.of([*(node.log.log_id for node in nodes), *("" for _ in retired)]),
        "log_epoch": Longs([*(node.log.epoch for node in nodes), *blank]),
        "log_position": Longs([*(node.log.position for node in nodes), *blank]),
        "lost_log_id": Texts.of([*(one.log_id for one in lost), *("" for _ in retired)]),
        "lost_log_epoch": Longs([*(one.epoch for one in lost), *blank]),
        "lost_log_ms": Longs([*(one.time_ms for one in lost), *blank]),
        "lost_log_streams": Longs([*(one.streams for one in lost), *blank]),
    }


def _topics(state: MetadataImage) -> Columns:
    topics = [state.topics[name] for name in sorted(state.topics)]
    return {
        "topic": Texts.of(topic.name for topic in topics),
        "topic_id": Texts.of(topic.topic_id for topic in topics),
        "partitions": Texts.of(_json(topic.partitions).decode() for topic in topics),
    }


_CLIENT_METRICS = "client metrics"
"""The kind of the owner of configs that subscribe to metrics of clients."""


def _configs(state: MetadataImage) -> Columns:
    rows = [
        ("topic", topic.topic_id, name, value)
        for topic in state.topics.values()
        for name, value in topic.configs.items()
    ]
    rows += [
        ("broker", str(node_id), name, value)
        for node_id, configs in state.broker_configs.items()
        for name, value in configs.items()
    ]
    rows += [
        ("group", group, name, value)
        for group, configs in state.group_configs.items()
        for name, value in configs.items()
    ]
    rows += [
        (_CLIENT_METRICS, subscription, name, value)
        for subscription, configs in state.client_metrics_configs.items()
        for name, value in configs.items()
    ]
    rows.sort()
    return {
        "kind": Words.of(row[0] for row in rows),
        "owner": Texts.of(row[1] for row in rows),
        "name": Texts.of(row[2] for row in rows),
        "value": Texts.of(row[3] for row in rows),
    }


def _quotas(state: MetadataImage) -> Columns:
    rows = sorted(
        (_json(entity).decode(), name, value)
        for entity, values in state.quotas.items()
        for name, value in values.items()
    )
    return {
        "owner": Texts.of(row[0] for row in rows),
        "name": Texts.of(row[1] for row in rows),
        "limit": Doubles(row[2] for row in rows),
    }


def _credentials(state: MetadataImage) -> Columns:
    rows = sorted(state.scram_credentials.items(), key=lambda item: item[0])
    return {
        "owner": Texts.of(user for (user, _), _ in rows),
        "name": Texts.of(mechanism for (_, mechanism), _ in rows),
        "document": Texts.of(_json(credential).decode() for _, credential in rows),
    }


def _delegation_tokens(state: MetadataImage) -> Columns:
    tokens = [token for _, token in sorted(state.delegation_tokens.items())]
    return {
        "name": Texts.of(token.token_id for token in tokens),
        "document": Texts.of(_json(token).decode() for token in tokens),
    }


def _writers(state: MetadataImage) -> Columns:
    rows = sorted(state.writers.items())
    return {
        "writer": Texts.of(writer for writer, _ in rows),
        "entry": Longs(last.entry for _, last in rows),
        "nonce": Texts.of(last.nonce for _, last in rows),
    }


def _tables(state: MetadataImage) -> Columns:
    rows = sorted(state.tables.items())
    return {
        "topic_id": Texts.of(topic_id for topic_id, _ in rows),
        "owner": Texts.of(table.holder for _, table in rows),
        "term": Longs(table.term for _, table in rows),
        "until_ms": Longs(table.until_ms for _, table in rows),
        "problem": Texts.of(table.problem for _, table in rows),
        "requester": Texts.of(table.requester for _, table in rows),
        "requested_until_ms": Longs(table.requested_until_ms for _, table in rows),
    }


def _table_offsets(state: MetadataImage) -> Columns:
    rows = [
        (topic_id, partition, offset)
        for topic_id, table in sorted(state.tables.items())
        for partition, offset in enumerate(table.offsets)
    ]
    return {
        "topic_id": Texts.of(row[0] for row in rows),
        "partition": Longs(row[1] for row in rows),
        "end_offset": Longs(row[2] for row in rows),
    }


class _Row(NamedTuple):
    """A row of a table, by name of column."""

    columns: Columns
    number: int

    def __getattr__(self, name: str) -> Any:
        return self.columns[name][self.number]

    def get(self, name: str, default: Any) -> Any:
        """Return the value of a column that older checkpoints do not have."""
        return self.columns[name][self.number] if name in self.columns else default


def _rows(tables: Mapping[str, Columns], name: str) -> list[_Row]:
    columns = tables.get(name, {})
    return [_Row(columns, number) for number in range(rows_of(columns))]


def catalog_state(tables: Mapping[str, Columns]) -> MetadataImage:
    """Return a state without streams and objects. Raises KeyError, msgspec.DecodeError."""
    (cluster,) = _rows(tables, "cluster")
    nodes = _rows(tables, "nodes")
    configs = _configs_of(tables)
    topics = [_topic(row, configs) for row in _rows(tables, "topics")]
    return MetadataImage(
        next_entry=cluster.next_entry,
        cluster_id=cluster.cluster_id,
        nodes=Map({row.node_id: _node(row) for row in nodes if not row.is_retired}),
        retired_nodes=Map({row.node_id: row.node_epoch for row in nodes if row.is_retired}),
        **topic_maps(topics),
        broker_configs=Map(
            {
                int(owner): Map(values)
                for (kind, owner), values in configs.items()
                if kind == "broker"
            }
        ),
        group_configs=Map(
            {owner: Map(values) for (kind, owner), values in configs.items() if kind == "group"}
        ),
        client_metrics_configs=Map(
            {
                owner: Map(values)
                for (kind, owner), values in configs.items()
                if kind == _CLIENT_METRICS
            }
        ),
        controller=ControllerState(
            node_id=cluster.node_id, node_epoch=cluster.node_epoch, term=cluster.term
        ),
        quotas=_quotas_of(tables),
        acls=Map(
            {
                msgspec.json.decode(row.document, type=AclBinding): True
                for row in _rows(tables, "acls")
            }
        ),
        scram_credentials=Map(
            {
                (row.owner, row.name): _credential(row.document)
                for row in _rows(tables, "credentials")
            }
        ),
        delegation_tokens=Map(
            {
                row.name: msgspec.json.decode(row.document, type=DelegationToken)
                for row in _rows(tables, "delegation_tokens")
            }
        ),
        next_stream_id=cluster.next_stream_id,
        next_producer_id=cluster.next_producer_id,
        writers=Map(
            {
                row.writer: WriterState(entry=row.entry, nonce=row.nonce)
                for row in _rows(tables, "writers")
            }
        ),
        forgotten_entry=cluster.forgotten_entry,
        tables=_tables_of(tables),
        features=Map({row.name: row.level for row in _rows(tables, "features")}),
        features_epoch=cluster.get("features_epoch", 0),
        node_secret=cluster.get("node_secret", ""),
    )


def _tables_of(tables: Mapping[str, Columns]) -> Map[str, TableState]:
    offsets: dict[str, list[int]] = {}
    for row in _rows(tables, "table_offsets"):
        offsets.setdefault(row.topic_id, []).append(row.end_offset)
    return Map(
        {
            row.topic_id: TableState(
                holder=row.owner,
                term=row.term,
                until_ms=row.until_ms,
                offsets=tuple(offsets.get(row.topic_id, ())),
                problem=row.get("problem", ""),
                requester=row.get("requester", ""),
                requested_until_ms=row.get("requested_until_ms", 0),
            )
            for row in _rows(tables, "tables")
        }
    )


def _lost_log(row: _Row) -> LostLog | None:
    log_id = row.get("lost_log_id", "")
    if not log_id:
        return None
    return LostLog(
        log_id=log_id,
        epoch=row.lost_log_epoch,
        time_ms=row.lost_log_ms,
        streams=row.lost_log_streams,
    )


def _node(row: _Row) -> NodeState:
    return NodeState(
        node_id=row.node_id,
        epoch=row.node_epoch,
        incarnation=row.incarnation,
        host=row.host,
        port=row.port,
        rack=row.rack or None,
        is_fenced=row.is_fenced,
        wal_epoch=row.wal_epoch,
        wal_floor=row.wal_floor,
        host_id=row.get("host_id", ""),
        wal=row.get("wal", ""),
        process=row.get("process", ""),
        is_draining=row.get("is_draining", False),
        min_level=row.get("min_level", 0),
        max_level=row.get("max_level", 0),
        tables=row.get("tables", ""),
        endpoints=row.get("endpoints", ""),
        log=KnownLog(
            log_id=row.get("log_id", ""),
            epoch=row.get("log_epoch", -1),
            position=row.get("log_position", -1),
        ),
        lost_log=_lost_log(row),
    )


def _topic(row: _Row, configs: Mapping[tuple[str, str], Mapping[str, str]]) -> TopicState:
    return TopicState(
        name=row.topic,
        topic_id=row.topic_id,
        partitions=msgspec.json.decode(row.partitions, type=tuple[int, ...]),
        configs=Map(configs.get(("topic", row.topic_id), {})),
    )


def _configs_of(tables: Mapping[str, Columns]) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in _rows(tables, "configs"):
        found.setdefault((row.kind, row.owner), {})[row.name] = row.value
    return found


def _quotas_of(tables: Mapping[str, Columns]) -> Map[QuotaEntity, Map[str, float]]:
    found: dict[QuotaEntity, dict[str, float]] = {}
    for row in _rows(tables, "quotas"):
        entity = msgspec.json.decode(row.owner, type=QuotaEntity)
        found.setdefault(entity, {})[row.name] = row.limit
    return Map({entity: Map(values) for entity, values in found.items()})


def _credential(document: str) -> ScramCredential:
    known = msgspec.json.decode(document, type=_Credential)
    return ScramCredential(
        salt=known.salt,
        stored_key=known.stored_key,
        server_key=known.server_key,
        iterations=known.iterations,
    )
