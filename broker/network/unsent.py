"""Responses on their way to one client. The socket is given a little at a time, so that what the
client does not take can be told, charged to the node's memory, and let go of as it is taken.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from broker.network.request_memory import Piece, RequestMemory

WRITE_SIZE = 4 << 20
"""Given to the transport at once, which keeps all of it in memory until the last byte is taken."""
RATE_MIN = 64 << 10
"""Bytes per second. A client that takes less does not take its responses."""


class UnsentResponses:
    """Pieces of responses that the client has not taken. The transport's buffer must have a limit
    of 0: it says at once (`pause_writing`) that it could not send everything. `now` is monotonic
    time.
    """

    __slots__ = (
        "_given",
        "_is_paused",
        "_memory",
        "_pieces",
        "_seen_at",
        "_seen_taken",
        "_sent",
        "_size",
        "_transport",
    )

    def __init__(self, memory: RequestMemory, transport: asyncio.Transport, now: float) -> None:
        self._memory = memory
        self._transport = transport
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self._given: Sequence[Piece] = ()
        self._is_paused = False
        self._sent = 0
        self._seen_taken = 0
        self._seen_at = now

    @property
    def size(self) -> int:
        """Bytes that the client has not taken."""
        if not self._is_paused:
            return 0
        return self._size + self._transport.get_write_buffer_size()

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after what waits already."""
        size = sum(map(len, pieces))
        self._sent += size
        if not self._is_paused and size <= WRITE_SIZE:
            self._give(pieces)
            return
        pieces = [piece for piece in pieces if len(piece)]
        self._memory.pin(pieces)
        self._pieces.extend(pieces)
        self._size += size
        self._go_on()

    def deaf_s(self, now: float) -> float:
        """Return for how many seconds the client has taken less than `RATE_MIN` of what waits for
        it. To be asked every second or so, with the monotonic time.
        """
        if not self._is_paused:
            self._seen_at, self._seen_taken = now, self._sent
            return 0.0
        taken = self._sent - self.size
        if taken - self._seen_taken >= RATE_MIN * (now - self._seen_at):
            self._seen_at, self._seen_taken = now, taken
        return now - self._seen_at

    def pause(self) -> None:
        """Take note that the transport could not send everything."""
        self._is_paused = True

    def resume(self) -> None:
        """Take note that it has, and send on."""
        self._is_paused = False
        given, self._given = self._given, ()
        self._memory.unpin(given)
        self._go_on()

    def flush(self) -> None:
        """Give all that is left to the transport, which is about to be closed."""
        pieces, self._pieces = self._pieces, deque()
        self._size = 0
        if pieces:
            self._transport.writelines(list(pieces))
            self._given = [*self._given, *pieces]

    def drop(self) -> None:
        """Let go of everything: the connection is lost."""
        self._memory.unpin(self._given)
        self._memory.unpin(self._pieces)
        self._given = ()
        self._pieces.clear()
        self._size = 0

    def _go_on(self) -> None:
        while self._pieces and not self._is_paused:
            taken = self._take()
            self._transport.writelines(taken)  # this may pause it
            if self.size:
                self._given = taken
            else:
                self._memory.unpin(taken)

    def _take(self) -> list[Piece]:
        """Return the next pieces, and a part of one that is longer than what is written at once."""
        pieces, room = self._pieces, WRITE_SIZE
        taken: list[Piece] = []
        while pieces and room > 0:
            piece = pieces.popleft()
            if len(piece) > room:
                view = memoryview(piece)
                taken.append(view[:room])
                self._memory.pin(taken[-1:])
                pieces.appendleft(view[room:])
                self._size -= room
                break
            taken.append(piece)
            room -= len(piece)
            self._size -= len(piece)
        return taken

    def _give(self, pieces: Sequence[Piece]) -> None:
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        if self._is_paused:
            self._memory.pin(pieces)
            self._given = pieces
