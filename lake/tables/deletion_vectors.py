"""Deletion vectors of a Delta table: the rows of a data file that are deleted, beside the file.

A vector is a set of row numbers of one file, a 64-bit Roaring bitmap behind a magic number. Small
ones are in the log itself, the others of a commit in one file, `deletion_vector_<uuid>.bin`: a byte
with the version of the format, and of each vector its size, its bytes and their CRC-32.

Source: Delta transaction log protocol, "Deletion Vectors" and "Deletion Vector Format"; Roaring's
specification of portable 64-bit bitmaps; ZeroMQ RFC 32 (Z85).
"""

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.data_file import create_file
from lakehead.lake.tables.table_root import LOG
from lakehead.storage.errors import CorruptObject

FEATURE = "deletionVectors"
"""The name of the table feature, of readers and of writers."""
ENABLED = "delta.enableDeletionVectors"
"""The property of a table to which writers may add vectors."""

INLINE_BYTES = 256
"""The size of a vector up to which it is in the log."""

_MAGIC = 1681511377
_FORMAT = b"\x01"
_UUID_CHARACTERS = 20
_RFC1924 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_RFC1924, _Z85), bytes.maketrans(_Z85, _RFC1924)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The descriptor of a vector, as actions of the log have it. `storage` is `u` for a file below
    the table's root, `i` for a vector in `place` itself, `p` for an absolute path. `rows` is the
    number of deleted rows.
    """

    storage: str
    place: str
    offset: int | None
    size_bytes: int
    rows: int

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> "DeletionVector":
        """Return the vector that an action of the log names."""
        return cls(
            storage=descriptor["storageType"],
            place=descriptor["pathOrInlineDv"],
            offset=descriptor.get("offset"),
            size_bytes=descriptor["sizeInBytes"],
            rows=descriptor["cardinality"],
        )

    def descriptor(self) -> dict[str, Any]:
        """Return what an action of the log has of the vector."""
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.place,
            **offset,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.rows,
        }

    @property
    def path(self) -> str | None:
        """The file of the vector below the table's root; None for one in the log or elsewhere."""
        if self.storage != "u":
            return None
        prefix, name = self.place[:-_UUID_CHARACTERS], self.place[-_UUID_CHARACTERS:]
        return f"{prefix}/{_file_name(name)}" if prefix else _file_name(name)


def read_vector(root: str, vector: DeletionVector) -> npt.NDArray[np.int64]:
    """Return the numbers of the deleted rows, in order. Raises CorruptObject for bytes that are not
    the described vector, and what reading objects raises.
    """
    if vector.storage == "i":
        return _rows_of(_from_z85(vector.place)[: vector.size_bytes], vector, f"{root}/{LOG}")
    if (path := vector.path) is None:
        raise CorruptObject(vector.place, 0, "a deletion vector at an absolute path is not read")
    reader = store_reader(root)
    start = vector.offset or 0
    framed = bytes(reader.run(reader.store.get_range(path, start, vector.size_bytes + 8)))
    data = framed[4:-4]
    (size,), (checksum,) = struct.unpack(">i", framed[:4]), struct.unpack(">I", framed[-4:])
    if size != vector.size_bytes or checksum != zlib.crc32(data):
        raise CorruptObject(path, start, "no deletion vector is there, or another one")
    return _rows_of(data, vector, path)


def write_vectors(
    root: str, deleted: Sequence[npt.NDArray[np.int64]]
) -> tuple[list[DeletionVector], int]:
    """Store a vector for each array of row numbers, and return them with the size of the file that
    was written (0: none). Raises the errors of `ObjectStore.create`.
    """
    name = uuid.uuid4()
    place = _to_z85(name.bytes)
    body, vectors = bytearray(_FORMAT), []
    for rows in deleted:
        data = _bytes_of(rows)
        if len(data) <= INLINE_BYTES:
            storage, text, offset = "i", _to_z85(data), None
        else:
            storage, text, offset = "u", place, len(body)
            body += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        vectors.append(
            DeletionVector(
                storage=storage, place=text, offset=offset, size_bytes=len(data), rows=len(rows)
            )
        )
    if len(body) == len(_FORMAT):
        return vectors, 0
    create_file(root, _file_name(place), [memoryview(bytes(body))])
    return vectors, len(body)


def _bytes_of(rows: npt.NDArray[np.int64]) -> bytes:
    bitmap = BitMap64(rows.astype(np.uint64))
    bitmap.run_optimize()
    return struct.pack("<i", _MAGIC) + bitmap.serialize()


def _rows_of(data: bytes, vector: DeletionVector, where: str) -> npt.NDArray[np.int64]:
    if len(data) < 4 or struct.unpack("<i", data[:4]) != (_MAGIC,):
        raise CorruptObject(where, vector.offset or 0, "a deletion vector of another form")
    rows = np.array(BitMap64.deserialize(data[4:]), np.int64)
    if len(rows) != vector.rows:
        reason = f"a deletion vector of {len(rows)} rows in place of {vector.rows}"
        raise CorruptObject(where, vector.offset or 0, reason)
    return rows


def _file_name(place: str) -> str:
    return f"deletion_vector_{uuid.UUID(bytes=_from_z85(place))}.bin"


def _to_z85(data: bytes) -> str:
    padded = data + bytes(-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode()


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_FROM_Z85))
