"""Unclean elections: who gives up what nobody reaches, when that is refused, and that what was
given up never comes back.
"""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.replication_control import Loss, MovePlan, plan_elections
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState, TopicState
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from tests.unit.test_object_wal_recovery import running, state_of
from tests.unit.test_stream_engine import append, read_all
from tests.unit.test_takeover import Place, fence

TOPIC_ID = "1" * 32
PLACE = ("t", 0)
DEAD, LIVE = 0, 1
BLOCK_LOG = "block:/var/lib/wal"


def cluster(owner: dict[str, object], stream: dict[str, object], host_id: str) -> MetadataImage:
    """Partition 0 of topic `t` was led by node 0, which was fenced; node 1 lives."""
    known = NodeState(node_id=LIVE, epoch=0, incarnation="i", host="h", port=1, rack=None)
    fenced = replace(known, node_id=DEAD, is_fenced=True, wal=BLOCK_LOG, host_id="gone")
    fenced = replace(fenced, **owner)  # type: ignore[arg-type]
    led = StreamState(
        stream_id=0,
        topic_id=TOPIC_ID,
        partition=0,
        epoch=3,
        node_id=DEAD,
        is_open=True,
        assigned=LIVE,
        preferred=DEAD,
        end_offset=70,
    )
    led = replace(led, **stream)  # type: ignore[arg-type]
    topic = TopicState(name="t", topic_id=TOPIC_ID, partitions=(0,))
    return MetadataImage(
        nodes=Map({DEAD: fenced, LIVE: replace(known, host_id=host_id)}),
        topics=MetadataImage().topics.set("t", topic),
        streams=MetadataImage().streams.set(0, led),
    )


def elect(state: MetadataImage) -> MovePlan:
    return plan_elections(state, [PLACE], {LIVE}, is_unclean=True)


def test_what_nobody_reaches_is_given_up_from_the_committed_end_on() -> None:
    state = cluster({}, {}, host_id="here")
    planned = elect(state)
    assert planned.moves[PLACE] == (0, LIVE, False, Loss(DEAD, 3, 70))
    after = apply_records(state, planned.records(), 0).streams[0]
    assert (after.is_open, after.assigned, after.epoch, after.end_offset) == (False, LIVE, 3, 70)
    assert after.preferred == DEAD, "the balance of preferred leaders is as it was"
    again = elect(apply_records(state, planned.records(), 0))
    assert again.moves[PLACE].loss is None, "nothing is given up a second time"


@pytest.mark.parametrize(
    ("owner", "stream", "host_id", "code"),
    [
        ({}, {}, "gone", ErrorCode.election_not_needed),
        ({"wal": "object:"}, {}, "here", ErrorCode.election_not_needed),
        ({"wal": "memory:"}, {}, "here", ErrorCode.election_not_needed),
        ({"is_fenced": False}, {}, "here", ErrorCode.election_not_needed),
        ({}, {"node_id": LIVE}, "here", ErrorCode.election_not_needed),
        ({"wal_epoch": 1}, {}, "here", None),
        ({}, {"is_open": False}, "here", None),
    ],
)
def test_nothing_is_given_up_without_need(
    owner: dict[str, object], stream: dict[str, object], host_id: str, code: ErrorCode | None
) -> None:
    """Somebody reaches the log, or has recovered it, or leads."""
    state = cluster(owner, stream, host_id)
    planned = elect(state)
    if code is None:
        assert planned.moves[PLACE].loss is None
    else:
        assert planned.errors[PLACE].code is code
        assert planned.records() == []


def test_nobody_is_elected_where_nobody_may_lead() -> None:
    state = cluster({}, {}, host_id="here")
    drains = replace(state.nodes[LIVE], is_fenced=True)
    planned = elect(replace(state, nodes=state.nodes.set(LIVE, drains)))
    assert planned.errors[PLACE].code is ErrorCode.eligible_leaders_not_available
    assert planned.records() == []


def test_an_election_of_preferred_leaders_gives_nothing_up() -> None:
    state = cluster({}, {"preferred": LIVE}, host_id="here")
    planned = plan_elections(state, [PLACE], {LIVE}, is_unclean=False)
    assert planned.moves[PLACE].loss is None
    assert apply_records(state, planned.records(), 0).streams[0].is_open


async def died_with_a_log(store: MemoryStore, place: Place) -> list[list[int]]:
    """Node 0 writes two streams, uploads some of both, and dies; return what is in objects."""
    async with running(store, place.own) as (engine, streams):
        kept = [[await append(stream) for _ in range(4)] for stream in streams]
        await engine.upload_now()
        for stream in streams:
            await append(stream)
            await append(stream)
        return kept


async def give_up(engine: StreamEngine, stream_id: int) -> None:
    """Elect node 1 uncleanly for a stream of node 0."""
    state = await engine.metadata.refresh()
    stream = state.streams[stream_id]
    topic = state.topic_by_id(stream.topic_id)
    assert topic is not None
    planned = plan_elections(state, [(topic.name, stream.partition)], {1}, is_unclean=True)
    assert [move.loss for move in planned.moves.values()] == [Loss(0, 0, stream.end_offset)]
    await engine.metadata.commit(planned.records())


async def test_who_comes_back_finds_its_records_passed_over() -> None:
    """Of one stream the loss was accepted, and it goes on elsewhere; of the other all is there."""
    store, place = MemoryStore(), Place("records")
    kept = await died_with_a_log(store, place)
    async with AsyncExitStack() as stack:
        engine, _ = await stack.enter_async_context(
            running(store, place.own, node_id=1, partitions=0, seed=1)
        )
        await fence(engine, 0)
        await give_up(engine, 0)
        [stream] = await engine.open_streams([0])
        assert await read_all(stream) == kept[0], "opened at the committed end"
        kept[0].append(await append(stream))
        back, _ = await stack.enter_async_context(
            running(store, place.own, node_id=0, partitions=0, seed=2)
        )
        await engine.metadata.refresh()
        assert await read_all(stream) == kept[0]
        kept[0].append(await append(stream))
        await engine.upload_now()
        assert await read_all(stream) == kept[0]
        [other] = await back.open_streams([1])
        assert len(await read_all(other)) == 6, "what nobody gave up is recovered"
    epochs = (await state_of(store)).streams[0].epochs
    assert [epoch for epoch, _ in epochs] == [0, 1]


async def test_a_recovery_that_comes_after_all_passes_over_what_was_given_up() -> None:
    """A disk that is attached to another machine later, say."""
    store, place = MemoryStore(), Place("records")
    kept = await died_with_a_log(store, place)
    async with running(store, place.own, node_id=1, partitions=0, seed=1) as (engine, _):
        node = await fence(engine, 0)
        await give_up(engine, 0)
        [stream] = await engine.open_streams([0])
        kept[0].append(await append(stream))
        await engine.take_over(node, place.left)
        assert await read_all(stream) == kept[0]
        [other] = await engine.open_streams([1])
        assert len(await read_all(other)) == 6
