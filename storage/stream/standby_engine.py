"""The stream engine of a standby: streams of a copy of a cluster, to be read and not appended to.

It is the engine of a node without what writes: no write-ahead log, no uploads, no garbage, and no
registration. Streams end where the copy does, and move on as it grows.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from lakehead.storage.backup.followed_copy import follow_copy
from lakehead.storage.backup.standby_log import StandbyLog
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, ReadOnlyCluster
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.read_only import ReadOnlyStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import OnDone, Stream
from lakehead.storage.stream.upload import Writer
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.memory import MemoryWal

STANDBY_EPOCH = 0
"""The node epoch of a standby: it is registered nowhere."""


class StandbyEngine(StreamEngine):
    """Made by `open_copy`."""

    wal: MemoryWal
    """A log that stays empty, for metrics."""

    @classmethod
    async def open_copy(
        cls,
        *,
        store: ObjectStore,
        node: NodeIdentity,
        clock: Clock,
        rng: random.Random,
        settings: StorageSettings,
        scope: TaskScope,
        admit: Callable[[MetadataImage], Awaitable[None]],
    ) -> "StandbyEngine":
        """Read the copy in a store, and follow it from now on. `admit` may refuse its state.

        Raises CopyPromoted, NotFound (there is no copy), UnsupportedFormat, CorruptObject,
        StoreUnavailable (after a few attempts; once it runs, the engine waits a failing store out).
        """
        incarnation = f"{rng.getrandbits(64):016x}"
        retrying = RetryingStore(ReadOnlyStore(store), rng=rng)
        own = NodeState(
            node_id=node.node_id,
            epoch=STANDBY_EPOCH,
            incarnation=incarnation,
            host=node.host,
            port=node.port,
            rack=node.rack,
            host_id=node.host_id,
            endpoints=node.endpoints,
        )
        copy = await follow_copy(retrying)
        log = await StandbyLog.open_copy(retrying, copy, own, clock=clock, rng=rng)
        await admit(log.state)
        wal = MemoryWal()
        engine = cls(
            store=retrying,
            wal=wal,
            metadata=log,
            node=node,
            writer=Writer(
                cluster_id=log.state.cluster_id,
                node_id=node.node_id,
                node_epoch=STANDBY_EPOCH,
                incarnation=incarnation,
            ),
            clock=clock,
            rng=rng,
            settings=settings,
            scope=scope,
        )
        engine.wal = wal
        retrying.is_patient = True
        engine.store_retries = retrying.stats
        log.follow(engine.reader.follow)
        scope.spawn(engine._follow(), name="follow the copy")
        return engine

    async def _follow(self) -> None:
        """Follow the copy until it is one no more; then the engine fails with the reason."""
        try:
            await self.follower.run()
        except LakeheadError as error:
            self.fail(error)

    async def open_streams(self, stream_ids: Sequence[int]) -> list[Stream]:
        """Return streams, up to the ends that they have in the copy. Nothing is committed."""
        state = self.metadata.state
        opened = [Stream(self, state.stream(stream_id)) for stream_id in stream_ids]
        self.streams.update((stream.stream_id, stream) for stream in opened)
        return opened

    def append(
        self,
        stream: Stream,
        payload: memoryview,  # noqa: ARG002
        count: int,  # noqa: ARG002
        max_timestamp: int,  # noqa: ARG002
        on_done: OnDone | None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise ReadOnlyCluster."""
        raise ReadOnlyCluster(f"stream {stream.stream_id} is only read here")

    def writable(self) -> bool:
        """Return true: there is nothing that producers would have to wait for."""
        return True

    async def close(self) -> None:
        """Close the streams: there is nothing to upload."""
        for stream in self.streams.values():
            stream.close()
