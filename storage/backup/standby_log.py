"""The metadata of a copy of a cluster, as a standby serves them: followed, and never written to.

A standby is the one node of the cluster that its clients see. It has every stream open, under the
epoch of the present owner in the copied cluster, and the controller's lease, so that requests which
only a controller serves are refused at once.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn, Self

from immutables import Map

from lakehead.storage.backup.followed_copy import CopyPoint, FollowedCopy
from lakehead.storage.backup.led_streams import Head, LedStreams, stream_heads
from lakehead.storage.clock import Clock
from lakehead.storage.errors import ReadOnlyCluster
from lakehead.storage.metadata.log import MetadataLog, Plan
from lakehead.storage.metadata.state import (
    INTERNAL_TOPICS,
    ControllerState,
    MetadataImage,
    NodeState,
)
from lakehead.storage.object_store.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLag:
    """The distance of what a standby serves from the cluster that is copied.

    It has all that was in the cluster's store `lag_s` seconds ago, by the clock of this machine;
    None: not known. `entries_behind` entries of the metadata have arrived that cannot count yet,
    since an object of theirs has not. `newest_record_ms` is the greatest timestamp of the newest
    records that were seen, milliseconds since the epoch; None: there were none.
    """

    lag_s: float | None
    entries_behind: int
    newest_record_ms: int | None


class StandbyLog(MetadataLog):
    """The newest state of a copy that may be served. Made by `open_copy`."""

    def __init__(
        self,
        store: ObjectStore,
        copy: FollowedCopy,
        node: NodeState,
        point: CopyPoint,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        super().__init__(store, writer_id=f"{node.node_id}/standby", clock=clock, rng=rng)
        self.point = point
        """The state that is served, as it is in the copy."""
        self._copy = copy
        self._node = node
        self._look_lock = asyncio.Lock()
        self._streams = LedStreams(node.node_id)
        self._heads: dict[int, Head] = {}
        self._newest_record_ms: int | None = None
        self._lead(point.state)

    @classmethod
    async def open_copy(
        cls,
        store: ObjectStore,
        copy: FollowedCopy,
        node: NodeState,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> Self:
        """Return the log at the newest point of a copy. Raises as `FollowedCopy.look`."""
        return cls(store, copy, node, await copy.look(), clock=clock, rng=rng)

    @property
    def lag(self) -> CopyLag:
        """The distance of the state that is served from the copied cluster."""
        point = self.point
        is_known = point.position_ms >= 0
        return CopyLag(
            lag_s=(self._clock.now_ms() - point.position_ms) / 1000 if is_known else None,
            entries_behind=point.entries_behind,
            newest_record_ms=self._newest_record_ms,
        )

    async def refresh(self, *, surely: bool = False, until: int = 0) -> MetadataImage:
        """Look at the copy, and return its newest state. With `surely` or `until`, which readers
        use to prove that their state is current, there is nothing to prove: a copy lags, and no
        other node leads what is served here. Raises as `FollowedCopy.look`.
        """
        begun = self._clock.monotonic()
        if not surely and not until:
            async with self._look_lock:
                self._take(await self._copy.look())
        self.fresh_at = begun
        return self.state

    def _take(self, point: CopyPoint) -> None:
        is_new = point.state is not self.point.state
        self.point = point
        if is_new:
            self._lead(point.state)
            for callback in self._reader.subscribers:
                callback(self._reader.state, None)

    def _lead(self, state: MetadataImage) -> None:
        """Serve a state of the copy."""
        self._reader.state = standby_state(state, self._node, self._streams)
        heads, before = stream_heads(state.streams), self._heads
        moved = [one for one, head in heads.items() if before.get(one) != head]
        self._heads = heads
        newest = newest_record_ms(state, moved)
        if newest is not None and newest > (self._newest_record_ms or -1):
            self._newest_record_ms = newest

    async def maintain(self, every: int) -> None:
        """Do nothing: the copied cluster writes its own checkpoints."""

    async def commit_with(self, plan: Plan) -> NoReturn:  # noqa: ARG002
        """Raise ReadOnlyCluster."""
        raise ReadOnlyCluster(
            f"this node is a standby of cluster {self.state.cluster_id} and takes no changes: "
            "send them to the cluster itself, or promote the copy"
        )


def standby_state(state: MetadataImage, node: NodeState, streams: LedStreams) -> MetadataImage:
    """Return the state of a copy with `node` as its only node, which leads every stream, as
    `streams` has them.
    """
    return replace(
        state,
        nodes=Map({node.node_id: node}),
        controller=ControllerState(
            node_id=node.node_id, node_epoch=node.epoch, term=state.controller.term
        ),
        streams=streams.of(state),
    )


def newest_record_ms(state: MetadataImage, stream_ids: Iterable[int]) -> int | None:
    """Return the greatest timestamp in the last object of each of these streams, if it is of a
    client's topic.
    """
    streams = [state.streams[one] for one in stream_ids]
    times = [
        one.extents[-1].max_timestamp
        for one in streams
        if one.extents and state.topic_names.get(one.topic_id) not in INTERNAL_TOPICS
    ]
    return max(times, default=None)
