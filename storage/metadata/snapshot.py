"""A state as the tables of a checkpoint, and back.

What has not changed since the checkpoint a state began with is copied from column to column, in
runs; so writing a checkpoint of a million objects of which a thousand changed costs little more
than the copy. Both ways go step by step: whoever drives them gives way to others in between.
"""

from array import array
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import msgspec
from immutables import Map

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.checkpoint import Checkpoint, Columns
from lakehead.storage.format.columns import Flags, Longs, Texts, Words, text
from lakehead.storage.format.feature_level import METADATA_VERSION, NEWEST_LEVEL, unknown_here
from lakehead.storage.metadata.additions import columns_at
from lakehead.storage.metadata.catalog_tables import catalog_state, catalog_tables
from lakehead.storage.metadata.extents import Extent, ExtentColumns, ExtentRows, Extents
from lakehead.storage.metadata.rows import (
    ObjectRows,
    StreamRows,
    object_rows,
    rows_between,
    stream_rows,
)
from lakehead.storage.metadata.state import ClusterState, ObjectState, StreamState
from lakehead.storage.metadata.table import Table

Steps = Generator[None, None, None]
_STEP = 8 * 1024


class _Run(NamedTuple):
    """Rows [first, end) of the old checkpoint, or, where `value` is set, one new row."""

    first: int
    end: int
    value: Any = None


def tables_of(state: ClusterState) -> Generator[None, None, Checkpoint]:
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

    def __init__(self, state: ClusterState) -> None:
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

    def __init__(self, state: ClusterState, objects: _Objects) -> None:
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
    newest = ClusterState(features=Map({METADATA_VERSION: NEWEST_LEVEL}))
    steps = tables_of(newest)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Checkpoint = end.value
            return {table: frozenset(columns) for table, columns in found.tables.items()}


def state_of(key: str, checkpoint: Checkpoint) -> Generator[None, None, ClusterState]:
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
        for row, since in enumerate(objects.unreferenced_ms.values):
            if since >= 0:
                unreferenced[objects.keys[row]] = since
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
    )
