"""Opens and hands over the streams of one node, as the metadata log assigns them.

`note` judges what an entry names, at once; two tasks do what follows from it, in batches: one
opens, the other hands over. A partition serves from the moment its producer states are loaded until
its stream is handed over.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import structlog

from lakehead.broker.catalog.duties import Duty, News, duty_of
from lakehead.broker.partition.partition import open_partition
from lakehead.broker.partition.producer_table import ProducerLimits
from lakehead.broker.partition.topic import Topic, TopicRegistry
from lakehead.storage.clock import Clock
from lakehead.storage.errors import EntryRejected, LakeheadError, OutcomeUnknown
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope, task_group

LOADS_MAX = 16
"""Partitions whose producer states are read at once."""
OPENED_AT_ONCE = 500
HANDED_OVER_AT_ONCE = 100
"""Streams that move together: each waits for the last writes of all of them."""
_YIELD_EVERY = 64
_PAUSE_S = 0.1
_PAUSE_MAX_S = 30.0

PlaceCallback = Callable[[Topic, int], None]

_log = structlog.get_logger("broker.leadership")


class Leadership:
    """The streams that this node has open, and those that it is to open or to give up."""

    def __init__(
        self,
        engine: StreamEngine,
        topics: TopicRegistry,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
        *,
        limits: ProducerLimits,
    ) -> None:
        self.held: dict[int, Stream] = {}
        """What is open here, by stream id; perhaps not loaded yet."""
        self.on_opened: list[PlaceCallback] = []
        self.on_closed: list[PlaceCallback] = []
        self._engine = engine
        self._topics = topics
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self._limits = limits
        self._due: dict[Duty, dict[int, None]] = {
            duty: {} for duty in Duty if duty is not Duty.NOTHING
        }
        self._may_open = asyncio.Event()
        self._may_hand_over = asyncio.Event()
        self._changed: list[asyncio.Future[None]] = []
        self._batch_size = OPENED_AT_ONCE
        self.is_stopped = False

    async def start(self) -> None:
        """Open what is assigned to this node, then follow. Raises StorageError,
        UnsupportedFormat.
        """
        while self._due[Duty.OPEN]:
            await self._load_all(await self._open_some(), is_patient=False)
        self._scope.spawn(self._keep_opening(), name="open partitions")
        self._scope.spawn(self._keep_handing_over(), name="hand partitions over")

    def stop(self) -> None:
        """Open and hand over nothing more: the node ends. Nobody waits for that any more."""
        self.is_stopped = True
        self.tell()

    def note(self, state: ClusterState, news: News) -> None:
        """Judge what an entry is about."""
        stream_ids: Iterable[int] = news.stream_ids
        if news.is_everything:
            stream_ids = {*state.streams, *self.held, *self._tracked()}
        elif news.is_of_nodes:
            waiting = (*self._due[Duty.WAIT], *self._due[Duty.HAND_OVER])
            stream_ids = {*stream_ids, *waiting}
        for stream_id in stream_ids:
            self._judge(state, stream_id)
        self.tell()

    def forget(self, topic: Topic) -> None:
        """Drop the streams of a deleted topic."""
        for index, stream_id in enumerate(topic.stream_ids):
            for due in self._due.values():
                due.pop(stream_id, None)
            stream = self.held.pop(stream_id, None)
            if stream is not None:
                self._engine.close_deleted(stream)
                self._close_partition(topic, index)

    async def wait(self) -> None:
        """Wait until something has changed: ownership, or what is loaded here."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    def tell(self) -> None:
        """Wake those who `wait`."""
        waiters, self._changed = self._changed, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # Judging.

    def _tracked(self) -> set[int]:
        return {stream_id for due in self._due.values() for stream_id in due}

    def _judge(self, state: ClusterState, stream_id: int) -> None:
        for due in self._due.values():
            due.pop(stream_id, None)
        stream = state.streams.get(stream_id)
        if stream is None:
            return
        duty = duty_of(state, stream, self._engine.node.node_id, is_held=stream_id in self.held)
        if duty is not Duty.NOTHING:
            self._due[duty][stream_id] = None
        if duty is Duty.OPEN:
            self._may_open.set()
        elif duty is Duty.HAND_OVER:
            self._may_hand_over.set()

    def _judge_now(self, stream_ids: Iterable[int]) -> None:
        state = self._engine.metadata.state
        for stream_id in stream_ids:
            self._judge(state, stream_id)

    # Opening.

    async def _keep_opening(self) -> None:
        while True:
            await self._may_open.wait()
            self._may_open.clear()
            while self._due[Duty.OPEN] and not self.is_stopped:
                streams = await self._open_some()
                if streams:
                    loading = self._load_all(streams, is_patient=True)
                    self._scope.spawn_apart(loading, name="load partitions")

    async def _open_some(self) -> Sequence[Stream]:
        """Open streams that are to be opened, in one entry; none when the rules refuse it.

        Raises StorageError, but not EntryRejected.
        """
        batch = list(islice(self._due[Duty.OPEN], self._batch_size))
        try:
            streams = await self._engine.open_streams(batch)
        except OutcomeUnknown:
            return ()  # they are open or not: the state tells, and what is due follows from it
        except EntryRejected as error:
            # The log has moved on, and what is due with it; or the rules refuse one of them: that
            # one waits for news, the others do not wait for it.
            self._batch_size = max(1, len(batch) // 2)
            if len(batch) == 1 and batch[0] in self._due[Duty.OPEN]:
                _log.warning("stream_not_opened", stream_id=batch[0], error=str(error))
                del self._due[Duty.OPEN][batch[0]]
                self._due[Duty.WAIT][batch[0]] = None
            return ()
        self._batch_size = OPENED_AT_ONCE
        self._hold(streams)
        return streams

    def _hold(self, streams: Sequence[Stream]) -> None:
        state = self._engine.metadata.state
        for stream in streams:
            if stream.stream_id in state.streams:
                self.held[stream.stream_id] = stream
            else:  # deleted as soon as it was open
                self._engine.close_deleted(stream)
        self._judge_now(stream.stream_id for stream in streams)

    # Loading.

    async def _load_all(self, streams: Sequence[Stream], *, is_patient: bool) -> None:
        queue = iter(streams)

        async def load_some() -> None:
            for number, stream in enumerate(queue, 1):
                await self._load(stream, is_patient=is_patient)
                if not number % _YIELD_EVERY:
                    await asyncio.sleep(0)

        async with task_group() as group:
            for _ in range(min(LOADS_MAX, len(streams))):
                group.create_task(load_some())

    async def _load(self, stream: Stream, *, is_patient: bool, pause_s: float = _PAUSE_S) -> None:
        """Load a partition, and serve it if it is still held here. Patient: try again later when
        that fails, and let others come first.
        """
        if not self._is_held(stream):
            return
        topic, index = self._place(stream.stream_id)
        try:
            partition = await open_partition(topic, index, stream, self._clock, limits=self._limits)
        except Exception as error:
            if not is_patient:
                raise
            where = f"{topic.name}-{index}"
            if not isinstance(error, LakeheadError):
                self._scope.on_failure(f"load {where}", error)
            if self._is_held(stream):
                _log.error("partition_not_loaded", partition=where, error=str(error))
                self._scope.spawn_apart(self._load_later(stream, pause_s), name=f"load {where}")
            return
        if self._is_held(stream):
            topic.partitions[index] = partition
            self.tell()
            for callback in self.on_opened:
                callback(topic, index)

    async def _load_later(self, stream: Stream, pause_s: float) -> None:
        await asyncio.sleep(pause_s * (0.5 + self._rng.random()))
        await self._load(stream, is_patient=True, pause_s=min(pause_s * 2, _PAUSE_MAX_S))

    def _is_held(self, stream: Stream) -> bool:
        return stream.is_open and self.held.get(stream.stream_id) is stream

    # Handing over.

    async def _keep_handing_over(self) -> None:
        pause = _PAUSE_S
        while True:
            await self._may_hand_over.wait()
            self._may_hand_over.clear()
            while self._due[Duty.HAND_OVER] and not self.is_stopped:
                batch = list(islice(self._due[Duty.HAND_OVER], HANDED_OVER_AT_ONCE))
                try:
                    await self._hand_over(batch)
                    pause = _PAUSE_S
                except LakeheadError as error:
                    _log.error("hand_over_failed", partitions=len(batch), error=str(error))
                    await asyncio.sleep(pause * (0.5 + self._rng.random()))
                    pause = min(pause * 2, _PAUSE_MAX_S)

    async def _hand_over(self, stream_ids: Sequence[int]) -> None:
        await self._engine.hand_over(stream_ids)
        for stream_id in stream_ids:
            stream = self.held.get(stream_id)
            if stream is None or stream.is_open:
                continue  # left open by an earlier life of this node, or deleted meanwhile
            del self.held[stream_id]
            self._close_partition(*self._place(stream_id))
        self._judge_now(stream_ids)
        self.tell()

    def _place(self, stream_id: int) -> tuple[Topic, int]:
        """Return the topic and the index of a stream's partition; it is not deleted."""
        stream = self._engine.metadata.state.streams[stream_id]
        return self._topics.by_id[bytes.fromhex(stream.topic_id)], stream.partition

    def _close_partition(self, topic: Topic, index: int) -> None:
        partition = topic.partitions[index]
        topic.partitions[index] = None
        if partition is not None:
            partition.wake()
            for callback in self.on_closed:
                callback(topic, index)
