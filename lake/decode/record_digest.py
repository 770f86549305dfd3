"""A digest of records: keys, values, headers, times and offsets of one partition, in offset order.

A hash runs over each column by itself: the offsets, the times, the sizes of keys, the bytes of
keys, and so on (11 in all), and over the batches that cannot be read. The digest is the hash of
these digests. Sizes say where each record's bytes begin and end, so two different sequences of
records have two different sequences of bytes in some column. The cuts between Arrow batches do
not count, and Arrow's own memory is hashed, without a copy. The hash is BLAKE3, and was SHA-256,
which takes twice the time. The forms of the digest are in docs/tables/attest.md.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from blake3 import blake3

from lakehead.lake.decode.invalid import InvalidBatch
from lakehead.storage.format.record_kernel import NO_TIME

DIGEST_FORM = "blake3-columns-1"
"""The form of new digests, with a number that changes with it."""
_HASHES: dict[str, Callable[[], Any]] = {
    DIGEST_FORM: blake3,
    "sha256-columns-1": hashlib.sha256,
}
FORMS = frozenset(_HASHES)
"""The forms that this release can make: those of digests in commits of earlier ones too."""

_COLUMNS = (
    *("offsets", "times", "key sizes", "keys", "value sizes", "values"),
    *("header counts", "header key sizes", "header keys", "header value sizes", "header values"),
)
_BATCH = struct.Struct("<qqq")
_NULL = -1


class RecordDigest:
    """The digest of records that come in offset order, of a form in `FORMS`. Counts them in
    `records`.
    """

    def __init__(self, form: str = DIGEST_FORM) -> None:
        self.records = 0
        self._form = form
        self._sums = {name: _HASHES[form]() for name in (*_COLUMNS, "batches")}

    def add(self, batch: Any) -> None:
        """Take records: an Arrow batch or table that has the columns key, value, offset, timestamp
        and headers of `lakehead.lake.decode.columns`.
        """
        if isinstance(batch, pa.Table):
            for one in batch.to_batches():
                self.add(one)
            return
        if not batch.num_rows:
            return
        self.records += batch.num_rows
        self._put("offsets", _integers(batch.column("offset"), 0))
        self._put("times", _integers(batch.column("timestamp"), NO_TIME))
        self._add_bytes("key sizes", "keys", batch.column("key"))
        self._add_bytes("value sizes", "values", batch.column("value"))
        self._add_headers(batch.column("headers"))

    def add_batch(self, found: InvalidBatch) -> None:
        """Take a batch that cannot be read. Its records are not among the others."""
        size = len(found.data)
        self._put("batches", _BATCH.pack(found.first_offset, found.last_offset, size))
        self._put("batches", found.data)

    def hexdigest(self) -> str:
        """Return the digest of what came so far, as 64 hexadecimal digits."""
        whole = _HASHES[self._form]()
        whole.update(self._form.encode())
        for one in self._sums.values():
            whole.update(one.digest())
        digest: str = whole.hexdigest()
        return digest

    def _put(self, name: str, data: Any) -> None:
        if len(data):  # no memory of zero bytes can be cast
            self._sums[name].update(memoryview(data).cast("B"))

    def _add_bytes(self, sizes_of: str, bytes_of: str, array: Any) -> None:
        lengths = _lengths(array)
        self._put(sizes_of, lengths)
        self._put(bytes_of, _values(array, lengths))

    def _add_headers(self, array: Any) -> None:
        self._put("header counts", np.maximum(_lengths(array), 0))
        entries = array.flatten()
        if len(entries):
            self._add_bytes("header key sizes", "header keys", entries.field(0))
            self._add_bytes("header value sizes", "header values", entries.field(1))


def _integers(array: Any, in_place_of_null: int) -> npt.NDArray[np.int64]:
    """Return an Arrow array of 64 bits for each value as NumPy's."""
    values = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array)]
    if not array.null_count:
        return values
    return np.where(_is_null(array), np.int64(in_place_of_null), values)


def _lengths(array: Any) -> npt.NDArray[np.int32]:
    """Return the length of each value of a binary, string or list array; -1 for a null."""
    ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    lengths = np.diff(ends)
    if array.null_count:
        lengths[_is_null(array)] = _NULL
    return lengths


def _values(array: Any, lengths: npt.NDArray[np.int32]) -> Any:
    """Return the bytes of a binary or string array, next to each other; `lengths` as `_lengths`."""
    ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    if not len(array) or ends[0] == ends[-1]:
        return b""
    if array.null_count:
        size = np.maximum(lengths, 0).sum(dtype=np.int64)
        if size != ends[-1] - ends[0]:  # Arrow lets a null have bytes
            array = array.drop_null()
            return _values(array, _lengths(array))
    return memoryview(array.buffers()[2])[int(ends[0]) : int(ends[-1])]


def _is_null(array: Any) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    is_null: npt.NDArray[np.bool_] = bits[array.offset :][: len(array)] == 0
    return is_null
