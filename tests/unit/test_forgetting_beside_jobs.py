"""Whatever other jobs do to a stream's objects while a merge runs: once `forget` has looked at all
objects and found nothing, no object that readers use has a record of the key, then or later.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, permutations

import pytest

from lakehead.lake.jobs.forget import ForgetItem, _ItemWork, _objects
from lakehead.storage.certificates import FORMAT_VERSION, ForgetRequest, ForgottenRange
from lakehead.storage.compaction.forgetting import GivenKeys, find_in_object
from lakehead.storage.compaction.object_compaction import MergeResult
from lakehead.storage.compaction.object_compaction_plan import MergeItem
from lakehead.storage.format.stream_object import read_index
from lakehead.storage.garbage import check_leaks
from lakehead.storage.metadata.records import DeleteStream, TrimStream
from lakehead.storage.metadata.state import MetadataImage, ObjectState
from lakehead.storage.metadata.table import Table
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from tests.unit.test_compaction_job import Writer, job, opened, plain, read, upload
from tests.unit.test_merge_job import merge as merging
from tests.unit.test_merge_job import whole

KEY = b"forget-me"
SEEDS = count(10)


def request_of(cluster_id: str, *ranges: ForgottenRange) -> ForgetRequest:
    return ForgetRequest(
        version=FORMAT_VERSION,
        number=1,
        cluster_id=cluster_id,
        topic="t",
        topic_id="",
        requested_by="",
        requested_ms=0,
        salt="",
        hashes=(),
        ranges=ranges,
    )


async def forget(engine: StreamEngine, stream: Stream) -> None:
    """Look at all objects, as the job does, until a look finds no record of the key."""
    state = engine.metadata.state
    known = state.streams.get(stream.stream_id)
    end = 6 if known is None else known.end_offset
    meant = ForgottenRange(partition=0, stream_id=stream.stream_id, start=0, end=end)
    request = request_of(state.cluster_id, meant)
    free: set[str] = set()
    for _ in range(5):
        objects = _objects(engine.metadata.state, request, free)
        item = ForgetItem(
            path="",
            topic="t",
            keys=(KEY,),
            ends={stream.stream_id: end},
            partitions={stream.stream_id: 0},
            objects=tuple(objects),
            certificate=1,
        )
        free |= set((await _ItemWork(item, engine.reader._store, engine.metadata).run()).free)
        if all(key in free for key, _ in objects):
            return
    raise AssertionError("objects have records of the key without end")


async def compact(engine: StreamEngine, stream: Stream) -> None:
    """Log compaction: a stream that was deleted has nothing to compact."""
    await job(engine, stream).run()


async def trim(engine: StreamEngine, stream: Stream) -> None:
    """Retention, unless the stream was deleted."""
    if stream.stream_id in engine.metadata.state.streams:
        await engine.metadata.commit([TrimStream(stream_id=stream.stream_id, start_offset=3)])


async def delete(engine: StreamEngine, stream: Stream) -> None:
    """The deletion of a topic."""
    await engine.metadata.commit([DeleteStream(stream_id=stream.stream_id)])


async def merge(engine: StreamEngine, item: MergeItem) -> MergeResult:
    """Merge as a process of its own, whose names are other ones than those of any other."""
    made = merging(engine, item)
    made.rng = random.Random(next(SEEDS))
    return await made.run()


async def merge_alone(engine: StreamEngine, stream: Stream) -> None:
    """Merge what one stream has; the others keep the old objects."""
    sources = tuple(whole(engine).sources)
    item = MergeItem(sources=sources, streams=(stream.stream_id,), size=0)
    await merge(engine, item)


async def merge_neighbour(engine: StreamEngine, stream: Stream) -> None:
    """Merge what the next stream has."""
    sources = tuple(whole(engine).sources)
    item = MergeItem(sources=sources, streams=(stream.stream_id + 1,), size=0)
    await merge(engine, item)


async def compact_neighbour(engine: StreamEngine, stream: Stream) -> None:
    """Log compaction of the next stream, so that an old object may lose its last reader."""
    await compact(engine, engine.streams[stream.stream_id + 1])


Step = Callable[[StreamEngine, Stream], Awaitable[None]]
STEPS: Sequence[Step] = (
    compact,
    forget,
    trim,
    delete,
    merge_alone,
    merge_neighbour,
    compact_neighbour,
)
ORDERS = [
    order
    for length in (1, 2, 3)
    for order in permutations(STEPS, length)
    if length < 3 or forget in order  # else it comes last
]


def name_of(order: Sequence[Step]) -> str:
    return ", ".join(step.__name__ for step in order)


async def copies_of(engine: StreamEngine, stream_id: int) -> list[str]:
    """Return the objects with records of the key that some stream reads."""
    state, store = engine.metadata.state, engine.reader._store
    keys = GivenKeys((KEY,), random.Random(5))
    found = []
    for key in [one for one in state.objects if state.places_in((one,))]:
        index = await read_index(store, key)
        if (await find_in_object(store, index, keys, {stream_id: 1 << 62})).records:
            found.append(key)
    return found


@pytest.mark.parametrize("first", STEPS, ids=lambda step: step.__name__)
async def test_no_object_keeps_a_forgotten_record_whatever_happens_beside_a_merge(
    first: Step,
) -> None:
    for order in ORDERS:
        if order[0] is first:
            await check_order(order)


async def check_order(order: Sequence[Step]) -> None:
    """Merge all objects, and do these steps between the writing of the first one and the commit."""
    async with opened(partitions=3) as (engine, streams):
        for some in (streams[:2], streams[2:]) * 2:
            for stream in some:
                Writer(stream).append((KEY, b"1"), (b"k", b"2"))
            await upload(engine)
        last = await read(streams[2])
        store, create = engine.reader._store, engine.reader._store.create
        begun: list[str] = []

        async def interfering(key: str, pieces: Sequence[Buffer]) -> None:
            await create(key, pieces)
            if not begun:
                begun.append(key)
                for step in order:
                    await step(engine, streams[0])
                if forget in order:
                    assert not await copies_of(engine, 0), name_of(order)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "create", interfering)
            await merge(engine, whole(engine))
        if forget not in order:
            await forget(engine, streams[0])
        assert not await copies_of(engine, 0), name_of(order)
        assert plain(await read(streams[2])) == plain(last)
        report = await check_leaks(store, engine.metadata)
        assert (report.missing, report.leaked) == ((), ()), name_of(order)


async def test_a_merge_goes_on_without_what_changed_also_in_one_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One object of three streams: of one of them the records changed, so that object is written
    again without it, and the others need no further run.
    """
    async with opened(partitions=3) as (engine, streams):
        for _ in range(4):
            for stream in streams:
                Writer(stream).append((b"k", b"1"))
            await upload(engine)
        before = [await read(stream) for stream in streams]
        store, create = engine.reader._store, engine.reader._store.create
        made: list[str] = []
        trimmed: list[int] = []

        async def interfering(key: str, pieces: Sequence[Buffer]) -> None:
            await create(key, pieces)
            if key.startswith("data/"):
                made.append(key)
            if made and 0 not in trimmed:
                trimmed.append(0)
                await trim(engine, streams[0])

        monkeypatch.setattr(store, "create", interfering)
        result = await merge(engine, whole(engine))
        assert (result.is_done, result.objects_after, len(made)) == (True, 1, 2)
        state = engine.metadata.state
        assert [len(state.stream(one.stream_id).extents) for one in streams] == [1, 1, 1]
        (key,) = {state.stream(one.stream_id).extents[0].object_key for one in streams[1:]}
        assert set((await read_index(store, key)).streams) == {1, 2}
        assert [await read(stream) for stream in streams[1:]] == before[1:]
        report = await check_leaks(store, engine.metadata)
        assert (report.missing, report.uploading, report.leaked) == ((), (), ())


def test_an_object_that_the_topic_does_not_read_counts_by_its_index_alone() -> None:
    """Else a process would be begun for each of a hundred thousand objects of other topics."""
    held = ObjectState(
        key="data/00/0-0-0",
        kind="sso",
        size=1 << 30,
        node_id=0,
        node_epoch=0,
        created_ms=0,
        stream_ids=frozenset({7, 8}),
    )
    table = Table[str, ObjectState]().update([(held.key, held)])
    state = MetadataImage(cluster_id="c", next_entry=1, objects=table)
    [(key, size)] = _objects(state, request_of("c"), set())
    assert (key, size < 1 << 20) == (held.key, True)
