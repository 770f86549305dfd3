"""Indexes in the ring of a block WAL: which offsets of which streams lie in the positions before.

A node that recovers another's log has to know where its streams end before it reads their records.
So the writer adds an index at the beginning of each piece of the ring (16 MiB), where it is found
without a pointer. It covers positions that were released when it was made, from where the index
before it ended. So a whole index proves that all it covers is durable. Other positions are scanned:
the last piece, and the beginning of a piece with very many records.

An index is the body of padding, which a scan passes over. Its header has the checksum of the body::

    magic 8 bytes, length u32, then MessagePack: [from, to, [[stream id, epoch, start offset,
    end offset, max timestamp, bytes, headers], ...]]

An epoch with a key encrypts its indexes as it does its records, since the headers name producers
and control batches are whole. Such an index has another magic, and its length counts the tag, which
covers the 12 bytes of both too. So it is bound to the log, the epoch and its position.

A range is of one stream and one stream epoch, in the order of the log; `headers` are those of
`lakehead.storage.format.producer_headers`.
"""

from __future__ import annotations

import struct
from collections import deque
from operator import attrgetter

import msgspec

from lakehead.storage.encryption.log_cipher import TAG_SIZE, LogCipher
from lakehead.storage.format.producer_headers import head_of, producer_headers
from lakehead.storage.format.record_batch import max_timestamps
from lakehead.storage.wal.protocol import Buffer, WalRange

MAGIC = b"LKHDINDX"
ENCRYPTED_MAGIC = b"LKHDINDE"
_HEAD = struct.Struct(">8sI")
SIZE_MAX = 1024 * 1024
APPENDS_MAX = 16_384
"""Appends that one index covers at most, the newest ones: more would hold the loop up."""


class LogIndex(msgspec.Struct, frozen=True, array_like=True):
    """Positions [start, end) of a log hold these ranges, and no other records."""

    start: int
    end: int
    ranges: tuple[WalRange, ...]


class _Append(msgspec.Struct, frozen=True, gc=False):
    """The facts of an append that an index needs, until one covers it. Its record ends at `end`;
    `head` is the header of its batch, or the whole of a control batch.
    """

    end: int
    stream_id: int
    epoch: int
    base_offset: int
    count: int
    head: bytes
    size: int


_SIZE, _HEAD_OF = attrgetter("size"), attrgetter("head")


class IndexBuilder:
    """Builds the indexes of one epoch, which begins at position `start`. `interval` in bytes."""

    def __init__(self, start: int, interval: int) -> None:
        self.interval = interval
        self._start = start
        self._appends: deque[_Append] = deque()

    def __len__(self) -> int:
        """The appends that wait for an index."""
        return len(self._appends)

    def add(
        self, end: int, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> None:
        """Note an append whose record ends at position `end`."""
        appends = self._appends
        appends.append(
            _Append(end, stream_id, epoch, base_offset, count, head_of(payload), len(payload))
        )
        if len(appends) > APPENDS_MAX:
            self._start = appends.popleft().end

    def take(self, released: int) -> bytes:
        """Return the body of the index of what was released since the last one; empty if there is
        none to write.
        """
        start = self._start
        covered = self.skip(released)
        if not covered:
            return b""
        body = encode_index(LogIndex(start, self._start, tuple(_ranges(covered))))
        return body if len(body) <= SIZE_MAX else b""

    def skip(self, released: int) -> list[_Append]:
        """Leave what was released since the last index out of the next one; return it."""
        appends, covered = self._appends, list[_Append]()
        while appends and appends[0].end <= released:
            covered.append(appends.popleft())
        if covered:
            self._start = covered[-1].end
        return covered


def _ranges(appends: list[_Append]) -> list[WalRange]:
    runs: dict[tuple[int, int], list[_Append]] = {}
    for one in appends:
        runs.setdefault((one.stream_id, one.epoch), []).append(one)
    return [_range(stream_id, epoch, run) for (stream_id, epoch), run in runs.items()]


def _range(stream_id: int, epoch: int, run: list[_Append]) -> WalRange:
    heads = list(map(_HEAD_OF, run))
    return WalRange(
        stream_id=stream_id,
        epoch=epoch,
        start_offset=run[0].base_offset,
        end_offset=run[-1].base_offset + run[-1].count,
        max_timestamp=max(max_timestamps(heads)),
        size=sum(map(_SIZE, run)),
        headers=producer_headers(heads),
    )


def encode_index(index: LogIndex) -> bytes:
    """Return the body of an index."""
    data = msgspec.msgpack.encode(index)
    return _HEAD.pack(MAGIC, len(data)) + data


def decode_index(body: Buffer) -> LogIndex | None:
    """Return the index that a body is whose checksum holds; None if it is none that is known."""
    data = _data_of(body, MAGIC)
    return None if data is None else _decoded(data)


def encrypted_size(body: bytes) -> int:
    """Return the bytes that an index of this body has when it is encrypted."""
    return len(body) + TAG_SIZE


def encrypt_index(body: bytes, cipher: LogCipher, position: int) -> bytes:
    """Return the body of an index encrypted, for the record header at `position`. To be called once
    for a position, where no record begins.
    """
    head = _HEAD.pack(ENCRYPTED_MAGIC, len(body) - _HEAD.size + TAG_SIZE)
    return head + cipher.encrypt(position, memoryview(body)[_HEAD.size :], head)


def decrypt_index(body: Buffer, cipher: LogCipher, position: int) -> LogIndex | None:
    """Return the index that an encrypted body is whose checksum holds; None if it is none that is
    known. Raises ValueError if it is not what was encrypted there.
    """
    data = _data_of(body, ENCRYPTED_MAGIC)
    if data is None:
        return None
    plain = cipher.decrypt(position, data, bytes(body[: _HEAD.size]))
    if plain is None:
        raise ValueError("the index fails its authentication")
    return _decoded(plain)


def _data_of(body: Buffer, expected: bytes) -> Buffer | None:
    if len(body) < _HEAD.size:
        return None
    magic, length = _HEAD.unpack_from(body)
    if magic != expected:
        return None
    return memoryview(body)[_HEAD.size : _HEAD.size + length]


def _decoded(data: Buffer) -> LogIndex | None:
    try:
        return msgspec.msgpack.decode(bytes(data), type=LogIndex)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
