"""Giving streams up, so that another node may open them: soon after the decision, and with a pause
that depends neither on how much they hold nor on what else the node does.

While they still take appends, what they hold in memory alone is uploaded. Then they stop, the small
rest of theirs is uploaded apart from everything else, and the entry that commits it closes them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from storage.clock import Clock
from storage.failpoints import failpoint
from storage.stream.stream import Stream
from storage.stream.upload_queue import UploadQueue

_log = structlog.get_logger("storage.hand_over")

_REST_MAX = 1024 * 1024
_PASSES_MAX = 4


@dataclass(slots=True)
class HandOverStats:
    """What has been given up since the start. Seconds are from the first refused append to the
    entry that closes the streams.
    """

    streams: int = 0
    batches: int = 0
    pause_s: float = 0.0
    """Summed over batches."""
    longest_pause_s: float = 0.0


class HandOvers:
    """The hand-overs of one engine.

    `streams` are those that are open here; `wait_durable()` returns once everything appended so
    far is durable, and raises when it will never be; `forget(stream)` is called for each that has
    been closed.
    """

    def __init__(
        self,
        *,
        node_id: int,
        uploads: UploadQueue,
        streams: Mapping[int, Stream],
        wait_durable: Callable[[], Awaitable[None]],
        forget: Callable[[Stream], None],
        clock: Clock,
    ) -> None:
        self.stats = HandOverStats()
        self._node_id = node_id
        self._uploads = uploads
        self._streams = streams
        self._wait_durable = wait_durable
        self._forget = forget
        self._clock = clock

    async def run(self, stream_ids: Sequence[int]) -> None:
        """See `StreamEngine.hand_over`."""
        streams = [self._streams[one] for one in stream_ids if one in self._streams]
        ids = frozenset(stream.stream_id for stream in streams)
        with self._uploads.others_held():
            await self._copy_ahead(ids)
            began = self._clock.monotonic()
            for stream in streams:
                stream.is_open = False
            failpoint("hand_over_stopped")
            await self._wait_durable()
            await self._uploads.finish(ids, stream_ids)
        pause = self._clock.monotonic() - began
        for stream in streams:
            self._forget(stream)
        self.stats.streams += len(stream_ids)
        self.stats.batches += 1
        self.stats.pause_s += pause
        self.stats.longest_pause_s = max(self.stats.longest_pause_s, pause)
        _log.info(
            "streams_handed_over", node_id=self._node_id, streams=len(stream_ids), pause_s=pause
        )

    async def _copy_ahead(self, ids: frozenset[int]) -> None:
        """Upload what these streams hold until little is left, though they go on growing."""
        for _ in range(_PASSES_MAX):
            await self._uploads.finish(ids, ())
            if self._uploads.waiting_bytes(ids) <= _REST_MAX:
                return
