"""Write the primitives of Kafka's messages, for responses that are encoded by hand."""

import struct

_INT16 = struct.Struct(">h")


def uvarint(value: int) -> bytes:
    """Return an unsigned variable-length number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_text(text: str | None) -> bytes:
    """Return a nullable string in the compact encoding."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def plain_text(text: str | None) -> bytes:
    """Return a nullable string in the old encoding."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data
