"""Memory for jobs, in large pages: new memory in small ones costs as much as what is done in it.

Numpy asks for large pages for arrays of four megabytes and more, but only those pages become large
that lie wholly in one; so pieces are much larger than that, and what is never touched costs
nothing.
"""

import mmap
from typing import Any

import numpy as np

PIECE_BYTES = 32 * 1024 * 1024


class Arena:
    """Hands out memory of pieces, from the first to the last byte of each. A piece goes when
    nothing refers to it any more.
    """

    def __init__(self) -> None:
        self.free: Any = np.empty(0, np.uint8)
        """What is left of the newest piece: who uses some of its start sets it to the rest."""

    def new(self, size: int) -> Any:
        """Return a new piece, of at least so many bytes, in place of what is free."""
        self.free = np.empty(max(size, PIECE_BYTES), np.uint8)
        return self.free

    def room(self, size: int) -> Any:
        """Return what is free: at least so many bytes."""
        return self.free if len(self.free) >= size else self.new(size)


def zeros(shape: tuple[int, int]) -> Any:
    """Return a table of int64, all 0, whose memory is taken as it is used."""
    rows, columns = shape
    # Private: memory that could be shared has small pages.
    memory = mmap.mmap(-1, 8 * rows * columns, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(shape)
