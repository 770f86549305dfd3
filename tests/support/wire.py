"""Kafka's wire format by hand, for requests that no client library would send.

Only classic (not flexible) versions, so that a byte string here is what the protocol guide shows.
"""

import contextlib
import socket
import struct
import zlib
from dataclasses import dataclass
from typing import Self

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
CLIENT = "hostile"
ANSWER_SECONDS_MAX = 15.0


def string(text: str | None) -> bytes:
    """A STRING or, for None, a null NULLABLE_STRING."""
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text)) + text.encode()


def data(payload: bytes | None) -> bytes:
    """BYTES, RECORDS or, for None, null."""
    return struct.pack(">i", -1) if payload is None else struct.pack(">i", len(payload)) + payload


def array(*items: bytes) -> bytes:
    """An ARRAY of encoded items."""
    return struct.pack(">i", len(items)) + b"".join(items)


def header(api_key: int, version: int, correlation: int = 7) -> bytes:
    """Request header v1."""
    return struct.pack(">hhi", api_key, version, correlation) + string(CLIENT)


def frame(payload: bytes) -> bytes:
    """A request with its length before it."""
    return struct.pack(">i", len(payload)) + payload


def varint(value: int) -> bytes:
    """Zigzag varint, as in records."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes((rest,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record batch (magic 2) whose fields can all be wrong. None means: the right value."""

    values: tuple[bytes, ...] = (b"value",)
    base_offset: int = 0
    length: int | None = None
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    timestamp: int = 1_700_000_000_000
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = None
    body: bytes | None = None

    def encode(self) -> bytes:
        body = self._records() if self.body is None else self.body
        count = len(self.values) if self.record_count is None else self.record_count
        last = len(self.values) - 1 if self.last_offset_delta is None else self.last_offset_delta
        length = BATCH_HEADER.size - 12 + len(body) if self.length is None else self.length

        def with_crc(crc: int) -> bytes:
            return BATCH_HEADER.pack(
                *(self.base_offset, length, -1, self.magic, crc, self.attributes, last),
                *(self.timestamp, self.timestamp, self.producer_id, self.producer_epoch),
                *(self.base_sequence, count),
            )

        crc = crc32c(with_crc(0)[21:] + body) if self.crc is None else self.crc
        return with_crc(crc) + body

    def _records(self) -> bytes:
        out = b""
        for delta, value in enumerate(self.values):
            fields = b"\0" + varint(0) + varint(delta) + varint(-1)
            record = fields + varint(len(value)) + value + varint(0)
            out += varint(len(record)) + record
        return out


def old_message_set(magic: int) -> bytes:
    """One record in the format of magic 0 or 1, CRC right."""
    timestamp = struct.pack(">q", 1_700_000_000_000) if magic == 1 else b""
    body = struct.pack(">bb", magic, 0) + timestamp + data(None) + data(b"value")
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def produce_request(topic: str, partition: int, records: bytes | None, acks: int = -1) -> bytes:
    """Produce v8."""
    entry = struct.pack(">i", partition) + data(records)
    topics = array(string(topic) + array(entry))
    return header(PRODUCE, 8) + string(None) + struct.pack(">hi", acks, 10_000) + topics


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int = 1 << 26) -> bytes:
    """Fetch v4: no session."""
    entry = struct.pack(">iqi", partition, offset, max_bytes)
    topics = array(string(topic) + array(entry))
    return header(FETCH, 4) + struct.pack(">iiiib", -1, 100, 1, max_bytes, 0) + topics


def end_offset_request(topic: str, partition: int) -> bytes:
    """ListOffsets v1 for the end of the log."""
    entry = struct.pack(">iq", partition, -1)
    return header(LIST_OFFSETS, 1) + struct.pack(">i", -1) + array(string(topic) + array(entry))


class Wire:
    """One connection: raw bytes out, frames in."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)

    def send(self, payload: bytes) -> None:
        self.socket.sendall(payload)

    def ask(self, request: bytes) -> bytes | None:
        """Send one request; the response without its length and correlation id; None if closed."""
        self.send(frame(request))
        answer = self.receive()
        return None if answer is None else answer[4:]

    def receive(self) -> bytes | None:
        """The next frame, or None when the server closed the connection."""
        try:
            size = self._exactly(4)
            return None if size is None else self._exactly(struct.unpack(">i", size)[0])
        except ConnectionError:
            return None

    def finish(self) -> None:
        """Say that nothing more will come, then wait until the server has closed, too."""
        with contextlib.suppress(OSError):  # it may have closed already
            self.socket.shutdown(socket.SHUT_WR)
        self.wait_closed()

    def wait_closed(self) -> None:
        """Read away whatever comes until the server closes; TimeoutError if it does not."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass

    def _exactly(self, size: int) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            piece = self.socket.recv(size - len(got))
            if not piece:
                return None
            got += piece
        return bytes(got)

    def produce_error(self, topic: str, partition: int, records: bytes | None) -> int | None:
        """Error code of a Produce v8 of `records`; None if the connection was closed."""
        answer = self.ask(produce_request(topic, partition, records))
        if answer is None:
            return None
        code: int = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0]
        return code

    def end_offset(self, topic: str, partition: int) -> int:
        """The log's end as ListOffsets v1 tells it."""
        answer = self.ask(end_offset_request(topic, partition))
        assert answer is not None, "connection closed"
        error, _, offset = struct.unpack_from(">hqq", answer, 4 + 2 + len(topic) + 4 + 4)
        assert error == 0, f"ListOffsets error {error}"
        end: int = offset
        return end

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
