"""Compaction under transactions: what consumers know before and after it, and what stays of
producers, whatever they did.

A consumer here does what Kafka's does: it is named the aborted transactions of what it fetched, and
leaves out what a named producer wrote until it meets the marker of an abort.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.broker.api.fetch import _aborted
from lakehead.broker.partition.partition import Partition
from lakehead.storage.format.control_batch import Marker, encode_marker, read_marker
from lakehead.storage.format.record_batch import BatchHeader, patch, read_header
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.format.transaction_index import TransactionIndex
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.repetitions import examples
from tests.unit.test_compaction_job import job, opened, upload

DAY_MS = 86_400_000
RETENTION_MS = 100
NOBODY = -1

Value = tuple[int, bytes, bytes | None]
"""Offset, key and value of a record."""

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(NOBODY, 2),
            st.lists(
                st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"v", None])),
                min_size=1,
                max_size=3,
            ),
        ),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("fence"), st.integers(0, 2), st.none()),
        st.tuples(
            st.just("compact"),
            st.sampled_from([0, 1, RETENTION_MS, DAY_MS + 1]),
            st.sampled_from([1, 1 << 20]),
        ),
    ),
    min_size=4,
    max_size=40,
)


@dataclass(slots=True)
class World:
    """A partition, who wrote to it, and what counts of that."""

    engine: StreamEngine
    stream: Stream
    now_ms: int = 1_700_000_000_000
    index: TransactionIndex = field(default_factory=TransactionIndex)
    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Value]] = field(default_factory=dict)
    counted: dict[int, Value] = field(default_factory=dict)
    """What is committed, or was of no transaction, by offset."""
    markers: dict[int, int] = field(default_factory=dict)
    """Where the transaction of each record ended, by its offset."""
    heard: dict[int, int] = field(default_factory=dict)
    """When each producer was heard of last."""

    def send(self, producer_id: int, pairs: list[tuple[bytes, bytes | None]]) -> None:
        base = self.stream.next_offset
        written = [(base + n, key, value) for n, (key, value) in enumerate(pairs)]
        is_transactional = producer_id != NOBODY
        records = [
            TestRecord(offset=n, timestamp=self.now_ms, key=key, value=value)
            for n, (key, value) in enumerate(pairs)
        ]
        batch = bytearray(
            encode_batch(records, producer_id=producer_id, transactional=is_transactional)
        )
        if is_transactional:
            batch[51:53] = self.epochs.setdefault(producer_id, 0).to_bytes(2, "big")
        self._append(batch)
        if not is_transactional:
            self.counted.update({one[0]: one for one in written})
            return
        if producer_id not in self.open:
            self.open[producer_id] = []
            self.index.begin(producer_id, base)
        self.open[producer_id] += written
        self.heard[producer_id] = self.now_ms

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        written = self.open.pop(producer_id, None)
        epoch = self.epochs.setdefault(producer_id, 0)
        offset = self.stream.next_offset
        self._append(
            encode_marker(
                Marker(is_commit, 0),
                producer_id=producer_id,
                producer_epoch=epoch,
                timestamp_ms=self.now_ms,
            )
        )
        self.index.end(producer_id, offset, is_commit=is_commit)
        self.heard[producer_id] = self.now_ms
        self.markers.update({one[0]: offset for one in written or ()})
        if is_commit:
            self.counted.update({one[0]: one for one in written or ()})

    def fence(self, producer_id: int) -> None:
        """Abort under the next epoch."""
        self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
        self.end(producer_id, is_commit=False)

    def _append(self, batch: bytearray) -> None:
        patch(batch, 0, self.stream.next_offset, self.stream.epoch)
        header = read_header(batch)
        self.stream.append(
            memoryview(batch),
            count=header.last_offset_delta + 1,
            max_timestamp=header.max_timestamp,
        )

    async def compact(self, later_ms: int, group_size: int) -> None:
        self.now_ms += later_ms
        await upload(self.engine)
        await job(self.engine, self.stream, now_ms=self.now_ms, group_size=group_size).run()

    async def consumed(self, most: int, *, is_committed: bool) -> list[Value]:
        """Return what a consumer reads that fetches so many bytes at once."""
        leader = cast(Partition, SimpleNamespace(aborted_among=self.index.aborted_among))
        end = self.stream.confirmed_offset
        if is_committed:
            end = self.index.last_stable_offset(end)
        found: list[Value] = []
        at = self.stream.start_offset
        while at < end:
            batches = [b for b in await self.stream.fetch(at, most) if base_of(b) < end]
            if not batches:
                break
            named = sorted(_aborted(leader, batches), key=lambda one: one[1])
            found += delivered(batches, named if is_committed else [], is_committed)
            at = read_header(batches[-1]).end_offset
        return found

    async def headers(self) -> list[BatchHeader]:
        """Return the header of every batch there is."""
        found: list[BatchHeader] = []
        at = self.stream.start_offset
        while at < self.stream.confirmed_offset:
            found += map(read_header, await self.stream.fetch(at, 1 << 20))
            at = found[-1].end_offset
        return found


def base_of(batch: memoryview) -> int:
    return read_header(batch).base_offset


def delivered(
    batches: list[memoryview], named: list[tuple[int, int]], is_committed: bool
) -> list[Value]:
    """Return what a consumer hands out of one answer."""
    found: list[Value] = []
    aborting: set[int] = set()
    for batch in batches:
        header = read_header(batch)
        while named and named[0][1] < header.end_offset:
            aborting.add(named.pop(0)[0])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.is_commit:
                aborting.discard(header.producer_id)
        elif not (is_committed and header.is_transactional and header.producer_id in aborting):
            found += [(r.offset, r.key or b"", r.value) for r in iter_kafka_records(batch)]
    return found


def known(values: list[Value]) -> dict[bytes, bytes]:
    """Return what one knows who read these, in order of offsets."""
    table = {key: value for _, key, value in sorted(values)}
    return {key: value for key, value in table.items() if value is not None}


async def check(world: World) -> None:
    """Hold what is there against what was written."""
    await world.engine.wait_durable()
    stable = world.index.last_stable_offset(world.stream.confirmed_offset)
    counted = [one for offset, one in world.counted.items() if offset < stable]
    everything: list[Value] = []
    for most in (1, 200, 1 << 20):
        committed = await world.consumed(most, is_committed=True)
        assert len({one[0] for one in committed}) == len(committed)
        assert set(committed) <= set(counted), "undecided, aborted or invented"
        assert known(committed) == known(counted)
        everything = await world.consumed(most, is_committed=False)
        undecided = {one for written in world.open.values() for one in written}
        assert set(committed) | undecided <= set(everything)
    headers = await world.headers()
    there = {header.base_offset for header in headers if header.is_control and header.record_count}
    assert there >= {world.markers[one[0]] for one in everything if one[0] in world.markers}
    check_producers(world, headers)


def check_producers(world: World, headers: list[BatchHeader]) -> None:
    """The last epoch of each producer is told by a batch, while it is at work."""
    epochs: dict[int, int] = {}
    for header in headers:
        if header.producer_id != NOBODY:
            epochs[header.producer_id] = max(
                header.producer_epoch, epochs.get(header.producer_id, 0)
            )
    for producer_id, heard_ms in world.heard.items():
        if heard_ms >= world.now_ms - DAY_MS:
            assert epochs[producer_id] == world.epochs[producer_id]


async def perform(world: World, step: tuple[Any, Any, Any]) -> None:
    match step:
        case "send", producer_id, pairs:
            world.send(producer_id, pairs)
        case "end", producer_id, is_commit:
            world.end(producer_id, is_commit=is_commit)
        case "fence", producer_id, _:
            world.fence(producer_id)
        case "compact", later_ms, group_size:
            await world.compact(later_ms, group_size)
            await check(world)


def in_world(play: Callable[[World], Any]) -> None:
    async def main() -> None:
        async with opened() as (engine, (stream,)):
            await play(World(engine, stream))

    asyncio.run(main())


AN_ABORT_THAT_IS_FORGOTTEN = [
    ("send", NOBODY, [(b"a", b"v")]),
    ("send", 0, [(b"b", b"v")]),
    ("end", 0, False),
    ("compact", 0, 1 << 20),
    ("send", NOBODY, [(b"b", b"v")]),
    ("compact", RETENTION_MS, 1 << 20),
    ("send", 0, [(b"c", b"v")]),
    ("end", 0, True),
    ("compact", 0, 1 << 20),
]
"""Its producer commits later: a consumer that is still named the abort would miss that."""
A_COMMIT_THAT_IS_NEEDED = [
    ("send", 0, [(b"a", b"v")]),
    ("end", 0, True),
    ("compact", 0, 1 << 20),
    ("send", NOBODY, [(b"b", b"v")]),
    ("compact", RETENTION_MS, 1 << 20),
]
"""Its record stays."""


@settings(max_examples=examples(60), deadline=None)
@given(steps)
@example(AN_ABORT_THAT_IS_FORGOTTEN)
@example(A_COMMIT_THAT_IS_NEEDED)
def test_readers_know_the_same_and_producers_are_known(script: list[tuple[Any, Any, Any]]) -> None:
    async def play(world: World) -> None:
        for step in script:
            await perform(world, step)
        await world.compact(RETENTION_MS, 1 << 20)
        await check(world)

    in_world(play)


@settings(max_examples=30, deadline=None)
@given(steps)
def test_nothing_stays_of_transactions_that_are_over_for_good(
    script: list[tuple[Any, Any, Any]],
) -> None:
    """Neither a marker nor an empty batch, when their producers are gone and all is superseded."""

    async def play(world: World) -> None:
        for step in script:
            await perform(world, step)
        for producer_id in list(world.open):
            world.end(producer_id, is_commit=False)
        for later_ms in (0, RETENTION_MS, 2 * DAY_MS, RETENTION_MS):
            world.send(NOBODY, [(key, b"new") for key in (b"a", b"b", b"c")])
            await world.compact(later_ms, 1 << 20)
            await check(world)
        left = [one for one in await world.headers() if one.producer_id != NOBODY]
        assert not any(one.is_control or one.record_count == 0 for one in left)
        assert left == []

    in_world(play)
