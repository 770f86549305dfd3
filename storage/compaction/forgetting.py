"""Forget keys: find the records of keys in objects, and put objects without them in their place.

Offsets stay, as in log compaction: a batch of which records go keeps its base and last offset, its
producer fields, its base timestamp and its codec; the other records keep their bytes. A batch of
which every record goes stays without records, so that no gap is made, and its producer and its
transaction go on. Control batches have no keys of clients, and stay. A batch that cannot be read
stays too, and is counted: it is not known what it holds.

An object is rewritten for all of its streams, since the old one is to be deleted. One entry of the
metadata log replaces it; it is refused if a stream does not refer to the object as it did when that
was read. The job may be killed at any time, and objects that it wrote and did not commit become
garbage (`JobName`).

The keys may be known by their keyed hash alone (`HashedKeys`), for a check by a certificate.
"""

import asyncio
import hashlib
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from lakehead.storage.certificates import StoredObject, key_hash
from lakehead.storage.clock import Clock
from lakehead.storage.compaction import kernels
from lakehead.storage.compaction import record_kernels as records
from lakehead.storage.compaction.batch_merging import Span
from lakehead.storage.compaction.batches import (
    Arena,
    BatchRows,
    Scratch,
    stored_items,
    without_records,
)
from lakehead.storage.compaction.log_cleaner import Changed, inflated, rewritten
from lakehead.storage.compaction.object_compaction import (
    MergePart,
    Piece,
    Runs,
    SourceObject,
    Sources,
    gathered_parts,
    neighbours,
    written_objects,
)
from lakehead.storage.compaction.offset_map import SLOT_SIZE, OffsetMap, Rows
from lakehead.storage.compaction.rewrite import Job, put_object
from lakehead.storage.errors import (
    CorruptObject,
    EntryRejected,
    FeatureNotEnabled,
    LakeheadError,
)
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.record_batch import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from lakehead.storage.format.stream_object import ObjectIndex, parse_index
from lakehead.storage.format.varint import read_varint
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import COMPACTED, CommittedObject, Record, ReplaceObjects
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import Buffer, ObjectStore

Ends = Mapping[int, int]
"""By stream: the offset below which records of the keys are to go."""

_SEARCHED_KEYS = 8
"""Up to so many keys are searched for in the bytes of batches before records are parsed."""
_SPAN_BYTES, _SPAN_OFFSETS = 256 * 1024, 1 << 30
_HASHES_KEPT = 1 << 20


class Superseded(LakeheadError):
    """The object is not what it was any more: merged, compacted, trimmed or deleted meanwhile.
    Nothing was changed; look at the stream again.
    """


class Keys(Protocol):
    """Keys whose records are looked for."""

    def may_occur(self, data: Buffer) -> bool:
        """Return false if none of the keys occurs in these bytes, which are not compressed."""

    def places(self, data: Buffer) -> Iterable[int] | None:
        """Return where keys begin in bytes; None: only records show it."""

    def rows(self, header: BatchHeader, data: Buffer) -> Rows:
        """Return a row for each record of a batch, good until the next call. Raises ValueError."""

    def hits(self, rows: Rows, data: Buffer) -> Any:
        """Return which rows have one of the keys, as an array of truth values."""


class _Parser:
    def __init__(self, rng: random.Random) -> None:
        self._parser = OffsetMap(SLOT_SIZE, rng, keys_max=1)

    def rows(self, header: BatchHeader, data: Buffer) -> Rows:
        """See `Keys.rows`."""
        if header.magic != MAGIC:
            raise ValueError(f"a batch of magic {header.magic}")
        return self._parser.rows(header, data)


class GivenKeys(_Parser):
    """Keys that are known: an empty one too."""

    def __init__(self, keys: Collection[bytes], rng: random.Random) -> None:
        super().__init__(rng)
        digests = np.array([self._parser.digest(key) for key in keys], np.int64)
        self._digests = digests.reshape(len(keys), 2)
        is_searched = len(keys) <= _SEARCHED_KEYS and b"" not in keys
        self._searched = tuple(keys) if is_searched else ()

    def may_occur(self, data: Buffer) -> bool:
        """See `Keys.may_occur`."""
        if not self._searched:
            return True
        body = bytes(data)
        return any(key in body for key in self._searched)

    def places(self, data: Buffer) -> Iterable[int] | None:
        """See `Keys.places`."""
        return _places(self._searched, bytes(data)) if self._searched else None

    def hits(self, rows: Rows, data: Buffer) -> Any:  # noqa: ARG002 - digests are in the rows
        """See `Keys.hits`."""
        found = np.zeros(len(rows), np.bool_)
        near = np.flatnonzero(np.isin(rows[:, 2], self._digests[:, 0]) & _has_key(rows))
        for row in near.tolist():
            found[row] = bool((rows[row, 2:4] == self._digests).all(axis=1).any())
        return found


def _places(keys: Iterable[bytes], data: bytes) -> Iterator[int]:
    """Yield each place where a key begins, also where two overlap."""
    for key in keys:
        at = data.find(key)
        while at >= 0:
            yield at
            at = data.find(key, at + 1)


class HashedKeys(_Parser):
    """Keys that are known by their keyed hash alone."""

    def __init__(self, salt: bytes, hashes: Collection[str], rng: random.Random) -> None:
        super().__init__(rng)
        self._salt = salt
        self._hashes = frozenset(hashes)
        self._known: dict[tuple[int, int], bool] = {}

    def may_occur(self, data: Buffer) -> bool:  # noqa: ARG002
        """See `Keys.may_occur`."""
        return True

    def places(self, data: Buffer) -> Iterable[int] | None:  # noqa: ARG002
        """See `Keys.places`."""
        return None

    def hits(self, rows: Rows, data: Buffer) -> Any:
        """See `Keys.hits`: each key is hashed once."""
        found, view = np.zeros(len(rows), np.bool_), memoryview(data)
        if len(self._known) > _HASHES_KEPT:
            self._known.clear()
        with_key = np.flatnonzero(_has_key(rows))
        for row, low, high, body in zip(
            with_key.tolist(), *(rows[with_key, n].tolist() for n in (2, 3, 6)), strict=True
        ):
            hit = self._known.get((low, high))
            if hit is None:
                hit = key_hash(self._salt, _key_at(view, body)) in self._hashes
                self._known[low, high] = hit
            found[row] = hit
        return found


def _has_key(rows: Rows) -> Any:
    return rows[:, records.FLAGS] & records.HAS_KEY != 0


def _key_at(data: memoryview, body: int) -> bytes:
    """Return the key of a parsed record, whose offset delta is at `body`."""
    _, position = read_varint(data, body)
    size, position = read_varint(data, position)
    return bytes(data[position : position + size])


# ------------------------------------------------------------------------------------------ finding


class FoundBatch(NamedTuple):
    """A batch that has records of the keys; or, without `rows`, one that cannot be read. `row` is
    its row in the item; `hits` are the records that are to go.
    """

    row: int
    header: BatchHeader
    payload: memoryview
    data: Buffer
    rows: Rows | None
    hits: Any


def found_batches(batches: BatchRows, keys: Keys, end_offset: int) -> Iterator[FoundBatch]:
    """Yield the batches of an item that have records of the keys below an offset, or that cannot be
    read.
    """
    for row in _candidates(batches, keys):
        stored = batches.stored(row)
        header = read_header(stored.payload)
        if header.base_offset >= end_offset:
            return
        try:
            data = inflated(header, stored.payload)
            if header.codec and not keys.may_occur(data):
                continue
            rows = keys.rows(header, data)
            hits = keys.hits(rows, data) & (rows[:, records.OFFSET] < end_offset)
        except (ValueError, IndexError):
            yield FoundBatch(row, header, stored.payload, b"", None, None)
            continue
        if hits.any():
            yield FoundBatch(row, header, stored.payload, data, rows, hits)


def _candidates(batches: BatchRows, keys: Keys) -> list[int]:
    """Return the rows of batches whose records have to be looked at."""
    table = batches.table[: batches.count]
    has_records = (table[:, kernels.ATTRIBUTES] & CONTROL == 0) & (table[:, kernels.COUNT] != 0)
    places = keys.places(batches.data)
    if places is not None:
        at = np.fromiter(places, np.int64)
        occurs = np.zeros(batches.count, np.bool_)
        row = np.searchsorted(table[:, kernels.START], at, side="right") - 1
        occurs[row[row >= 0]] = True
        has_records &= occurs | (table[:, kernels.ATTRIBUTES] & CODEC_MASK != 0)
    found: list[int] = np.flatnonzero(has_records).tolist()
    return found


@dataclass(slots=True)
class Findings:
    """Records of the keys that objects hold. `offsets` are those of the batches that hold some, by
    stream: [first, end). `unreadable` are batches that cannot be read, in the same form.
    """

    batches: int = 0
    records: int = 0
    bytes_read: int = 0
    offsets: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    unreadable: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, stream_id: int, found: FoundBatch) -> None:
        """Count a batch."""
        span = (found.header.base_offset, found.header.end_offset)
        if found.rows is None:
            self.unreadable.setdefault(stream_id, []).append(span)
            return
        self.batches += 1
        self.records += int(found.hits.sum())
        self.offsets.setdefault(stream_id, []).append(span)


async def find_in_object(
    store: ObjectStore, index: ObjectIndex, keys: Keys, ends: Ends
) -> Findings:
    """Look for records of the keys in one object, below the end of each stream. Raises
    ObjectNotFound, StoreUnavailable, CorruptObject.
    """
    findings, scratch, batches = Findings(), Scratch(), BatchRows()
    for stream_id in sorted(ends.keys() & index.streams.keys()):
        async for data, position in _items(store, index, stream_id, ends[stream_id], scratch):
            findings.bytes_read += len(data)
            try:
                batches.read(stream_id, data)
            except ValueError as error:
                raise CorruptObject(index.key, position, str(error)) from error
            for found in found_batches(batches, keys, ends[stream_id]):
                findings.add(stream_id, found)
            await asyncio.sleep(0)
    return findings


async def _items(
    store: ObjectStore, index: ObjectIndex, stream_id: int, end_offset: int, scratch: Scratch
) -> AsyncIterator[tuple[memoryview, int]]:
    everything = Extent(
        start_offset=-1, end_offset=end_offset, object_key=index.key, max_timestamp=0, size=0
    )
    async for item, data in stored_items(store, index, stream_id, everything, scratch):
        yield data, item.position


# ---------------------------------------------------------------------------------------- rewriting


class Removal:
    """The batches of one stream without the records of keys (`BatchTransform`)."""

    def __init__(
        self, stream_id: int, keys: Keys, end_offset: int, findings: Findings, arena: Arena
    ) -> None:
        self.end_offset = 0
        self._stream_id = stream_id
        self._keys = keys
        self._until = end_offset
        self._findings = findings
        self._arena = arena
        self._batches = BatchRows()
        self._spans: list[Span] = []
        self._started = self._ended = -1
        """The last span's place in its item, if what follows there may join it."""

    def add(self, data: memoryview) -> None:
        """See `BatchTransform.add`."""
        batches = self._batches
        batches.read(self._stream_id, data)
        if not batches.count:
            return
        if int(batches.table[0, kernels.BASE]) < self.end_offset:
            raise ValueError(f"{kernels.FAULTS[7]}: byte 0")
        changed: dict[int, tuple[int, memoryview]] = {}
        for found in found_batches(batches, self._keys, self._until) if self._until > 0 else ():
            self._findings.add(self._stream_id, found)
            if found.rows is not None:
                changed[found.row] = without_hits(found, self._arena)
        self._ended = -1
        for row in batches.rows:
            self._add(row, changed.get(row))
        self.end_offset = batches.end_offset(batches.count - 1)

    def finish(self) -> list[Span]:
        """See `BatchTransform.finish`."""
        return self._spans

    def _add(self, row: int, changed: tuple[int, memoryview] | None) -> None:
        batches = self._batches
        start, end, epoch, base, after, newest, count = batches.table[row, _PLACE].tolist()
        newest = newest if count else NO_TIMESTAMP
        data = batches.data[start:end]
        if changed is not None:
            newest, batch = changed
            head = bytearray(data[: kernels.RECORD_HEADER])
            head[-4:] = len(batch).to_bytes(4, "big")
            data = memoryview(head + batch)
        elif self._spans and self._continues(start, epoch, after):
            last = self._spans[-1]
            self._spans[-1] = last._replace(
                epoch=epoch,
                end_offset=after,
                batches=last.batches + 1,
                max_timestamp=max(last.max_timestamp, newest),
                data=batches.data[self._started : end],
            )
            self._ended = end
            return
        self._started = start
        self._ended = end if changed is None else -1
        self._spans.append(Span(epoch, base, after, 1, newest, data))

    def _continues(self, start: int, epoch: int, after: int) -> bool:
        last = self._spans[-1]
        return (
            start == self._ended
            and epoch == last.epoch
            and len(last.data) < _SPAN_BYTES
            and after - last.start_offset <= _SPAN_OFFSETS
        )


_PLACE = [
    kernels.START,
    kernels.END,
    kernels.EPOCH,
    kernels.BASE,
    kernels.NEXT,
    kernels.MAX_TIME,
    kernels.COUNT,
]


def without_hits(found: FoundBatch, arena: Arena) -> tuple[int, memoryview]:
    """Return a found batch without the records that are to go, and its newest timestamp (-1: no
    record is left).
    """
    header, rows = found.header, found.rows
    assert rows is not None, "a batch that can be read"
    stays = ~found.hits
    kept = int(stays.sum())
    if not kept:
        return NO_TIMESTAMP, memoryview(without_records(header))
    rows[:, records.FLAGS] &= ~records.STAYS
    rows[stays, records.FLAGS] |= records.STAYS
    newest = int(rows[stays, 4].max())
    if header.attributes & LOG_APPEND_TIME:
        newest = header.max_timestamp
    size = int((rows[stays, 7] - rows[stays, 5]).sum())
    changed = Changed(kept, newest, None, is_timed=False)
    return newest, rewritten(header, changed, found.data, rows, size, arena)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenObject:
    """An object that was replaced: its name, size and SHA-256 (of its bytes as they are without
    encryption at rest), and those of the objects in its place.
    """

    before: StoredObject
    after: tuple[StoredObject, ...]
    findings: Findings


BeforeCommit = Callable[[RewrittenObject], Awaitable[None]]
"""Called with what is about to be committed, so that it is noted durably before that."""


@dataclass(slots=True, kw_only=True)
class ObjectRewrite:
    """The rewriting of one object for the request with the number `certificate`."""

    store: ObjectStore
    metadata: MetadataLog
    clock: Clock
    rng: random.Random
    key: str
    keys: Keys
    ends: Ends
    certificate: int

    async def run(self, before_commit: BeforeCommit) -> RewrittenObject | None:
        """Replace the object if it has records of the keys, and return what was done; None: it has
        none. Raises Superseded, ObjectNotFound, StoreUnavailable, CorruptObject,
        UnsupportedFormat, OutcomeUnknown, FeatureNotEnabled.
        """
        state = await self.metadata.refresh()
        runs = _runs(state, self.key)
        if not runs:
            raise Superseded(f"no stream has records in {self.key} any more")
        body = memoryview(await self.store.get(self.key))
        index = parse_index(self.key, body, len(body))
        findings, arena = Findings(), Arena()
        parts = await self._parts(
            state, runs, SourceObject(index, (Piece(0, body),)), findings, arena
        )
        if not findings.records and not await self._has_trimmed(index, runs):
            return None
        known = state.objects[self.key]
        made = written_objects(
            parts,
            self._job(state),
            created_ms=known.created_ms,
            is_compacted=known.kind == COMPACTED,
        )
        after = []
        for committed, written in made:
            await put_object(self.store, committed.key, written, self.rng)
            digest = hashlib.sha256()
            for piece in written.pieces:
                digest.update(piece)
            after.append(
                StoredObject(key=committed.key, size=written.size, sha256=digest.hexdigest())
            )
        failpoint("forget_objects_written")
        before = StoredObject(key=self.key, size=len(body), sha256=hashlib.sha256(body).hexdigest())
        result = RewrittenObject(before=before, after=tuple(after), findings=findings)
        await before_commit(result)
        failpoint("forget_step_noted")
        await self._commit(runs, [committed for committed, _ in made])
        failpoint("forget_committed")
        return result

    async def _parts(
        self,
        state: MetadataImage,
        runs: Runs,
        source: SourceObject,
        findings: Findings,
        arena: Arena,
    ) -> list[MergePart]:
        parts: list[MergePart] = []
        for stream_id, groups in sorted(runs.items()):
            end_offset = self.ends.get(stream_id, -1)
            for group in groups:
                wanted = {self.key: [stream_id] * len(group)}
                parts += gathered_parts(
                    stream_id,
                    group,
                    Sources({self.key: source}, wanted),
                    state.stream(stream_id).state_from,
                    lambda stream, end=end_offset: Removal(  # type: ignore[misc]
                        stream, self.keys, end, findings, arena
                    ),
                )
                await asyncio.sleep(0)
        return parts

    async def _has_trimmed(self, index: ObjectIndex, runs: Runs) -> bool:
        """Return true if the object has records of the keys that are trimmed: no stream reads them
        there, and the new object does not have them.
        """
        ends = {one: end for one, end in self.ends.items() if one not in runs}
        found = await find_in_object(self.store, index, self.keys, ends)
        return found.records > 0

    def _job(self, state: MetadataImage) -> Job:
        return Job(
            cluster_id=state.cluster_id,
            job_id=self.metadata.writer_id,
            entry=state.next_entry,
            now_ms=self.clock.now_ms(),
            rng=self.rng,
        )

    async def _commit(self, runs: Runs, objects: list[CommittedObject]) -> None:
        replacement = ReplaceObjects(
            sources=(self.key,),
            objects=tuple(objects),
            streams=tuple(sorted(runs)),
            forgets=self.certificate,
        )

        def plan(state: MetadataImage) -> list[Record]:
            if _runs(state, self.key) != runs:
                raise Superseded(f"{self.key} was replaced or trimmed meanwhile")
            return [replacement]

        try:
            await self.metadata.commit_with(plan)
        except (Superseded, EntryRejected) as error:
            await self.store.delete([one.key for one in objects])  # no entry has ever named them
            if isinstance(error, Superseded | FeatureNotEnabled):
                raise
            raise Superseded(f"{self.key}: {error}") from error


def _runs(state: MetadataImage, key: str) -> Runs:
    """Return which extents lie in an object now, by stream."""
    known = state.objects.get(key)
    found: Runs = {}
    for stream_id in () if known is None else known.stream_ids:
        stream = state.streams.get(stream_id)
        groups = [] if stream is None else neighbours(stream, frozenset((key,)))
        if groups:
            found[stream_id] = groups
    return found
