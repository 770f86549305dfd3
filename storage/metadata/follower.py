"""Follows the metadata log in the background and keeps it short.

One poll is one GET of the next number. While there is news it is made every `poll_s`; an idle
cluster is polled ever more slowly, down to every `poll_max_s`. `nudge` is for whoever hears of a
commit in another way: it only makes things quick.
"""

import asyncio

from lakehead.storage.metadata.log import MetadataLog

_SLOWER = 1.5


class MetadataFollower:
    """Polls and maintains a log; times in seconds, a checkpoint every so many entries."""

    def __init__(
        self, log: MetadataLog, *, poll_s: float, poll_max_s: float, checkpoint_entries: int
    ) -> None:
        self._log = log
        self._poll_s = poll_s
        self._poll_max_s = max(poll_s, poll_max_s)
        self._checkpoint_entries = checkpoint_entries
        self._nudged = asyncio.Event()
        self._is_polled = False
        self._until = 0

    def nudge(self, next_entry: int = 0) -> None:
        """Poll now: somebody has committed. `next_entry` is the number after the newest entry that
        they know: then these are read and nothing else.
        """
        if not next_entry:
            self._is_polled = True
        elif next_entry <= self._log.state.next_entry:
            return
        self._until = max(self._until, next_entry)
        self._nudged.set()

    async def run(self) -> None:
        """Follow until cancelled. Raises CorruptObject, UnsupportedFormat: this release cannot go
        on; StoreUnavailable, if the log's store gives up.
        """
        pause, seen = self._poll_s, self._log.state.next_entry
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            except TimeoutError:
                self._is_polled = True
            until = 0 if self._is_polled else self._until
            self._is_polled, self._until = False, 0
            self._nudged.clear()
            state = await self._log.refresh(until=until)
            is_news = state.next_entry != seen
            pause = self._poll_s if is_news else min(pause * _SLOWER, self._poll_max_s)
            seen = state.next_entry
            await self._log.maintain(self._checkpoint_entries)
