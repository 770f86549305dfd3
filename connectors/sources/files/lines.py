"""Lines of a file with the places where they end, in bounded memory."""

from collections.abc import Iterator
from typing import Protocol

import msgspec

_CHUNK_BYTES = 256 * 1024
_SHOWN_BYTES = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Readable(Protocol):
    """What gives bytes, in order."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line as it stands in a file."""

    text: bytes
    """Without its end (LF or CRLF); of a line that is too long only the beginning."""
    end: int
    """The position in the (uncompressed) file behind it and its end."""
    number: int
    """The first is 1."""
    is_too_long: bool = False
    has_cr: bool = False
    """Whether its end is CRLF."""
    is_ended: bool = True
    """Whether there is a line end: the last line of a file may have none."""


def lines(file: Readable, *, at: int, number: int, limit: int) -> Iterator[Line]:
    """Yield the lines of a file that stands at position `at`, before line `number`.

    A line of more than `limit` bytes is yielded as too long and is never in memory as a whole.
    """
    rest, skipped = b"", 0  # of a line without an end so far; bytes of it that were let go
    while chunk := file.read(_CHUNK_BYTES):
        parts = chunk.split(b"\n")
        parts[0] = rest + parts[0]
        rest = parts.pop()
        for part in parts:
            at += skipped + len(part) + 1
            yield _line(part, at, number, limit, skipped=skipped)
            number, skipped = number + 1, 0
        if len(rest) > limit + _CHUNK_BYTES:
            skipped += len(rest) - limit - 1
            rest = rest[: limit + 1]
    if rest or skipped:
        end = at + skipped + len(rest)
        yield _line(rest, end, number, limit, skipped=skipped, is_ended=False)


def _line(
    text: bytes, end: int, number: int, limit: int, *, skipped: int, is_ended: bool = True
) -> Line:
    if number == 1:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if skipped or len(text) > limit + 1:  # the one may be CR
        return Line(text[:_SHOWN_BYTES], end, number, is_too_long=True, is_ended=is_ended)
    has_cr = text.endswith(b"\r")
    text = text.removesuffix(b"\r")
    if len(text) > limit:
        return Line(text[:_SHOWN_BYTES], end, number, is_too_long=True, is_ended=is_ended)
    return Line(text, end, number, has_cr=has_cr, is_ended=is_ended)
