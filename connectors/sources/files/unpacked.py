"""Compressed files for what reads Python's files; an end that comes too early is noticed."""

import gzip
import zlib
from typing import Any

import zstandard

from lakehead.connectors.settings import Compression
from lakehead.connectors.sources.files.lines import Readable

UNPACKING_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What a compressed file that is cut or damaged is noticed by."""

_PACKED_BYTES = 2 * 1024
"""At a time: what they become may be thirty thousand times as much."""


def unpacked(packed: Any, compression: Compression) -> Readable:
    """Return the text of a compressed file, all its members or frames. Reading it raises one of
    UNPACKING_ERRORS where it is cut or damaged.
    """
    return gzip.GzipFile(fileobj=packed, mode="rb") if compression == "gzip" else _Frames(packed)


class _Frames:
    """The frames of a zstd file. zstandard's own reader takes an end within a frame for the end of
    the file.
    """

    def __init__(self, packed: Readable) -> None:
        self._packed = packed
        self._frame: Any = None
        self._rest = b""
        self._text = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""
        while not self._text:
            data = self._rest or self._packed.read(_PACKED_BYTES)
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return b""
            self._take(data)
        text, self._text = self._text[:size], self._text[size:]
        return bytes(text)

    def _take(self, data: bytes) -> None:
        frame = self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        self._text = memoryview(frame.decompress(data))
        self._rest = frame.unused_data if frame.eof else b""
        if frame.eof:
            self._frame = None
