"""Inflates many batches one after another, zstd with a context that is used again.

Needs zstandard, of the extra `compaction`. cramjam, which a broker has for the few batches that it
reads itself, makes a context for each batch: at 16 KiB that is 1.6 times the CPU.
"""

import zstandard

from lakehead.storage.format.compression import ZSTD, BufferTooSmall, inflate_into


class Inflater:
    """Inflates the records of batches into given buffers. Belongs to one thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def inflate_into(self, codec: int, source: memoryview, target: memoryview) -> int:
        """Inflate `source` to the start of `target`; return the number of bytes written. Zstd
        that is cut short gives what is there, without an error.

        Raises BufferTooSmall, ValueError (not the codec's format; unknown codec).
        """
        if codec != ZSTD:
            return inflate_into(codec, source, target)
        try:
            reader = self._zstd.stream_reader(source, read_across_frames=True)
            size: int = reader.readinto(target)
            if size == len(target) and reader.read(1):
                raise BufferTooSmall
        except zstandard.ZstdError as error:
            raise ValueError(f"not zstd: {error}") from None
        return size
