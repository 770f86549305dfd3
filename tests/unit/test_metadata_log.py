"""The metadata log: one order, three outcomes, and a state that replay gives back."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import EntryRejected, TopicExists, UnsupportedFormat
from lakehead.storage.metadata.entry import entry_key
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CreateStream, CreateTopic, ProducerIdBlock, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import Buffer, MemoryStore, ObjectStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.retrying import RetryingStore


async def open_log(store: ObjectStore, writer: str = "w", seed: int = 0) -> MetadataLog:
    rng = random.Random(f"{writer}{seed}")
    retrying = RetryingStore(store, rng=rng)
    retrying.is_patient = True
    return await MetadataLog.open(retrying, writer_id=writer, clock=SystemClock(), rng=rng)


def plan_block(state: MetadataImage) -> list[Record]:
    return [ProducerIdBlock(node_id=0, start=state.next_producer_id, count=10)]


def plan_topic(name: str):  # type: ignore[no-untyped-def]
    def plan(state: MetadataImage) -> list[Record]:
        return [
            CreateTopic(name=name, topic_id=f"{name:0>32}"),
            CreateStream(stream_id=state.next_stream_id, topic_id=f"{name:0>32}", partition=0),
        ]

    return plan


async def test_replay_gives_the_same_state() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await log.create_cluster("c1")
    await log.commit_with(plan_topic("a"))
    await log.commit_with(plan_block)
    assert (await open_log(store)).state == log.state
    assert log.state.topics["a"].partitions == (0,)


async def test_a_refused_record_commits_nothing_of_its_entry() -> None:
    log = await open_log(MemoryStore())
    await log.commit_with(plan_topic("a"))
    before = log.state
    with pytest.raises(TopicExists):
        await log.commit([ProducerIdBlock(node_id=0, start=0, count=1), *plan_topic("a")(before)])
    assert log.state == before


async def test_concurrent_commits_travel_in_one_entry_and_fail_apart() -> None:
    store = MemoryStore()
    log = await open_log(store)
    results = await asyncio.gather(
        log.commit_with(plan_topic("x")),
        log.commit_with(plan_topic("a")),
        log.commit_with(plan_topic("b")),
        log.commit_with(plan_topic("a")),
        return_exceptions=True,
    )
    assert isinstance(results[3], TopicExists)
    assert set(log.state.topics) == {"a", "b", "x"}
    assert len(store.objects) < 4


async def test_an_entry_of_a_newer_release_asks_for_an_upgrade() -> None:
    store = MemoryStore({entry_key(0): b'{"version": 99, "surprise": true}'})
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        await open_log(store)


async def test_a_cancelled_commit_that_landed_is_not_planned_again() -> None:
    """The entry of a cancelled caller may be in the store: the next commit learns its fate."""
    inner = MemoryStore()
    store = FaultyStore(inner, rng=random.Random(0), profile=FaultProfile(latency_s_max=0.02))
    log = await open_log(store)
    task = asyncio.create_task(log.commit_with(plan_topic("a")))
    async with asyncio.timeout(30):
        while not inner.objects:  # noqa: ASYNC110 - a store tells nobody
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await log.commit_with(plan_topic("b"))
    assert set(log.state.topics) == {"a", "b"}
    assert (await open_log(inner)).state == log.state


class GatedStore(MemoryStore):
    """A store that does not take puts while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await self.gate.wait()
        await super().create(key, pieces)


async def test_a_commit_that_was_given_up_in_an_outage_is_not_made_after_it() -> None:
    """Neither that of a caller whose put never arrived, nor of those that waited behind it."""
    store = GatedStore()
    log = await open_log(store)
    tasks = [asyncio.create_task(log.commit_with(plan_topic(f"t{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    later = [asyncio.create_task(log.commit_with(plan_topic(f"u{n}"))) for n in range(20)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in (*tasks, *later):
        task.cancel()
    await asyncio.gather(*tasks, *later, return_exceptions=True)
    assert not log._waiting, "a client that gives up leaves nothing behind"
    store.gate.set()
    await log.commit_with(plan_topic("a"))
    assert set(log.state.topics) == {"a"}


async def test_a_commit_is_made_for_those_that_still_wait_when_another_gives_up() -> None:
    store = GatedStore()
    log = await open_log(store)
    tasks = [asyncio.create_task(log.commit_with(plan_topic(name))) for name in ("a", "b", "c")]
    for _ in range(3):
        await asyncio.sleep(0)
    tasks[0].cancel()  # it was about to put the entry of all
    store.gate.set()
    await asyncio.gather(*tasks[1:])
    assert {"b", "c"} <= set(log.state.topics)
    assert (await open_log(store)).state == log.state


@pytest.mark.parametrize("seed", range(30))
async def test_writers_on_a_hostile_store_agree_on_one_order(seed: int) -> None:
    """Four writers reserve producer ids and race for topics: no block twice, one winner a name."""
    inner = MemoryStore()
    rng = random.Random(seed)
    profile = FaultProfile(
        unavailable=0.1, lost_request=0.1, lost_response=0.2, latency_s_max=0.001
    )
    blocks: list[int] = []
    won: list[str] = []

    async def work(writer: int) -> None:
        log = await open_log(FaultyStore(inner, rng=rng, profile=profile), f"w{writer}", seed)
        for topic in ("t1", "t2"):

            def plan(state: MetadataImage) -> list[Record]:
                blocks_planned[writer] = state.next_producer_id
                return plan_block(state)

            await log.commit_with(plan)
            blocks.append(blocks_planned[writer])
            try:
                await log.commit_with(plan_topic(topic))
                won.append(topic)
            except EntryRejected:
                pass

    blocks_planned: dict[int, int] = {}
    await asyncio.gather(*(work(writer) for writer in range(4)))
    assert sorted(blocks) == list(range(0, 80, 10))
    assert sorted(won) == ["t1", "t2"]
    state = (await open_log(inner)).state
    assert state.next_producer_id == 80
    assert state.next_entry == len(inner.objects)
