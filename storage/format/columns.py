"""Columns of a table in memory: what a checkpoint holds of a cluster, a few bytes a value instead
of Python objects.

A column is read by row. Building one and reading one from a file give the same bytes, so a built
column serves as if it had been read.
"""

import struct
from array import array
from collections.abc import Generator, Iterable, Iterator
from itertools import islice

_STEP = 32 * 1024
_LENGTH = struct.Struct("<I").unpack_from


class Longs:
    """64-bit integers."""

    __slots__ = ("values",)

    def __init__(self, values: "Iterable[int] | memoryview") -> None:
        # An array or a view of what was read: both index, slice and bisect in place.
        self.values = values if isinstance(values, memoryview) else memoryview(array("q", values))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> int:
        return self.values[row]

    def plain(self, start: int, end: int) -> bytes:
        """Return rows [start, end) as a file holds them."""
        return self.values[start:end].tobytes()


class Doubles:
    """64-bit floating point numbers."""

    __slots__ = ("values",)

    def __init__(self, values: "Iterable[float] | memoryview") -> None:
        self.values = values if isinstance(values, memoryview) else memoryview(array("d", values))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> float:
        return self.values[row]

    def plain(self, start: int, end: int) -> bytes:
        """Return rows [start, end) as a file holds them."""
        return self.values[start:end].tobytes()


class Flags:
    """Booleans, a byte each in memory and a bit each in a file."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[int]) -> None:
        self.values = bytes(values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> bool:
        return self.values[row] != 0

    def plain(self, start: int, end: int) -> bytes:
        """Return rows [start, end) as a file holds them."""
        bits = self.values[start:end][::-1].translate(_TO_DIGIT)
        size = -(-(end - start) // 8)
        return int(bits or b"0", 2).to_bytes(size, "little")

    @classmethod
    def of_plain(cls, data: bytes, rows: int) -> "Flags":
        """Return the flags of a page."""
        return cls(b"".join(map(_BITS.__getitem__, data))[:rows])


_TO_DIGIT = bytes([0x30, *[0x31] * 255])
_BITS = [bytes(byte >> bit & 1 for bit in range(8)) for byte in range(256)]


class Words:
    """Strings of which there are few different ones: a byte a value."""

    __slots__ = ("codes", "words")

    def __init__(self, codes: bytes, words: tuple[str, ...]) -> None:
        assert len(words) <= 256
        self.codes = codes
        self.words = words

    @classmethod
    def of(cls, values: Iterable[str]) -> "Words":
        """Return a column of these values."""
        known: dict[str, int] = {}
        codes = bytes(known.setdefault(value, len(known)) for value in values)
        return cls(codes, tuple(known))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.words[self.codes[row]]


class Texts:
    """Strings, as UTF-8 with a length before each, and where each begins."""

    __slots__ = ("data", "starts")

    def __init__(self, data: bytes, starts: "array[int]") -> None:
        self.data = data
        self.starts = starts

    @classmethod
    def reading(cls, data: bytes) -> Generator[None, None, "Texts"]:
        """Find where each value begins, step by step. Raises ValueError when the last is cut."""
        starts, positions = array("Q"), _starts(data)
        while found := array("Q", islice(positions, _STEP)):
            starts.extend(found)
            yield
        return cls(data, starts)

    @classmethod
    def of(cls, values: Iterable[str]) -> "Texts":
        """Return a column of these values."""
        data = b"".join(map(text, values))
        return cls(data, array("Q", _starts(data)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> str:
        return self.raw(row).decode()

    def raw(self, row: int) -> bytes:
        """Return a value as UTF-8."""
        return self.data[self.starts[row] + 4 : self.starts[row + 1]]

    def plain(self, start: int, end: int) -> bytes:
        """Return rows [start, end) as a file holds them."""
        return self.data[self.starts[start] : self.starts[end]]

    def find(self, value: str) -> int:
        """Return the row of a value in a column that ascends by UTF-8; -1 if it is not there."""
        wanted = value.encode()
        row = self.place(wanted)
        return row if row < len(self) and self.raw(row) == wanted else -1

    def place(self, wanted: bytes) -> int:
        """Return the first row that is not below `wanted` in a column that ascends."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.raw(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low


Column = Longs | Doubles | Flags | Words | Texts


def text(value: str) -> bytes:
    """Return a string as a column of texts holds it."""
    body = value.encode()
    return len(body).to_bytes(4, "little") + body


def _starts(data: bytes) -> Iterator[int]:
    """Yield where each value begins, and the end. Raises ValueError when the last is cut short."""
    position, end = 0, len(data)
    while position < end:
        yield position
        if position + 4 > end:
            break
        position += 4 + _LENGTH(data, position)[0]
    if position != end:
        raise ValueError(f"a string ends at byte {position} of {end}")
    yield end
