"""How many bytes of cold reads are on their way at once, over the whole node, and whose turn it is.

What a consumer waits for comes before what is fetched ahead, and within each the streams take
turns: one that wants much delays another by one GET, not by all of its own.
"""

import asyncio
from collections import OrderedDict, deque


class Ticket:
    """A read that waits for its turn."""

    __slots__ = ("granted", "is_urgent", "size", "stream_id")

    def __init__(self, stream_id: int, size: int, is_urgent: bool) -> None:
        self.stream_id = stream_id
        self.size = size
        self.is_urgent = is_urgent
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


_Queue = OrderedDict[int, deque[Ticket]]


class ReadBudget:
    """`capacity` bytes in flight; one read alone may be larger. A quarter is not for readahead."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_flight = 0
        self._urgent: _Queue = OrderedDict()
        self._ahead: _Queue = OrderedDict()

    async def acquire(self, ticket: Ticket) -> None:
        """Wait for the turn of a read. `release` follows, whatever becomes of the read."""
        self._enqueue(ticket)
        self._grant()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.cancelled():
                self._remove(ticket)
            else:
                self.release(ticket)
            raise

    def release(self, ticket: Ticket) -> None:
        """Give back what a read took."""
        self.in_flight -= ticket.size
        self._grant()

    def hurry(self, ticket: Ticket) -> None:
        """Make a read that was fetched ahead one that somebody waits for, queued already or not."""
        if not ticket.is_urgent:
            waits = self._remove(ticket)
            ticket.is_urgent = True
            if waits:
                self._enqueue(ticket)
                self._grant()

    def _enqueue(self, ticket: Ticket) -> None:
        queue = self._urgent if ticket.is_urgent else self._ahead
        queue.setdefault(ticket.stream_id, deque()).append(ticket)

    def _remove(self, ticket: Ticket) -> bool:
        """Take a read out of its queue; False: it was in none."""
        queue = self._urgent if ticket.is_urgent else self._ahead
        tickets = queue.get(ticket.stream_id)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        if not tickets:
            del queue[ticket.stream_id]
        return True

    def _grant(self) -> None:
        for queue, limit in (
            (self._urgent, self.capacity),
            (self._ahead, self.capacity * 3 // 4),
        ):
            while queue:
                stream_id, tickets = next(iter(queue.items()))
                ticket = tickets[0]
                is_gone = ticket.granted.cancelled()
                if not is_gone and self.in_flight and self.in_flight + ticket.size > limit:
                    return
                tickets.popleft()
                if tickets:
                    queue.move_to_end(stream_id)
                else:
                    del queue[stream_id]
                if not is_gone:
                    self.in_flight += ticket.size
                    ticket.granted.set_result(None)
