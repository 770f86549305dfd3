"""What a producer's record batch must be before it is appended, as Kafka 4 has it. Headers only,
never records.
"""

import struct
from typing import NoReturn

from kio.schema.errors import ErrorCode

from broker.protocol.errors import KafkaError
from storage.format.record_batch import (
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_ok,
    read_header,
)


def checked_header(batch: memoryview, max_message_bytes: int) -> BatchHeader:
    """Return the header of the one batch that `batch` must be. Raises KafkaError.

    CORRUPT_MESSAGE: cut short, or the CRC-32C is wrong. UNSUPPORTED_FOR_MESSAGE_FORMAT: magic 0 and
    1, which Kafka 4 no longer takes. INVALID_RECORD: more than one batch, or counts that contradict
    each other. MESSAGE_TOO_LARGE.
    """
    size = len(batch)
    if size > MAGIC_POSITION and batch[MAGIC_POSITION] != MAGIC:
        _refuse(
            ErrorCode.unsupported_for_message_format
            if batch[MAGIC_POSITION] < MAGIC
            else ErrorCode.invalid_record,
            f"record batch of magic {batch[MAGIC_POSITION]}: this broker takes magic 2",
        )
    try:
        header = read_header(batch)
    except struct.error:
        _refuse(ErrorCode.corrupt_message, f"record batch of {size} bytes is cut short")
    if header.length + LENGTH_END != size:
        if HEADER_SIZE <= header.length + LENGTH_END < size:
            _refuse(ErrorCode.invalid_record, "a partition takes one record batch a request")
        _refuse(ErrorCode.corrupt_message, f"length {header.length} in a batch of {size} bytes")
    if size > max_message_bytes:
        _refuse(ErrorCode.message_too_large, f"{size} bytes, max.message.bytes={max_message_bytes}")
    if not crc_ok(batch):
        _refuse(ErrorCode.corrupt_message, "the CRC-32C of the record batch is wrong")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        _refuse(
            ErrorCode.invalid_record,
            f"{header.record_count} records with last offset delta {header.last_offset_delta}",
        )
    if header.attributes & CODEC_MASK >= len(CODECS):
        _refuse(ErrorCode.invalid_record, f"unknown codec {header.codec}")
    if header.is_control:
        _refuse(ErrorCode.invalid_record, "control batches are written by brokers only")
    if header.is_transactional:
        _refuse(ErrorCode.transactional_id_authorization_failed, "transactions are not served yet")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        _refuse(ErrorCode.invalid_record, "an idempotent batch without epoch or sequence")
    return header


def _refuse(code: ErrorCode, reason: str) -> NoReturn:
    raise KafkaError(code, reason)
