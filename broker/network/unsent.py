"""Responses on their way to one client. The socket gets a little at a time, so that bytes that the
client does not take can be measured, charged to the node's memory, and released as they are taken.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

from lakehead.broker.network.memory_shares import Holding
from lakehead.broker.network.request_memory import Piece, RequestMemory

WRITE_SIZE = 4 << 20
"""Given to the transport at once, which keeps all of it in memory until the last byte is taken."""
RATE_MIN = 64 << 10
"""Bytes per second. A client that takes less does not take its responses."""
EXACT_S = 1.0
"""Responses that a client has not taken for so long are charged for the buffers that they hold,
which others may hold as well; until then for their length, which costs no look at each batch.
"""


class UnsentResponses:
    """Pieces of responses that the client has not taken. The transport's buffer must have a limit
    of 0: it says at once (`pause_writing`) that it could not send everything. `holding` is the
    part of the client's share that the connection holds; `now` is monotonic time.
    """

    __slots__ = (
        "_ends",
        "_given",
        "_given_size",
        "_holding",
        "_is_exact",
        "_memory",
        "_pieces",
        "_position",
        "_seen_at",
        "_seen_taken",
        "_sent",
        "_transport",
        "is_paused",
    )

    def __init__(
        self,
        memory: RequestMemory,
        transport: asyncio.Transport,
        holding: Holding,
        now: float,
    ) -> None:
        self._memory = memory
        self._holding = holding
        self._transport = transport
        self._pieces: list[Piece] = []
        """Not given to the transport yet."""
        self._ends: list[int] = []
        """Positions at which they end, in all that ever waited here."""
        self._position = 0
        """The position at which the first of them begins."""
        self._given: Sequence[Piece] = ()
        """Given to the transport, which has not sent all of it."""
        self._given_size = 0
        self.is_paused = False
        """True if the transport could not send everything."""
        self._is_exact = False
        """True if what is held is charged by buffers, not by length."""
        self._sent = 0
        self._seen_taken = 0
        self._seen_at = now

    @property
    def size(self) -> int:
        """Bytes that the client has not taken."""
        if not self.is_paused:
            return 0
        return self._waiting + self._transport.get_write_buffer_size()

    @property
    def _waiting(self) -> int:
        return self._ends[-1] - self._position if self._ends else 0

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after what waits already."""
        size = sum(map(len, pieces))
        self._sent += size
        if not self.is_paused and size <= WRITE_SIZE:
            if not self._write(pieces):
                self._charge(pieces, size)
                self._given, self._given_size = pieces, size
            return
        self._charge(pieces, size)
        begin = self._position + self._waiting
        self._ends.extend(islice(accumulate(map(len, pieces), initial=begin), 1, None))
        self._pieces.extend(pieces)
        self._go_on()

    def deaf_s(self, now: float) -> float:
        """Return for how many seconds the client has taken less than `RATE_MIN` of what waits for
        it. To be called every second or so, with the monotonic time.
        """
        if not self.is_paused:
            self._seen_at, self._seen_taken = now, self._sent
            return 0.0
        taken = self._sent - self.size
        if taken - self._seen_taken >= RATE_MIN * (now - self._seen_at):
            self._seen_at, self._seen_taken = now, taken
        seconds = now - self._seen_at
        if seconds >= EXACT_S and not self._is_exact:
            self._charge_exactly()
        return seconds

    def pause(self) -> None:
        """Take note that the transport could not send everything."""
        self.is_paused = True

    def resume(self) -> None:
        """Take note that it has, and send on."""
        self.is_paused = False
        self._release_given()
        self._go_on()

    def flush(self) -> None:
        """Give all that is left to the transport, which is about to be closed."""
        if not self._pieces:
            return
        pieces, size = self._pieces, self._waiting
        self._clear()
        self._transport.writelines(pieces)
        self._given = [*self._given, *pieces]
        self._given_size += size

    def drop(self) -> None:
        """Let go of everything: the connection is lost."""
        self._release_given()
        self._release(self._pieces, self._waiting)
        self._clear()

    def _clear(self) -> None:
        self._position += self._waiting
        self._pieces, self._ends = [], []

    def _go_on(self) -> None:
        while self._pieces and not self.is_paused:
            taken, size = self._take()
            if self._write(taken):
                self._release(taken, size)
            else:
                self._given, self._given_size = taken, size

    def _take(self) -> tuple[list[Piece], int]:
        """Return the next pieces, or a part of one that is longer than what is written at once,
        with their length.
        """
        begin = self._position
        count = bisect_right(self._ends, begin + WRITE_SIZE)
        if count:
            taken = self._pieces[:count]
            self._position = self._ends[count - 1]
            del self._pieces[:count], self._ends[:count]
        else:
            view = memoryview(self._pieces[0])
            taken = [view[:WRITE_SIZE]]
            self._pieces[0] = view[WRITE_SIZE:]
            self._position = begin + WRITE_SIZE
            if self._is_exact:
                self._memory.pin(taken)
        return taken, self._position - begin

    def _write(self, pieces: Sequence[Piece]) -> bool:
        """Give pieces to the transport. Return whether it has sent all of them: else it has called
        `pause`.
        """
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        return not self.is_paused

    # The charge to the node's memory.

    def _charge(self, pieces: Sequence[Piece], size: int) -> None:
        self._holding.note(size)
        if self._is_exact:
            self._memory.pin(pieces)
        else:
            self._memory.responses.take(size)

    def _release(self, pieces: Sequence[Piece], size: int) -> None:
        self._holding.note(-size)
        if self._is_exact:
            self._memory.unpin(pieces)
        else:
            self._memory.responses.give_back(size)

    def _release_given(self) -> None:
        given, size = self._given, self._given_size
        self._given, self._given_size = (), 0
        self._release(given, size)
        if not self._pieces:
            self._is_exact = False

    def _charge_exactly(self) -> None:
        held = [*self._given, *self._pieces]
        self._memory.pin(held)
        self._memory.responses.give_back(self._given_size + self._waiting)
        self._is_exact = True
