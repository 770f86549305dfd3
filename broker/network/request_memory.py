"""The memory of requests and their responses, over the whole node (`request.memory.size`).

Its parts are shares of their own, so that one cannot use up the other: producers that wait for a
slow store do not stop consumers, and consumers that do not take their responses do not stop
producers. Each part may be exceeded by one request, see `MemoryPool`.
"""

from collections.abc import Callable, Iterable

from lakehead.storage.memory_pool import MemoryPool, PoolWait
from lakehead.storage.stream.inflating import InflatedBatches

Piece = bytes | bytearray | memoryview

FRAMES_SHARE, RESPONSES_SHARE, INFLATED_SHARE, SEARCHED_SHARE = 3 / 8, 3 / 8, 1 / 8, 1 / 8
UNCHARGED_FRAME = 512
"""Requests up to this size are part of what a connection costs anyway."""
SHORT_FRAME = 64 << 10
"""Requests up to this size, other than Produce, may use all of the memory for frames; others leave
a quarter of it to them.
"""
_LONG_FRAMES_SHARE = 0.75
_PRODUCE = 0
BETWEEN_NODES = frozenset({24, 27, 63})
"""AddPartitionsToTxn, WriteTxnMarkers, BrokerHeartbeat: their frames never wait for memory."""
_ANSWERED_AT_LENGTH = frozenset({1, 3, 9, 15, 16, 32, 35, 46, 61, 65, 66, 69, 74, 75})
"""Fetch, Metadata, OffsetFetch; all that describe and list. They wait while untaken
responses use all of their memory. Others do not: groups and transactions stay alive.
"""
_RESPONSE_MIN = 1 << 20


class RequestMemory:
    """The parts of `size` bytes, but for what searches decompress, which is the storage engine's
    (`StorageSettings.search_memory_max`).
    """

    def __init__(self, size: int) -> None:
        self.frames = MemoryPool(int(size * FRAMES_SHARE))
        """Requests that arrive, wait for their turn, or are looked at. Batches that are appended
        are charged to the log cache.
        """
        self.responses = MemoryPool(int(size * RESPONSES_SHARE))
        """Responses that clients have not taken, and cold reads for responses."""
        self.inflated = InflatedBatches(int(size * INFLATED_SHARE))
        """Batches of producers, decompressed to check their records."""
        self._pins: dict[int, int] = {}

    def admit_frame(self, key: int, size: int, granted: Callable[[], None]) -> PoolWait | None:
        """Take the memory of a frame of `size` bytes, of the API with this key: None. Or else
        return what waits for it; `granted` is called when the memory is taken.
        """
        frames, cost = self.frames, frame_cost(size)
        if not cost:
            return None
        if key in BETWEEN_NODES and size <= SHORT_FRAME:
            frames.take(cost)
            return None
        share = 1.0 if size <= SHORT_FRAME and key != _PRODUCE else _LONG_FRAMES_SHARE
        return None if frames.try_take(cost, share) else frames.wait(cost, share, granted)

    def admit_response(self, key: int, granted: Callable[[], None]) -> PoolWait | None:
        """Let a request of the API with this key start: None. Or else return what waits for
        responses to be taken; `granted` is called then.
        """
        if key not in _ANSWERED_AT_LENGTH or self.responses.has_room():
            return None
        return self.responses.wait(0, 1.0, granted)

    def response_size_max(self) -> int:
        """Return how large the next response with records should be at most: a part of what is
        free, so that there is always something left for the next.
        """
        free = self.responses.capacity - self.responses.used
        return max(_RESPONSE_MIN, free // 4)

    def pin(self, pieces: Iterable[Piece]) -> None:
        """Charge what pieces of a response hold in memory: each buffer once, however many pieces
        of however many responses are views of it.
        """
        pins = self._pins
        for piece in pieces:
            buffer = _buffer(piece)
            count = pins.get(id(buffer), 0)
            pins[id(buffer)] = count + 1
            if not count:
                self.responses.take(memoryview(buffer).nbytes)

    def unpin(self, pieces: Iterable[Piece]) -> None:
        """Give back what `pin` charged for the same pieces."""
        pins = self._pins
        for piece in pieces:
            buffer = _buffer(piece)
            count = pins[id(buffer)] - 1
            if count:
                pins[id(buffer)] = count
            else:
                del pins[id(buffer)]
                self.responses.give_back(memoryview(buffer).nbytes)


def frame_cost(size: int) -> int:
    """Return the bytes that a frame of `size` bytes is charged."""
    return size if size > UNCHARGED_FRAME else 0


def _buffer(piece: Piece) -> Piece:
    """Return what a piece keeps in memory."""
    return piece.obj if isinstance(piece, memoryview) else piece  # type: ignore[return-value]
