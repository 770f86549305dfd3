"""Variable-length integers: seven bits a byte, the lowest first; zigzag for signed ones (KIP-98).

The one overflow rule: a number has up to `bits` bits, and one with more is an error. Kafka's varint
has `INT_BITS`, its varlong `LONG_BITS`. `lakehead.storage.kernel_varint` has the same rule for
kernels, where bits beyond 64 are cut.
"""

from __future__ import annotations

INT_BITS, LONG_BITS = 35, 70
"""Five bytes, and ten."""


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def encode_uvarint(value: int) -> bytes:
    """Return an unsigned number."""
    if 0 <= value < 0x80:  # as most are
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_varint(value: int) -> bytes:
    """Return a signed number of 64 bits, zigzag."""
    return encode_uvarint((value << 1) ^ (value >> 63))


def read_uvarint(data: bytes | memoryview, position: int, bits: int = LONG_BITS) -> tuple[int, int]:
    """Return an unsigned number and the position after it.

    Raises ValueError if it has more than `bits`, IndexError if it is cut short.
    """
    value = shift = 0
    while shift < bits:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"a varint is longer than {bits // 7} bytes")


def read_varint(data: bytes | memoryview, position: int, bits: int = LONG_BITS) -> tuple[int, int]:
    """Return a signed number, which is zigzag, as `read_uvarint`."""
    if (only := data[position]) < 0x80:  # as most are
        return (only >> 1) ^ -(only & 1), position + 1
    value, position = read_uvarint(data, position, bits)
    return (value >> 1) ^ -(value & 1), position
