"""Share-partitions of a simulated member, under the eyes of the judge of share groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.persister import Persister
from lakehead.broker.share.record_state import ShareState
from lakehead.broker.share.share_partition import AcquiredRecords, AcquireRequest, OffsetRange
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_partition_manager import SharePartitionManager

if TYPE_CHECKING:
    from tests.simulation.cluster.member import Member


class WatchedPersister(Persister):
    """Stores states, and reports them to the judge."""

    def __init__(self, member: Member, *arguments: Any, timeout_s: float) -> None:
        super().__init__(*arguments, timeout_s=timeout_s)
        self._member = member
        self._judge = member.world.share_judge

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """See `Persister.initialize`."""
        await super().initialize(key, state_epoch, start_offset)
        self._judge.initialized(key, state_epoch, start_offset)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """See `Persister.read`."""
        before = self._judge.loading(key)
        state = await super().read(key, leader_epoch)
        self._judge.loaded(self._member.name, key, before, state)
        return state

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        """See `Persister.write`."""
        before = self._judge.writing(key)
        await super().write(key, state)
        self._judge.written(self._member.name, key, before, state)


class WatchedShares(SharePartitionManager):
    """Leads share-partitions, and reports their deliveries to the judge."""

    def __init__(self, member: Member, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._member = member
        self._watched: WeakSet[LedSharePartition] = WeakSet()

    def get(self, key: SharePartitionKey) -> LedSharePartition:
        """See `SharePartitionManager.get`."""
        led = super().get(key)
        if led not in self._watched:
            self._watched.add(led)
            self._watch(led)
        return led

    def _watch(self, led: LedSharePartition) -> None:
        acquire, member = led.acquire, self._member

        def watched(
            request: AcquireRequest,
            fetch_offset: int,
            fetched: Sequence[OffsetRange],
            aborted: Iterable[OffsetRange],
        ) -> list[AcquiredRecords]:
            acquired = acquire(request, fetch_offset, fetched, aborted)
            member.world.share_judge.acquired(member, led, request, acquired)
            return acquired

        led.acquire = watched  # type: ignore[method-assign]
