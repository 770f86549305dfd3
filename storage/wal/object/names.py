"""Names of WAL objects, and the seal that ends an epoch's log.

`wal/<node id>/<epoch, 10 digits>/<number, 20 digits>`: the numbers of an epoch begin at 0 and have
no gap below its seal. Node, epoch and number make a name that is never used for two contents.

A seal is 64 bytes, big-endian, and no object with data is that short::

    @0  magic "LKHDTOMB"     @8  version u8 = 1, 3 zero    @12 sealer's node id i32
    @16 time i64, ms         @24 sealer's incarnation, 16 bytes
    @40 20 zero              @60 CRC32C u32 of what is before
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from lakehead.storage.errors import CorruptObject, UnsupportedFormat
from lakehead.storage.object_store.protocol import Buffer

PREFIX = "wal/"
SEAL_SIZE = 64
_MAGIC = b"LKHDTOMB"
_VERSION = 1
_BODY = struct.Struct(">8sB3xiq16s20x")
_CRC = struct.Struct(">I")
_NAME = re.compile(r"wal/(\d+)/(\d{10,})/(\d{20})")


class WalName(NamedTuple):
    """The name of the object of one group commit."""

    node_id: int
    epoch: int
    number: int

    @classmethod
    def parse(cls, key: str) -> WalName | None:
        """Return the name that a key is, None for a key of another kind."""
        match = _NAME.fullmatch(key)
        return None if match is None else cls(int(match[1]), int(match[2]), int(match[3]))


def wal_key(node_id: int, epoch: int, number: int) -> str:
    """Return the key of a group commit."""
    return f"{PREFIX}{node_id}/{epoch:010d}/{number:020d}"


def node_prefix(node_id: int) -> str:
    """Return what the keys of a node begin with."""
    return f"{PREFIX}{node_id}/"


def is_seal_size(size: int) -> bool:
    """Return true if a listed WAL object is a seal: these stay until their node id is retired."""
    return size == SEAL_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The end of an epoch's log: the node that sealed it, and the time."""

    sealer_id: int
    incarnation: str
    created_ms: int

    def encode(self) -> bytes:
        """Return its 64 bytes."""
        body = _BODY.pack(
            _MAGIC,
            _VERSION,
            self.sealer_id,
            self.created_ms,
            self.incarnation.encode()[:16],
        )
        return body + _CRC.pack(crc32c(body))


def decode_seal(key: str, body: Buffer) -> Seal:
    """Return the seal in an object of 64 bytes. Raises CorruptObject, UnsupportedFormat."""
    if len(body) != SEAL_SIZE or bytes(body[:8]) != _MAGIC:
        raise CorruptObject(key, 0, "neither a seal nor a stream object")
    if crc32c(body[: _BODY.size]) != _CRC.unpack_from(body, _BODY.size)[0]:
        raise CorruptObject(key, 0, "the seal does not match its checksum")
    _, version, sealer_id, created_ms, incarnation = _BODY.unpack_from(body)
    if version > _VERSION:
        raise UnsupportedFormat(
            f"seal {key} has version {version}, newer than this release: upgrade"
        )
    return Seal(
        sealer_id=sealer_id,
        incarnation=incarnation.rstrip(b"\0").decode(errors="replace"),
        created_ms=created_ms,
    )
