"""Giving streams up, so that another node may open them: soon after the decision, and with a pause
that depends neither on how much they hold nor on what else the node does.

While they still take appends, what they hold in memory alone is uploaded. Then they stop, the small
rest of theirs is uploaded apart from everything else, and the entry that commits it closes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from lakehead.storage.clock import Clock
from lakehead.storage.failpoints import failpoint
from lakehead.storage.stream.upload_queue import UploadQueue

if TYPE_CHECKING:
    from lakehead.storage.stream.engine import StreamEngine

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
    """The hand-overs of one engine."""

    def __init__(self, engine: "StreamEngine", uploads: UploadQueue, clock: Clock) -> None:
        self.stats = HandOverStats()
        self._engine = engine
        self._uploads = uploads
        self._clock = clock

    async def run(self, stream_ids: Sequence[int]) -> None:
        """See `StreamEngine.hand_over`."""
        engine = self._engine
        streams = [engine.streams[one] for one in stream_ids if one in engine.streams]
        ids = frozenset(stream.stream_id for stream in streams)
        with self._uploads.others_held():
            await self._copy_ahead(ids)
            began = self._clock.monotonic()
            for stream in streams:
                stream.close()
            failpoint("hand_over_stopped")
            await engine.wait_durable()
            await self._uploads.finish(ids, stream_ids)
        pause = self._clock.monotonic() - began
        for stream in streams:
            engine.close_deleted(stream)
        self.stats.streams += len(stream_ids)
        self.stats.batches += 1
        self.stats.pause_s += pause
        self.stats.longest_pause_s = max(self.stats.longest_pause_s, pause)
        _log.info(
            "streams_handed_over",
            node_id=engine.node.node_id,
            streams=len(stream_ids),
            pause_s=pause,
        )

    async def _copy_ahead(self, ids: frozenset[int]) -> None:
        """Upload what these streams hold until little is left, though they go on growing."""
        for _ in range(_PASSES_MAX):
            await self._uploads.finish(ids, ())
            if self._uploads.waiting_bytes(ids) <= _REST_MAX:
                return
