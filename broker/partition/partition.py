"""One partition on its leader: decides about each batch, synchronously, and lets its stream make it
durable.
"""

from collections import deque
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from broker.partition.batch_rules import checked_header
from broker.partition.producer_state import ProducerStates
from broker.protocol.errors import KafkaError
from storage.clock import Clock
from storage.format.record_batch import BatchHeader, patch, read_header
from storage.stream.stream import Stream

OnDone = Callable[[Exception | None], None]

_REPLAY_BYTES = 1024 * 1024


class Partition:
    """The leader of a partition. Made by `open`; all calls come from the node's loop."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: str,
        index: int,
        stream: Stream,
        producers: ProducerStates,
        clock: Clock,
        producer_expiration_ms: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.stream = stream
        self._producers = producers
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._repeats: deque[tuple[int, OnDone]] = deque()
        self._watchers: dict[object, Callable[[], None]] = {}
        stream.on_advance = self._advanced
        stream.state_snapshot = self._snapshot

    @classmethod
    async def open(
        cls,
        *,
        topic: str,
        topic_id: str,
        index: int,
        stream: Stream,
        clock: Clock,
        producer_expiration_ms: int,
    ) -> "Partition":
        """Read the newest producer state in objects and replay the batch headers after it."""
        blob, offset = await stream.load_state()
        producers = ProducerStates() if blob is None else ProducerStates.restore(blob)
        while offset < stream.confirmed_offset:
            for batch in await stream.fetch(offset, _REPLAY_BYTES):
                header = read_header(batch)
                if header.base_offset >= offset:
                    producers.replay(header, clock.now_ms())
                offset = header.end_offset
        return cls(
            topic=topic,
            topic_id=topic_id,
            index=index,
            stream=stream,
            producers=producers,
            clock=clock,
            producer_expiration_ms=producer_expiration_ms,
        )

    @property
    def leader_epoch(self) -> int:
        """The stream's epoch."""
        return self.stream.epoch

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.stream.start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what is durable."""
        return self.stream.confirmed_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what read-committed consumers see: the high watermark, for now."""
        return self.stream.confirmed_offset

    def produce(self, batch: memoryview, max_message_bytes: int, on_done: OnDone) -> int:
        """Check and append a producer's batch; return its base offset.

        `on_done` is called in order once it is durable, or with an error when nobody can know. A
        batch that repeats an earlier one is not appended again: its first offset is returned, and
        it is done when the first one is. Patches the batch in place. Raises KafkaError and what
        `Stream.append` raises: then nothing happened.
        """
        header = checked_header(batch, max_message_bytes)
        if header.producer_id >= 0:
            repeated = self._producers.check(header)
            if repeated is not None:
                self._done_at(repeated.end_offset, on_done)
                return repeated.base_offset
        return self._append(batch, header, on_done)

    def append(self, batch: memoryview, on_done: OnDone) -> int:
        """Append a batch of the broker's own; return its base offset. Like `produce`, without the
        checks.
        """
        return self._append(batch, read_header(batch), on_done)

    def watch(self, key: object, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the high watermark moves, until `unwatch(key)`."""
        self._watchers[key] = callback

    def unwatch(self, key: object) -> None:
        """Stop calling what `watch(key, …)` set."""
        self._watchers.pop(key, None)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch at or below `epoch` (KIP-101, KIP-279).

        (-1, -1) when the partition knows of none.
        """
        epochs = self.stream.epochs
        if epoch > self.leader_epoch:
            raise KafkaError(ErrorCode.unknown_leader_epoch)
        for place in range(len(epochs) - 1, -1, -1):
            if epochs[place][0] <= epoch:
                is_last = place == len(epochs) - 1
                return epochs[place][0], self.high_watermark if is_last else epochs[place + 1][1]
        return -1, -1

    def _append(self, batch: memoryview, header: BatchHeader, on_done: OnDone) -> int:
        stream = self.stream
        base_offset = stream.next_offset
        patch(batch, 0, base_offset, stream.epoch)
        stream.append(
            batch,
            count=header.last_offset_delta + 1,
            max_timestamp=header.max_timestamp,
            on_done=on_done,
        )
        if header.producer_id >= 0:
            self._producers.append(
                header, base_offset, stream.confirmed_offset, self._clock.now_ms()
            )
        return base_offset

    def _done_at(self, end_offset: int, on_done: OnDone) -> None:
        """Answer a repeated batch when the first one is durable."""
        if end_offset <= self.stream.confirmed_offset:
            on_done(None)
        else:
            self._repeats.append((end_offset, on_done))

    def _advanced(self) -> None:
        while self._repeats and self._repeats[0][0] <= self.stream.confirmed_offset:
            self._repeats.popleft()[1](None)
        for callback in list(self._watchers.values()):
            callback()

    def _snapshot(self, end_offset: int) -> bytes:
        self._producers.expire(self._clock.now_ms() - self._producer_expiration_ms)
        return self._producers.snapshot(end_offset)
