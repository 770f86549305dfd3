"""Batches of the source as they are stored: with the bytes that they have there, or, where only
some of their records are imported, built again.
"""

from collections.abc import Sequence

from lakehead.broker.cli.migration.source_batches import SourceBatch
from lakehead.storage.format.batch_writer import encode_headers, encode_record
from lakehead.storage.format.compression import recompressed
from lakehead.storage.format.record_batch import (
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    read_header,
    sealed,
    without_producer,
)
from lakehead.storage.format.records import KafkaRecord, inflate
from lakehead.storage.format.varint import read_varint

_DELTAS_SIZE = 3
"""Bytes of the attributes of a record, and of deltas of 0."""


def as_stored(batch: SourceBatch, codec: int | None) -> memoryview:
    """Return a batch without its producer, whose id means another one in the new cluster, and in
    `codec`; None: in its own. Its memory may be that of `batch`. Raises ValueError where it does
    not inflate.
    """
    header, data = batch
    if header.producer_id != NO_PRODUCER_ID or header.is_transactional:
        without_producer(data)
        header = read_header(data)
    if codec is None or codec == header.codec:
        return data
    records = inflate(header, data[HEADER_SIZE:])
    return memoryview(recompressed(data, header, records, codec, None))


def encode_imported(
    records: Sequence[KafkaRecord], base_offset: int, codec: int
) -> tuple[bytearray, int]:
    """Return a batch of records that covers the offsets from `base_offset` to the last record, and
    the newest timestamp (ms). Offsets between records may be missing.
    """
    first_ms = records[0].timestamp
    body = b"".join(_encoded(one, base_offset, first_ms) for one in records)
    newest = max(one.timestamp for one in records)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=first_ms,
        max_timestamp=newest,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=len(records),
    )
    batch = bytearray(sealed(header, body))
    if codec:
        plain = memoryview(batch)
        return recompressed(plain, read_header(plain), memoryview(body), codec, None), newest
    return batch, newest


def _encoded(record: KafkaRecord, base_offset: int, first_ms: int) -> bytes:
    return encode_record(
        record.offset - base_offset,
        record.key,
        record.value,
        encode_headers(record.headers),
        record.timestamp - first_ms,
    )


def record_contents(record: KafkaRecord) -> bytes:
    """Return key, value and headers of a record as a batch has them."""
    encoded = memoryview(_encoded(record, record.offset, record.timestamp))
    _, position = read_varint(encoded, 0)
    return bytes(encoded[position + _DELTAS_SIZE :])
