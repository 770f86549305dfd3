"""Large memory that is used again, as NumPy arrays and Arrow buffers.

Fresh pages of the kernel cost 0.55 ns for each byte on the machine of the benchmarks, more than all
the rest of a decode, and no allocator keeps large pieces for long: `numpy.empty` takes new ones
each time, Arrow's pool gives them back while the other threads work. So pieces of a megabyte and
more come in sizes of powers of two, and are kept here while they are unused, up to
`KEPT_BYTES_MAX`.
"""

import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEPT_BYTES_MAX = 256 << 20
"""Limit of unused pieces in a process: about what two workers of a job use."""
SIZE_MIN, SIZE_MAX = 1 << 20, 64 << 20
"""The size of a piece that is kept. Smaller and larger ones are from Arrow's pool."""


class _Free:
    """Unused pages. A collection of garbage may give some back in the middle of anything, hence a
    lock that its holder can take again.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._lock = threading.RLock()
        self._pages: dict[int, list[mmap.mmap]] = {}
        self._size_bytes_max = size_bytes_max
        self.size_bytes = 0

    def take(self, size: int) -> mmap.mmap:
        with self._lock:
            if self._pages.get(size):
                self.size_bytes -= size
                return self._pages[size].pop()
        # Private: a forked child must not write into its parent's.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages

    def give(self, pages: mmap.mmap) -> None:
        size = len(pages)
        with self._lock:
            if self.size_bytes + size <= self._size_bytes_max:
                self.size_bytes += size
                self._pages.setdefault(size, []).append(pages)


_free = _Free(KEPT_BYTES_MAX)


class _Piece(ctypes.Array[ctypes.c_uint8]):
    """Memory with an owner: whatever is made of it without a copy refers to it, and when nothing
    does any more it is free.
    """

    _type_ = ctypes.c_uint8
    _length_ = SIZE_MIN
    pages: mmap.mmap

    # The default is there even when the interpreter ends and names are gone.
    def __del__(self, give: Callable[[mmap.mmap], None] = _free.give) -> None:
        give(self.pages)


_KINDS: dict[int, type[_Piece]] = {
    1 << bits: type("_Piece", (_Piece,), {"_length_": 1 << bits})
    for bits in range(SIZE_MIN.bit_length() - 1, SIZE_MAX.bit_length())
}


def _piece(size: int) -> _Piece:
    size = 1 << (size - 1).bit_length()
    pages = _free.take(size)
    piece = _KINDS[size].from_buffer(pages)
    piece.pages = pages
    return piece


def empty(count: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array of `count` elements. It keeps its memory, and so does whatever
    is made of it without a copy.
    """
    if not count:  # NumPy makes no array of an empty buffer
        return np.empty(0, kind)
    size = count * np.dtype(kind).itemsize
    if SIZE_MIN <= size <= SIZE_MAX:
        return np.frombuffer(memoryview(_piece(size)), kind, count)
    return np.frombuffer(pa.allocate_buffer(size), kind)


def zeros(count: int, kind: type[Any]) -> npt.NDArray[Any]:
    """Return an array of `count` zeros, as `empty` does."""
    array = empty(count, kind)
    array.fill(0)
    return array
