"""A share-partition at its leader, over a store that may refuse."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Partition
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.broker.share.led_share_partition import DeadLetterSink, LedSharePartition
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_counts import ShareCounts
from lakehead.broker.share.share_partition import Acknowledgement, AcquireRequest, OffsetRange
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_settings import ShareSettings
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.tasks import TaskScope
from tests.property.test_coordinator_log import crash
from tests.simulation.loop import LoopClock, simulate

KEY = SharePartitionKey("g", bytes(16), 0)
DELIVERIES_MAX, LOCK_MS = 3, 1_000
ACCEPT = [Acknowledgement(5, 5, (1,))]


class Store:
    """Holds a state whose first record has one delivery left."""

    def __init__(self) -> None:
        self.state = ShareState(
            5, 1, 1, 0, (StateBatch(5, 5, RecordState.AVAILABLE, DELIVERIES_MAX - 1),)
        )
        self.writes: list[ShareState] = []
        self.refusal: ErrorCode | None = None

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        return self.state

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        await asyncio.sleep(0.1)
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        self.writes.append(state)


class World:
    """The leader and its store."""

    def __init__(self) -> None:
        self.store = Store()
        self.scope = TaskScope(crash)
        settings = Settings(
            group_share_delivery_count_limit=DELIVERIES_MAX,
            group_share_record_lock_duration_ms=LOCK_MS,
            group_share_min_record_lock_duration_ms=LOCK_MS,
        )
        partition = SimpleNamespace(leader_epoch=1, log_start_offset=0)
        self.led = LedSharePartition(
            KEY,
            cast("Partition", partition),
            self.store,
            cast("DeadLetterSink", None),
            ShareSettings(settings, MetadataImage),
            LoopClock(asyncio.get_running_loop()),
            self.scope,
            ShareCounts(),
            lambda _led: None,
            lambda _led: None,
        )

    async def give_up_a_record(self) -> None:
        """Deliver a record for the last time, and let the lock of it end."""
        self.led.begin()
        await asyncio.sleep(0.1)
        request = AcquireRequest("a", self.led.deadline_ms(), 1, 1)
        assert self.led.acquire(request, 5, [OffsetRange(5, 9)], ()) == [(5, 5, DELIVERIES_MAX)]
        await asyncio.sleep(LOCK_MS / 1000 + 0.05)
        assert self.led.machine.start_offset == 6


def test_a_verdict_on_a_record_that_was_given_up_counts_once_that_is_stored() -> None:
    async def world() -> None:
        here = World()
        await here.give_up_a_record()
        late = here.led.acknowledge("a", ACCEPT)
        assert not late.done()
        await late
        assert here.store.writes[-1].start_offset == 6
        count = len(here.store.writes)
        await here.led.acknowledge("a", ACCEPT)
        assert len(here.store.writes) == count, "it is stored already"
        await here.scope.close()

    simulate(world, seed=1)


@pytest.mark.parametrize(
    "refusal", [ErrorCode.fenced_leader_epoch, ErrorCode.coordinator_not_available]
)
def test_a_verdict_on_a_record_that_was_given_up_by_a_leader_without_a_store_is_refused(
    refusal: ErrorCode,
) -> None:
    async def world() -> None:
        here = World()
        here.store.refusal = refusal
        await here.give_up_a_record()
        late = here.led.acknowledge("a", ACCEPT)
        with pytest.raises(KafkaError):
            await late
        assert here.store.writes == []
        await here.scope.close()

    simulate(world, seed=1)
