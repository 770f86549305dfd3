"""Fields of the keys and values that coordinators keep in their logs, off bytes."""

import struct

from lakehead.storage.format.varint import INT_BITS, read_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class UnknownRecord(ValueError):
    """A key or value of a kind or version that is not read here, or one that is cut short."""


class RecordReader:
    """Takes fields off bytes, big-endian; one that is cut short is an UnknownRecord."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, size: int) -> bytes:
        """Take so many bytes."""
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise UnknownRecord(f"cut short at byte {self._position}")
        data = self._data[self._position : end]
        self._position = end
        return data

    def i8(self) -> int:
        """Take an integer of a byte, which is never negative here."""
        return self.take(1)[0]

    def i16(self) -> int:
        """Take an integer of two bytes."""
        return int(_SHORT.unpack(self.take(2))[0])

    def i32(self) -> int:
        """Take an integer of four bytes."""
        return int(_INT.unpack(self.take(4))[0])

    def i64(self) -> int:
        """Take an integer of eight bytes."""
        return int(_LONG.unpack(self.take(8))[0])

    def uvarint(self) -> int:
        """Take an unsigned varint, of five bytes at most."""
        try:
            value, self._position = read_uvarint(self._data, self._position, INT_BITS)
        except IndexError:
            raise UnknownRecord(f"cut short at byte {len(self._data)}") from None
        except ValueError as error:
            raise UnknownRecord(f"{error} at byte {self._position}") from error
        return value

    def text(self, size: int) -> str:
        """Take UTF-8 of so many bytes."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise UnknownRecord(f"text is not UTF-8 at byte {self._position}") from error

    def string(self) -> str | None:
        """Take a string with its length as an i16 before it; -1 is null."""
        size = self.i16()
        return None if size < 0 else self.text(size)
