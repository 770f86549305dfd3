"""The memory of requests and their responses, over the whole node (`request.memory.size`).

Its parts are shares of their own, so that one cannot use up the other: producers that wait for a
slow store do not stop consumers, and consumers that do not take their responses do not stop
producers. Each part may be exceeded by one request, see `MemoryPool`.
"""

from collections.abc import Callable, Iterable

from lakehead.broker.network.memory_shares import Holding, MemoryShares, ShareWait
from lakehead.storage.memory_pool import MemoryPool
from lakehead.storage.stream.inflating import InflatedBatches

Piece = bytes | bytearray | memoryview

FRAMES_SHARE, RESPONSES_SHARE, INFLATED_SHARE, SEARCHED_SHARE = 3 / 8, 3 / 8, 1 / 8, 1 / 8
UNCHARGED_FRAME = 512
"""Requests up to this size are part of what a connection costs anyway."""
SHORT_FRAME = 64 << 10
"""Requests up to this size may use all of the memory for frames, or three quarters if they are
Produce requests. Longer ones leave three eighths of it to them: a few that never arrive do not
stop short ones.
"""
_SHORT_PRODUCE_SHARE, _LONG_FRAMES_SHARE = 3 / 4, 5 / 8
RECEIVED_AT_ONCE = 128 << 10
"""Bytes of one read of a socket, at most."""
_UNKNOWN_READERS_SHARE = 3 / 4
"""Of the memory for responses, for Fetch requests of connections that have not taken records yet:
the rest is for clients that read, and for short responses.
"""
_PRODUCE, _FETCH = 0, 1
BETWEEN_NODES = frozenset({24, 27, 63})
"""AddPartitionsToTxn, WriteTxnMarkers, BrokerHeartbeat: their frames never wait for memory."""
_LONG_RESPONSES = frozenset({1, 3, 9, 15, 16, 32, 35, 46, 61, 65, 66, 69, 74, 75})
"""Fetch, Metadata, OffsetFetch; all that describe and list. They wait while untaken
responses use all of their memory. Others do not: groups and transactions stay alive.
"""
_RESPONSE_MIN = 1 << 20
_RESPONSE_OF_FULL = 64 << 10
"""Of requests that started before the memory was full."""


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
        self.response_shares = MemoryShares(self.responses)
        self.frame_shares = MemoryShares(self.frames)
        self.inflated = InflatedBatches(int(size * INFLATED_SHARE))
        """Batches of producers, decompressed to check their records."""
        self._pins: dict[int, int] = {}
        self.received = memoryview(bytearray(RECEIVED_AT_ONCE))
        """The buffer of one read. All connections share it: what is read is looked at, or kept
        elsewhere, before the next read.
        """
        self._much = self.frames.capacity * _LONG_FRAMES_SHARE / 2
        self._waiting = self.frame_shares.clients_waiting

    @property
    def has_much_room(self) -> bool:
        """Return true if every frame of one more read would be admitted: no client holds more than
        is free, and none waits.
        """
        return self.frames.used < self._much and not self._waiting

    def admit_frame(
        self, key: int, size: int, holding: Holding, granted: Callable[[], None]
    ) -> ShareWait | None:
        """Take the memory of a frame of `size` bytes, of the API with this key: None. Or else
        return what waits for it; `granted` is called when the memory is taken. `holding` is what
        its connection holds.
        """
        cost = frame_cost(size)
        if not cost or (key in BETWEEN_NODES and size <= SHORT_FRAME):
            holding.take(cost)
            return None
        if size > SHORT_FRAME:
            fraction = _LONG_FRAMES_SHARE
        else:
            fraction = _SHORT_PRODUCE_SHARE if key == _PRODUCE else 1.0
        return self.frame_shares.admit(holding, cost, granted, fraction)

    def admit_response(
        self, key: int, holding: Holding, granted: Callable[[], None], *, is_reader: bool
    ) -> ShareWait | None:
        """Let a request of the API with this key start: None. Or else return what waits for
        responses to be taken; `granted` is called then. `holding` is what its connection holds;
        `is_reader` says that its client has taken records before.
        """
        if key not in _LONG_RESPONSES:
            return None
        is_unknown = key == _FETCH and not is_reader
        fraction = _UNKNOWN_READERS_SHARE if is_unknown else 1.0
        return self.response_shares.admit(holding, 0, granted, fraction)

    def response_size_max(self) -> int:
        """Return how large the next response with records should be at most: a part of what is
        free, so that there is always something left for the next.
        """
        free = self.responses.capacity - self.responses.used
        return max(_RESPONSE_MIN, free // 4) if free > 0 else _RESPONSE_OF_FULL

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
