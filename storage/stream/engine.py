"""The stream engine of one node: streams over one write-ahead log, one cache, one uploader and one
metadata log.

The path of a batch: append -> WAL -> (released) log cache, confirmed offset, response -> upload set
-> objects -> metadata entry -> WAL trim. At start the node takes a new epoch, commits what its WAL
still holds, and only then opens streams.

A stream is handed over soon after the decision, with a pause that depends neither on its size nor
on the node's other work. While the stream still takes appends, its data in memory is uploaded. Then
it stops, the small rest is uploaded apart from everything else, and the entry that commits it
closes the stream.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from lakehead.storage.backup.manifest import refuse_backups
from lakehead.storage.clock import Clock
from lakehead.storage.errors import Fenced, LakeheadError, StorageError, WalFailed, WrongLog
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.garbage import GarbageCollector
from lakehead.storage.latency import LatencyHistogram, Timing
from lakehead.storage.metadata.log import MetadataFollower, MetadataLog
from lakehead.storage.metadata.records import CloseStream, OpenStream, Record
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.retrying import RetryingStore, RetryStats
from lakehead.storage.stream.inherited_tail import commit_tails
from lakehead.storage.stream.log_cache import CachedBatch, LogCache
from lakehead.storage.stream.reader import ColdReader
from lakehead.storage.stream.recovery import BLOCK_SIZE, Owner, log_in_cluster, recover_wal
from lakehead.storage.stream.registration import accepts, begin_log, claim, log_loss, register
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import OnDone, Stream
from lakehead.storage.stream.takeover import OpenUnrecoveredWal, Takeovers
from lakehead.storage.stream.upload import Uploader, UploadPace, UploadQueue, Writer
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.protocol import LogIdentity, WalOwner, WriteAheadLog

_log = event_logger("storage.engine")

_REST_MAX = 1024 * 1024
_PASSES_MAX = 4
STATES_LEVEL = 2
"""The feature level from which on partition states are incremental, in version 3 of their format.
"""

WalOpener = Callable[[WalOwner], Awaitable[WriteAheadLog]]
"""Opens this node's WAL."""


class StreamEngine:
    """Made by `open`. Everything runs on one event loop. `streams` are those that are open here."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        wal: WriteAheadLog,
        metadata: MetadataLog,
        node: NodeIdentity,
        writer: Writer,
        clock: Clock,
        rng: random.Random,
        settings: StorageSettings,
        scope: TaskScope,
    ) -> None:
        self.metadata = metadata
        self.follower = MetadataFollower(
            metadata,
            poll_s=settings.metadata_poll_s,
            poll_max_s=settings.metadata_poll_max_s,
            checkpoint_entries=settings.metadata_checkpoint_entries,
        )
        self.node = node
        self.writer = writer
        self.node_epoch = writer.node_epoch
        self.cache = LogCache(settings.cache_size)
        self.reader = ColdReader(store, metadata, settings, clock, scope)
        self.garbage = GarbageCollector(store, metadata, settings, clock, node_id=node.node_id)
        self.store_retries = RetryStats()
        self.on_writable: list[Callable[[], None]] = []
        """Called when `writable()` turns true again."""
        self._wal = wal
        self._wal_room = wal.capacity * 3 // 4
        """Bytes of the log that may wait for an upload."""
        self._scope = scope
        self._settings = settings
        self._released_bytes = 0
        self._clock = clock
        self.append_latency = LatencyHistogram()
        """From an append to its durability. One append at a time is timed: that is about one of
        each group commit, and costs the others a comparison.
        """
        self._timed: tuple[int, Timing] | None = None
        """The append that is timed, by its end position."""
        self._pace = UploadPace(clock, produced=lambda: self._released_bytes, fill=self._fill)
        self.uploader = Uploader(
            store=store,
            metadata=metadata,
            writer=writer,
            clock=clock,
            rng=rng,
            pace=self._pace,
            settings=settings,
        )
        self._uploads = UploadQueue(
            cache=self.cache,
            wal=wal,
            uploader=self.uploader,
            pace=self._pace,
            describe=self._describe,
            on_done=self._upload_done,
            clock=clock,
            scope=scope,
            settings=settings,
        )
        self.streams: dict[int, Stream] = {}
        self._appends = PendingAppends()
        self._takeovers = Takeovers(
            self.uploader, store=store, writer=writer, clock=clock, rng=rng, scope=scope
        )
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._was_writable = True
        self.hand_overs = HandOvers(self, self._uploads, clock)

    @classmethod
    async def open(
        cls,
        *,
        store: ObjectStore,
        open_wal: WalOpener,
        node: NodeIdentity,
        clock: Clock,
        rng: random.Random,
        settings: StorageSettings,
        scope: TaskScope,
        admit: Callable[[MetadataImage], Awaitable[None]] | None = None,
        founding: Sequence[Record] = (),
        on_registered: Callable[[MetadataLog], None] | None = None,
    ) -> StreamEngine:
        """Replay the metadata, register the node under its next epoch, commit what the WAL holds.

        The WAL is opened before the node registers, so that its lock comes before its fencing of an
        earlier incarnation; and with the cluster's id, so that another cluster's is refused.
        `admit` may refuse to go on before any of that (in an empty store the state that it is given
        names no cluster). A new cluster has the records `founding`, and is not made among
        backups. `on_registered` is called before what the WAL holds is committed, which may take
        long. Raises WrongLog (the WAL is not the one that the node wrote last), UnsupportedFormat,
        WalCorrupted, SettingsError, StoreUnavailable (after a few attempts; once it runs, the
        engine waits a failing store out).
        """
        incarnation = f"{rng.getrandbits(64):016x}"
        retrying = RetryingStore(store, rng=rng)
        metadata = await MetadataLog.open(
            retrying, writer_id=f"{node.node_id}/{incarnation}", clock=clock, rng=rng
        )
        if admit is not None:
            await admit(metadata.state)
        if not metadata.state.cluster_id:
            await refuse_backups(retrying)
        await metadata.create_cluster(f"{rng.getrandbits(128):032x}", founding)
        owner = _wal_owner(store, metadata, node, incarnation, clock, rng, scope)
        wal = await _open_own(open_wal, owner, metadata.state, node)
        try:
            writer, found = await register(metadata, node, incarnation, wal)
            engine = cls(
                store=retrying,
                wal=wal,
                metadata=metadata,
                node=node,
                writer=writer,
                clock=clock,
                rng=rng,
                settings=settings,
                scope=scope,
            )
            if on_registered is not None:
                on_registered(metadata)
            await engine._start_wal(log_in_cluster(retrying, owner), found)
        except BaseException:
            await wal.close()
            raise
        retrying.is_patient = True
        engine.store_retries = retrying.stats
        engine._start_tasks(scope)
        return engine

    async def _start_wal(self, in_cluster: LogSealer, found: LogIdentity | None) -> None:
        """Commit what the WAL holds of earlier epochs, and begin this one's."""
        self.uploader.positions_last = found is not None and found.end >= 0
        if self._wal.objects is None:
            await commit_tails(self._wal, self.uploader, self.node.node_id, self._scope)
        recovered = await recover_wal(
            self._wal,
            self.metadata,
            self.uploader,
            in_cluster,
            Owner(self.node.node_id, self.node_epoch),
            block_size=min(self._uploads.size, BLOCK_SIZE),
            scope=self._scope,
        )
        await self._wal.start(epoch=self.node_epoch, listener=self)
        await begin_log(self.metadata, self.writer, found, self._wal.released_position)
        if recovered is not None:
            await self._wal.trim(recovered)
            failpoint("wal_recovered")

    def _start_tasks(self, scope: TaskScope) -> None:
        scope.spawn(self._uploads.run(), name="upload")
        self._check_identity(self.metadata.state)
        self.metadata.subscribe(self._check_identity)
        self.metadata.follow(self.cache.follow)
        self.metadata.follow(self.reader.follow)
        scope.spawn(self.follower.run(), name="follow metadata")
        scope.spawn_loop(self.garbage.run, name="collect garbage")

    async def open_streams(self, stream_ids: Sequence[int]) -> list[Stream]:
        """Become the owner of streams, in one metadata entry. Raises EntryRejected, Fenced (others
        own some of them by the time that this is known).
        """
        if not stream_ids:
            return []
        epochs: dict[int, int] = {}

        def plan(state: MetadataImage) -> list[Record]:
            epochs.update((one, state.stream(one).epoch + 1) for one in stream_ids)
            return [
                OpenStream(
                    stream_id=stream_id,
                    epoch=epoch,
                    node_id=self.node.node_id,
                    node_epoch=self.node_epoch,
                )
                for stream_id, epoch in epochs.items()
            ]

        self.reader.expect_states(stream_ids)  # read while the entry is on its way
        state = await self.metadata.commit_with(plan)
        states = [state.stream(stream_id) for stream_id in stream_ids]
        # The present state may be newer than the entry: others' epochs are not to be written in.
        if moved := [one.stream_id for one in states if one.epoch != epochs[one.stream_id]]:
            raise Fenced(f"node {self.node.node_id}: streams {moved} have other owners already")
        opened = [Stream(self, one) for one in states]
        self.streams.update((stream.stream_id, stream) for stream in opened)
        return opened

    async def hand_over(self, stream_ids: Sequence[int]) -> None:
        """Give streams up, in one metadata entry: those open here, and those that an earlier epoch
        of this node had open. They take appends until nearly all is uploaded, and then no more
        (`is_open` turns false for good). May be repeated. Raises what stopped the engine.
        """
        await self.hand_overs.run(stream_ids)

    async def take_over(self, node: NodeState, open_log: OpenUnrecoveredWal) -> int:
        """Commit what a node, fenced in the epoch given, left in its log; return how many objects
        that were. Its streams may be opened (`NodeState.is_recovered`) before all of it is
        uploaded. May be repeated, and tried by several. Raises EntryRejected (it is not fenced),
        what `open_log` raises, StoreUnavailable, WalCorrupted, CorruptObject.
        """
        return await self._takeovers.run(node, open_log)

    def close_deleted(self, stream: Stream) -> None:
        """Forget a stream that was deleted from the metadata, or closed there."""
        stream.close()
        self.streams.pop(stream.stream_id, None)
        self.cache.forget(stream.stream_id)
        self.reader.forget(stream.stream_id)

    def append(
        self,
        stream: Stream,
        payload: memoryview,
        count: int,
        max_timestamp: int,
        on_done: OnDone | None,
    ) -> int:
        """Append a batch to a stream; see `Stream.append`. Return where it ends."""
        base_offset = stream.next_offset
        end_offset = base_offset + count
        try:
            position = self._wal.append(stream.stream_id, stream.epoch, base_offset, count, payload)
            batch = CachedBatch(base_offset, end_offset, stream.epoch, max_timestamp, payload)
            self._appends.waiting.append(PendingAppend(position, stream, batch, on_done))
        except LakeheadError:
            raise
        except BaseException as error:  # the log may get another record at these offsets
            self.broke_off(error)
            raise
        if self._timed is None:
            self._timed = position, Timing(self.append_latency, self._clock)
        return end_offset

    def broke_off(self, error: BaseException) -> None:
        """See `StreamServices.broke_off`."""
        self._uploads.stop(error)

    def writable(self) -> bool:
        """Return true if producers should be read from: WAL and cache are below their marks."""
        wal, cache = self._wal, self.cache
        self._was_writable = (
            cache.uncommitted < cache.capacity
            and (position := wal.next_position) - wal.trimmed_position < self._wal_room
            and position - wal.released_position < self._settings.wal_pending_max
            and not self._failure.done()
        )
        return self._was_writable

    def _fill(self) -> float:
        """Return the share of cache and WAL that waits for an upload: at 1 producers wait."""
        wal = self._wal
        used = (wal.next_position - wal.trimmed_position) / self._wal_room
        return max(used, self.cache.uncommitted / self.cache.capacity)

    async def wait_failed(self) -> Exception:
        """Return why this engine cannot go on: fenced, or its WAL failed. The node must stop."""
        return await asyncio.shield(self._failure)

    def fail(self, error: Exception) -> None:
        """Stop acknowledging anything, for good."""
        if not self._failure.done():
            self._failure.set_result(error)
        for stream in self.streams.values():
            stream.close()
        self._appends.fail(error, partial(self._scope.on_failure, "acknowledge"))

    async def upload_now(self) -> None:
        """Upload and commit everything that is confirmed. Raises what stopped the engine."""
        await self._uploads.all_now()
        self._check_alive()

    async def wait_durable(self) -> None:
        """Wait until what has been appended so far is durable. Raises what stopped the engine."""
        await self._appends.wait()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._failure.done():
            raise self._failure.result()

    async def close(self) -> None:
        """Make everything durable, upload it, close streams and WAL: a clean shutdown."""
        streams = list(self.streams.values())
        for stream in streams:
            stream.close()
        await self._appends.wait()
        if self._failure.done():
            await self._wal.close()
            return
        await self.upload_now()
        await self.metadata.commit_with(
            lambda state: [
                CloseStream(stream_id=stream.stream_id, epoch=stream.epoch)
                for stream in streams
                if state.is_open(stream.stream_id, stream.epoch)
            ]
        )
        failpoint("streams_closed")
        await self._wal.close()

    # The WAL's listener.

    def released(self, position: int) -> None:
        """Everything up to `position` is durable: cache it, move confirmed offsets, wake readers,
        complete requests. An error that nothing expects ends the engine: what has not come to the
        cache would be in no upload, and the next one would trim it from the log.
        """
        try:
            self._take_released(position)
        except Exception as error:
            self._uploads.stop(error)
            raise

    def _take_released(self, position: int) -> None:
        done: list[OnDone] = []
        advanced: dict[Stream, int] = {}
        waiting, cache, streams = self._appends.waiting, self.cache, self.streams
        while waiting and waiting[0].end_position <= position:
            append = waiting.popleft()
            stream, batch = append.stream, append.batch
            self._released_bytes += len(batch.payload)
            if streams.get(stream.stream_id) is stream:  # else deleted, and forgotten by the cache
                cache.add(stream.stream_id, batch)
            advanced[stream] = batch.end_offset
            if append.on_done is not None:
                done.append(append.on_done)
        for stream, end_offset in advanced.items():
            stream.confirm(end_offset)
        failpoint("wal_released")
        for stream in advanced:
            if stream.on_advance is not None:
                self._let_know(stream.on_advance)
        for on_done in done:
            try:  # an unexpected error of one of them does not reach the others
                on_done(None)
            except Exception as error:  # noqa: BLE001  # the root of an acknowledgement
                self._scope.on_failure("acknowledge", error)
        self._upload_due_states(advanced)
        self._uploads.check()
        self._appends.wake(position)
        self._check_writable()
        if self._timed is not None and self._timed[0] <= position:
            self._timed[1].stop()
            self._timed = None

    def _upload_due_states(self, streams: Iterable[Stream]) -> None:
        """Upload those first of whose state much has changed: it goes in portions."""
        due = [
            one.stream_id
            for one in streams
            if one.is_state_due is not None and one.is_state_due(one.confirmed_offset)
        ]
        if due and self.metadata.state.metadata_version >= STATES_LEVEL:
            self._uploads.start_ahead(due)

    def _let_know(self, on_advance: Callable[[], None]) -> None:
        """Call back those that wait for a stream; their unexpected error does not reach others."""
        try:
            on_advance()
        except Exception as error:  # noqa: BLE001  # the root of an acknowledgement
            self._scope.on_failure("acknowledge", error)

    def failed(self, error: Exception) -> None:
        """The WAL is broken: nothing that is on its way will be acknowledged."""
        _log.error("wal_failed", error=str(error), node_id=self.node.node_id)
        self.fail(error if isinstance(error, StorageError) else WalFailed(str(error)))

    def _check_writable(self) -> None:
        if not self._was_writable and self.writable():
            for callback in self.on_writable:
                callback()

    def _upload_done(self, error: Exception | None) -> None:
        if error is None:
            self._check_writable()
        else:
            self.fail(error)

    def _describe(self, stream_id: int, start_offset: int, end_offset: int) -> StreamInfo:
        """Describe offsets [start, end) of a stream for an object, with its partition state as of
        the end.
        """
        stream = self.streams.get(stream_id)
        state = self.metadata.state
        info = state.stream_info(stream_id, None)
        if stream is None or stream.state_snapshot is None:
            return info
        aborted = () if stream.aborted_by is None else stream.aborted_by(start_offset, end_offset)
        if state.metadata_version < STATES_LEVEL and stream.old_state_snapshot is not None:
            snapshot = stream.old_state_snapshot(end_offset)
        else:
            snapshot = stream.state_snapshot(start_offset, end_offset)
        return msgspec.structs.replace(
            info, state=snapshot.data, state_since=snapshot.since, aborted=tuple(aborted)
        )

    def _check_identity(self, state: MetadataImage) -> None:
        """Stop when another incarnation has taken this node's id."""
        node = state.nodes.get(self.node.node_id)
        if node is None or node.epoch != self.node_epoch or node.is_fenced:
            self.fail(Fenced(f"node {self.node.node_id} epoch {self.node_epoch} was fenced"))


class PendingAppend(msgspec.Struct, frozen=True):
    """A batch on its way; its record in the log ends at `end_position`."""

    end_position: int
    stream: Stream
    batch: CachedBatch
    on_done: OnDone | None


class PendingAppends:
    """`waiting` is added to at the end, and taken from at the front as it becomes durable."""

    __slots__ = ("_barriers", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[PendingAppend] = deque()
        self._barriers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def fail(self, error: Exception, on_failure: Callable[[Exception], None]) -> None:
        """End all that waits with an error, and wake the callers of `wait`. An unexpected error of
        one of them goes to `on_failure`, and does not reach the others.
        """
        while self.waiting:
            on_done = self.waiting.popleft().on_done
            if on_done is not None:
                try:
                    on_done(error)
                except Exception as unexpected:  # noqa: BLE001  # the root of an acknowledgement
                    on_failure(unexpected)
        self.wake(None)

    async def wait(self) -> None:
        """Wait until what has been appended so far is durable, or never will be."""
        if self.waiting:
            passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self.waiting[-1].end_position, passed))
            await asyncio.wait([passed])

    def wake(self, position: int | None) -> None:
        """Wake the callers of `wait` that waited for a position up to `position`; None: all."""
        barriers = self._barriers
        while barriers and (position is None or barriers[0][0] <= position):
            barriers.popleft()[1].set_result(None)


@dataclass(slots=True)
class HandOverStats:
    """Hand-overs since the start. Seconds are from the first refused append to the entry that
    closes the streams.
    """

    streams: int = 0
    batches: int = 0
    pause_s: float = 0.0
    """Summed over batches."""
    longest_pause_s: float = 0.0


class HandOvers:
    """The hand-overs of one engine."""

    def __init__(self, engine: StreamEngine, uploads: UploadQueue, clock: Clock) -> None:
        self.stats = HandOverStats()
        self._engine = engine
        self._uploads = uploads
        self._clock = clock

    async def run(self, stream_ids: Sequence[int]) -> None:
        """See `StreamEngine.hand_over`."""
        engine = self._engine
        streams = [engine.streams[one] for one in stream_ids if one in engine.streams]
        ids = frozenset(stream.stream_id for stream in streams)
        epochs = self._epochs(stream_ids)
        with self._uploads.others_held():
            await self._copy_ahead(ids)
            began = self._clock.monotonic()
            for stream in streams:
                stream.close()
            failpoint("hand_over_stopped")
            await engine.wait_durable()
            await self._uploads.finish(ids, epochs)
        pause = self._clock.monotonic() - began
        for stream in streams:
            engine.close_deleted(stream)
        self.stats.streams += len(stream_ids)
        self.stats.batches += 1
        self.stats.pause_s += pause
        self.stats.longest_pause_s = max(self.stats.longest_pause_s, pause)
        _log.info(
            "streams_resigned",
            node_id=engine.node.node_id,
            streams=len(stream_ids),
            pause_s=pause,
        )

    def _epochs(self, stream_ids: Sequence[int]) -> dict[int, int]:
        """Return the epochs under which streams are open here, or were in an earlier life of this
        node. One of those may be opened again while the others are copied: it is not closed then,
        since it takes appends.
        """
        opened, known = self._engine.streams, self._engine.metadata.state.streams
        found = ((one, opened.get(one) or known.get(one)) for one in stream_ids)
        return {stream_id: stream.epoch for stream_id, stream in found if stream is not None}

    async def _copy_ahead(self, ids: frozenset[int]) -> None:
        """Upload what these streams hold until little is left, though they go on growing."""
        for _ in range(_PASSES_MAX):
            await self._uploads.finish(ids)
            if self._uploads.waiting_bytes(ids) <= _REST_MAX:
                return


async def _open_own(
    open_wal: WalOpener, owner: WalOwner, state: MetadataImage, node: NodeIdentity
) -> WriteAheadLog:
    """Open the node's WAL; one is made only if nothing is lost with the one that it wrote last."""
    loss = log_loss(state, node.node_id, None)
    may_be_new = loss is None or accepts(node, loss)
    try:
        return await open_wal(replace(owner, may_be_new=may_be_new))
    except WrongLog as error:
        if loss is None:
            raise
        raise WrongLog(loss.describe(state, str(error))) from error


def _wal_owner(
    store: ObjectStore,
    metadata: MetadataLog,
    node: NodeIdentity,
    incarnation: str,
    clock: Clock,
    rng: random.Random,
    scope: TaskScope,
) -> WalOwner:
    return WalOwner(
        cluster_id=metadata.state.cluster_id,
        node_id=node.node_id,
        incarnation=incarnation,
        store=store,
        describe=lambda stream_id: metadata.state.stream_info(stream_id, None),
        clock=clock,
        rng=rng,
        scope=scope,
        claim=claim(metadata.state, node),
    )
