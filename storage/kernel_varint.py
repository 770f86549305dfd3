"""Variable-length integers for kernels: seven bits a byte, the lowest first.

The one overflow rule: a number has up to `bits` bits, and one with more is not a varint. Of
`LONG_BITS`, those beyond 64 are cut, as Kafka's decoder cuts them (`ByteUtils.readVarlong`).
`lakehead.storage.format.varint` has the same rule for Python.
"""

from typing import Any

import numpy as np

from lakehead.storage.kernel_compiler import inlined

INT_BITS = np.uint64(35)
"""Five bytes: Kafka's varint."""
LONG_BITS = np.uint64(70)
"""Ten bytes: Kafka's varlong."""
EXACT_BITS = np.uint64(64)
"""Ten bytes, the last of them with one bit: a long of Avro and of Protobuf."""


@inlined
def uvarint(data: Any, at: Any, end: Any, bits: Any) -> Any:
    """Return (unsigned number, position after it), or position -1 if it does not end before `end`
    or has more than `bits`.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < bits:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            if bits == EXACT_BITS and shift == np.uint64(63) and byte > 1:
                return np.int64(0), np.int64(-1)
            return np.int64(value), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def varint(data: Any, at: Any, end: Any, bits: Any) -> Any:
    """Return (zigzag number, position after it), as `uvarint`."""
    value, at = uvarint(data, at, end, bits)
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & np.int64(1)), at


@inlined
def put_varint(out: Any, at: Any, value: Any) -> Any:
    """Write a zigzag number; return the position after it."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inlined
def varint_size(value: Any) -> Any:
    """Return how many bytes a zigzag number takes."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = np.int64(1)
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size
