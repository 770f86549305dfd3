"""The checks of a batch that a client produces: by its header alone, as Kafka 4 makes them.

Kafka 4 refuses what is not exactly one batch of magic 2 in a partition's records, and what its
header already shows to be wrong; it also looks into the records, which is done here for the keys of
compacted topics, and for topics that want it (see `record_checks`).
"""

import asyncio
from collections.abc import Sequence

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.compression import recompressed
from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CODECS,
    CONTROL,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)
from lakehead.storage.stream.inflating import InflatedBatches

ZSTD = CODECS.index("zstd")
ZSTD_SINCE = 7
"""First version of Produce that may carry zstd (KIP-110)."""


def invalid(message: str) -> KafkaError:
    """Return the error for a batch that breaks a rule."""
    return KafkaError(ErrorCode.invalid_record, message)


def check_batch(
    records: memoryview, *, version: int, rules: RecordRules, now_ms: int
) -> BatchHeader:
    """Return the header of the one batch in a partition's `records`, which its topic's `rules`
    allow. Raises KafkaError.
    """
    header = check_form(records, version)
    check_contents(records, header, rules, now_ms)
    return header


def check_form(records: memoryview, version: int) -> BatchHeader:
    """Return the header of the one batch in a partition's `records`, as a request of this version
    may carry it. Kafka makes these checks before anything is done. Raises KafkaError.
    """
    if len(records) < HEADER_SIZE:
        return _too_short(records)
    header = read_header(records)
    if header.magic != MAGIC:
        raise invalid(f"the batch has magic {header.magic}; only 2 is accepted")
    size = LENGTH_END + header.length
    if size != len(records):
        if HEADER_SIZE <= size < len(records):
            raise invalid("a partition's records must be exactly one batch")
        raise KafkaError(ErrorCode.corrupt_message, f"a batch of {size} bytes in {len(records)}")
    if version < ZSTD_SINCE and header.codec == ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd with Produce version {version}"
        )
    return header


def check_contents(
    records: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int
) -> None:
    """Refuse a batch of good form that cannot be appended. Raises KafkaError."""
    base_offset, _, _, _, crc, attributes, last_offset_delta, *rest = header
    first_ms, newest_ms, producer_id, producer_epoch, base_sequence, record_count = rest
    if base_offset != 0:
        raise invalid(f"the batch's base offset must be 0, not {base_offset}")
    if len(records) > rules.batch_size_max:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch of {len(records)} bytes; at most {rules.batch_size_max} are taken",
        )
    if crc32c(records[ATTRIBUTES_POSITION:]) != crc:
        raise KafkaError(ErrorCode.corrupt_message, "the batch's CRC does not match")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise invalid(
            f"the batch has {record_count} records but its last offset delta is {last_offset_delta}"
        )
    if attributes & (CODEC_MASK | CONTROL | LOG_APPEND_TIME):
        _check_attributes(attributes)
    if producer_id != NO_PRODUCER_ID and (base_sequence < 0 or producer_epoch < 0):
        raise invalid("a batch of an idempotent producer needs an epoch and a sequence number")
    if not rules.is_log_append_time:
        oldest, newest = now_ms - rules.before_ms, now_ms + rules.after_ms
        # Kafka looks at every record; one between these two differs from them in no case that
        # producers make.
        if not (oldest <= first_ms <= newest_ms <= newest):
            _check_times((first_ms, newest_ms), oldest, newest)


def _check_attributes(attributes: int) -> None:
    if attributes & CONTROL:
        raise invalid("clients may not write control batches")
    if attributes & LOG_APPEND_TIME:
        raise KafkaError(ErrorCode.invalid_timestamp, "producers may not set LogAppendTime")
    if attributes & CODEC_MASK > ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"unknown codec {attributes & CODEC_MASK}"
        )


def _check_times(timestamps: Sequence[int], oldest: int, newest: int) -> None:
    for timestamp in timestamps:
        if not oldest <= timestamp <= newest and timestamp != NO_TIMESTAMP:
            raise KafkaError(
                ErrorCode.invalid_timestamp,
                f"Timestamp {timestamp} of message is out of range. The timestamp should be "
                f"within [{oldest}, {newest}]",
            )


def is_marked_transactional(records: memoryview) -> bool:
    """Return true if a partition's `records`, which may be anything, begin with a transactional
    batch.
    """
    return (
        len(records) >= HEADER_SIZE
        and records[MAGIC_POSITION] == MAGIC
        and read_header(records).is_transactional
    )


def _too_short(records: memoryview) -> BatchHeader:
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] < MAGIC:
        raise invalid(f"the batch has magic {records[MAGIC_POSITION]}; only 2 is accepted")
    raise invalid("a partition's records must be exactly one batch")


INFLATED_SIZE_MAX = 64 * 1024 * 1024


async def change_codec(
    records: memoryview, rules: RecordRules, memory: InflatedBatches
) -> memoryview:
    """Return one whole batch, checked by `check_batch`, in the codec of `rules`, as soon as there
    is memory to decompress it.

    Raises KafkaError: INVALID_RECORD for records that cannot be read, MESSAGE_TOO_LARGE when the
    batch is larger now than the topic takes.
    """

    async def read() -> memoryview:
        return records

    codec, level, count = rules.codec, rules.level, read_header(records).record_count
    assert codec is not None
    try:
        async with memory.inflated(read, INFLATED_SIZE_MAX, count) as (header, plain):
            loop = asyncio.get_running_loop()
            batch = await loop.run_in_executor(
                None, recompressed, records, header, plain, codec, level
            )
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    if len(batch) > rules.batch_size_max:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch of {len(batch)} bytes in the topic's codec; at most {rules.batch_size_max} "
            "are taken",
        )
    return memoryview(batch)
