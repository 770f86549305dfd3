"""Write the primitives of Kafka's messages, for responses that are encoded by hand."""

import struct

from lakehead.storage.format.varint import encode_uvarint

_INT16 = struct.Struct(">h")


def compact_text(text: str | None) -> bytes:
    """Return a nullable string in the compact encoding."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def plain_text(text: str | None) -> bytes:
    """Return a nullable string in the old encoding."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data
