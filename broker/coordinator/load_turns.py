"""Turns of the event loop for what several shards load at once: one piece of one of them in each.

A node that takes over another one loads fifty shards together, which would be one long turn if each
gave way for itself.
"""

import asyncio
from collections import deque


class LoadTurns:
    """The loads that wait for their turn, in order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def give_way(self) -> None:
        """Let other work have its turn, and the pieces of other loads that waited before."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # done: its load was cancelled
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
