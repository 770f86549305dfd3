"""How far to read ahead of each reader of a stream.

A reader is known by where it is: a read that begins where an earlier one of the same stream ended
goes on with it, so several consumers of one stream at different places are told apart without
names. A reader that has to wait gets more, from 512 KiB up to 32 MiB; one whose data was evicted
before it came gets little for a minute.
"""

from collections import OrderedDict

from lakehead.storage.clock import Clock

READAHEAD_MIN = 512 * 1024
READAHEAD_MAX = 32 * 1024 * 1024
_IDLE_S = 60.0
_PENANCE_S = 60.0
_READERS_MAX = 256


class Reader:
    """One reader's place in a stream: it has read [offset, end), and is told what to fetch ahead.

    `mark` is where the next stretch is fetched: the middle of the last one, set by whoever
    fetches.
    """

    __slots__ = ("end", "mark", "meek_until", "offset", "size", "stream_id", "used_at")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.offset = self.end = -1
        self.size = self.mark = 0
        self.used_at = self.meek_until = 0.0


class Readahead:
    """The readers of a node. `room` is how many bytes all of them together may fetch ahead."""

    def __init__(self, clock: Clock, *, room: int) -> None:
        self._clock = clock
        self._room = room
        self._readers: OrderedDict[Reader, None] = OrderedDict()
        self._by_stream: dict[int, list[Reader]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def reader(self, stream_id: int, offset: int) -> Reader:
        """Return the reader that goes on at `offset`, or a new one.

        It may have been given less than was read for it, so a read inside its last one is its too.
        """
        self._expire()
        known = [
            reader
            for reader in self._by_stream.get(stream_id, ())
            if reader.offset <= offset <= reader.end
        ]
        if known:
            best = max(known, key=lambda reader: (reader.end == offset, reader.used_at))
        else:
            best = Reader(stream_id)
            self._by_stream.setdefault(stream_id, []).append(best)
        self._readers[best] = None
        self._readers.move_to_end(best)
        best.used_at = self._clock.monotonic()
        return best

    def advance(self, reader: Reader, offset: int, end: int, *, waited: bool) -> int:
        """Note a read of [offset, end) and return how many bytes to fetch ahead of `end` now.

        `waited`: some of it was not in memory, so the reader is faster than what is fetched ahead.
        """
        is_sequential = reader.offset < offset <= reader.end
        reader.offset, reader.end = offset, end
        if not is_sequential or end < reader.mark:
            return 0
        most = min(READAHEAD_MAX, self._share())
        if waited:
            reader.size = min(max(reader.size * 2, READAHEAD_MIN), most)
            if reader.used_at < reader.meek_until:
                reader.size = min(reader.size, READAHEAD_MIN)
        return min(reader.size, most)

    def wasted(self, reader: Reader) -> None:
        """Note that something fetched ahead for a reader was evicted before it was read."""
        reader.size = min(reader.size, READAHEAD_MIN)
        reader.meek_until = self._clock.monotonic() + _PENANCE_S

    def forget(self, stream_id: int) -> None:
        """Drop the readers of a stream."""
        for reader in self._by_stream.pop(stream_id, ()):
            del self._readers[reader]

    def _share(self) -> int:
        return self._room // max(1, sum(reader.size > 0 for reader in self._readers))

    def _expire(self) -> None:
        """Drop readers that have been idle for long, or are too many."""
        now = self._clock.monotonic()
        while self._readers:
            oldest = next(iter(self._readers))
            if len(self._readers) < _READERS_MAX and now - oldest.used_at < _IDLE_S:
                return
            del self._readers[oldest]
            readers = self._by_stream[oldest.stream_id]
            readers.remove(oldest)
            if not readers:
                del self._by_stream[oldest.stream_id]
