"""The answer to a metadata entry comes late, when others have added entries after it: whoever wrote
it goes by what it wrote, not by what the newest state says.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from lakehead.broker.producer_ids import BLOCK, ProducerIds
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import Fenced, OutcomeUnknown
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CommitObjects, FenceNode, OpenStream
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.registration import register
from lakehead.storage.stream.settings import NodeIdentity
from lakehead.storage.wal import MemoryWal
from tests.unit.test_stream_engine import running

NODE = NodeIdentity(node_id=0, host="h", port=1)


class LateStore(MemoryStore):
    """Loses the answer to one put, after something else has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await super().create(key, pieces)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            raise OutcomeUnknown(key)


async def open_logs(store: LateStore) -> tuple[MetadataLog, MetadataLog]:
    first, second = [
        await MetadataLog.open(store, writer_id=name, clock=SystemClock(), rng=random.Random(name))
        for name in ("0/a", "0/b")
    ]
    await first.create_cluster("c")
    return first, second


async def test_an_incarnation_that_learns_late_that_it_registered_is_fenced() -> None:
    """It does not take its successor's epoch for its own."""
    store = LateStore()
    first, second = await open_logs(store)
    store.meanwhile = lambda: register(second, NODE, "b", MemoryWal())
    with pytest.raises(Fenced, match="epoch 0 has a successor"):
        await register(first, NODE, "a", MemoryWal())
    assert first.state.nodes[0].incarnation == "b"


async def test_no_producer_id_is_given_twice_when_others_take_blocks_meanwhile() -> None:
    store = LateStore()
    first, second = await open_logs(store)
    here, there = ProducerIds(first, 0), ProducerIds(second, 1)
    theirs: list[int] = []

    async def take_there() -> None:
        theirs.append(await there.take())

    store.meanwhile = take_there
    ours = [await here.take() for _ in range(BLOCK)]
    theirs += [await there.take() for _ in range(BLOCK - 1)]
    assert sorted([*ours, *theirs]) == list(range(2 * BLOCK))


async def test_a_node_that_was_fenced_while_it_registered_still_knows_its_epoch() -> None:
    store = LateStore()
    first, second = await open_logs(store)

    async def fence() -> None:
        await second.refresh()
        await second.commit([FenceNode(node_id=0, epoch=0)])

    store.meanwhile = fence
    writer, _ = await register(first, NODE, "a", MemoryWal())
    assert writer.node_epoch == 0
    assert first.state.nodes[0].is_fenced


async def test_a_stream_that_moved_on_before_its_opening_was_known_is_not_written_to() -> None:
    store, wal = LateStore(), MemoryWal()
    async with running(store, wal, clean=False) as (engine, streams):
        epoch = streams[0].epoch
        other = await MetadataLog.open(
            store, writer_id="1/b", clock=SystemClock(), rng=random.Random(1)
        )

        async def take_over() -> None:
            await other.refresh()
            await register(other, NodeIdentity(node_id=1, host="h", port=2), "b", MemoryWal())
            await other.commit([FenceNode(node_id=0, epoch=0)])
            await other.commit(
                [
                    CommitObjects(
                        node_id=0,
                        node_epoch=0,
                        objects=(),
                        wal_epoch=1,
                        taker_id=1,
                        taker_epoch=0,
                    ),
                    OpenStream(stream_id=0, epoch=epoch + 2, node_id=1, node_epoch=0),
                ]
            )

        store.meanwhile = take_over
        with pytest.raises(Fenced):
            await engine.open_streams([0])
