"""Memory that files are encoded into, piece by piece: a buffer that grows is copied each time."""

import numpy as np

from lakehead.lake.decode.memory import empty

CHUNK_BYTES = 4 << 20


class Chunks:
    """A file to write to, of any size, in memory."""

    def __init__(self) -> None:
        self._chunks: list[memoryview] = []
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append."""
        rest = memoryview(data)
        while rest:
            at = self.size % CHUNK_BYTES
            if at == 0:
                self._chunks.append(empty(CHUNK_BYTES, np.uint8).data)
            taken = min(len(rest), CHUNK_BYTES - at)
            self._chunks[-1][at : at + taken] = rest[:taken]
            self.size += taken
            rest = rest[taken:]
        return len(data)

    def flush(self) -> None:
        """Do nothing: it is in memory."""

    def close(self) -> None:
        """Do nothing: `pieces` is for afterwards."""

    def pieces(self) -> list[memoryview]:
        """Return what was written."""
        last = self.size - (len(self._chunks) - 1) * CHUNK_BYTES
        return [*self._chunks[:-1], *(chunk[:last] for chunk in self._chunks[-1:])]
