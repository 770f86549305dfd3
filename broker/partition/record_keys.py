"""Compacted topics take no record without a key: the one rule for which the broker looks into
records, since their headers do not tell (KIP-467 names the records to the producer).

A few kilobytes may inflate to millions of records, so more than a few are walked off the event
loop, and inflate to a multiple of the topic's `max.message.bytes` at most.
"""

import asyncio

from kio.schema.errors import ErrorCode

from broker.partition.topic import Topic
from broker.protocol.errors import KafkaError
from storage.format.record_batch import BatchHeader
from storage.format.records import read_varint
from storage.stream.inflating import InflatedBatches

INFLATED_SIZE_MAX = 64 * 1024 * 1024
INFLATION_MAX = 16
"""Records of a batch may be this many times `max.message.bytes` when they are inflated."""
RECORDS_INLINE_MAX = 500
"""Records of one request that are walked on the event loop."""
_SHOWN = 3
_REFUSED_MAX = 1000
"""Records without a key that one response names: each is some hundred bytes of it."""


class RecordsRefused(KafkaError):
    """A batch is refused for some of its records: `record_errors` are their places and why."""

    def __init__(self, record_errors: tuple[tuple[int, str], ...]) -> None:
        shown = ", ".join(f"record {place}: {reason}" for place, reason in record_errors[:_SHOWN])
        super().__init__(
            ErrorCode.invalid_record,
            f"One or more records have been rejected due to {len(record_errors)} record errors in "
            f"total, and only showing the first three errors at most: {shown}",
        )
        self.record_errors = record_errors


def walked_inline(header: BatchHeader) -> int:
    """Return how many records of a batch the event loop would walk to check their keys; more than
    `RECORDS_INLINE_MAX` for a compressed batch, whose header does not bound the work.
    """
    return header.record_count if header.codec == 0 else RECORDS_INLINE_MAX + 1


async def check_keys_aside(
    batch: memoryview, topic: Topic, index: int, memory: InflatedBatches
) -> None:
    """Do as `check_keys`, off the event loop, as soon as there is memory to decompress the batch.
    KafkaError (INVALID_RECORD) is also for records that inflate too far.
    """

    async def read() -> memoryview:
        return batch

    size_max = min(INFLATED_SIZE_MAX, INFLATION_MAX * topic.rules.batch_size_max)
    loop = asyncio.get_running_loop()
    try:
        async with memory.inflated(read, size_max) as (header, records):
            await loop.run_in_executor(None, check_keys, records, header, topic, index)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error


def check_keys(records: memoryview, header: BatchHeader, topic: Topic, index: int) -> None:
    """Raise RecordsRefused when a record has no key, KafkaError (INVALID_RECORD) when the records
    cannot be read. `records` are those of one batch for partition `index`, decompressed.
    """
    try:
        missing = records_without_key(records, header.record_count)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    if missing:
        reason = (
            "Compacted topic cannot accept message without key in topic partition "
            f"{topic.name}-{index}."
        )
        raise RecordsRefused(tuple((place, reason) for place in missing))


def records_without_key(records: memoryview, count: int) -> list[int]:
    """Return the places of the first records that have no key, `_REFUSED_MAX` at most, of `count`
    decompressed records. Raises ValueError.
    """
    data = bytes(records)
    view, position = memoryview(data), 0
    missing: list[int] = []
    try:
        for place in range(count):
            length, position = read_varint(view, position)
            end = position + length
            if length < 0 or end > len(data):
                raise ValueError("a record reaches beyond its batch")
            position += 1  # attributes; the deltas of timestamp and offset are passed over
            for _ in range(2):
                while data[position] >= 0x80:
                    position += 1
                position += 1
            key_length, position = read_varint(view, position)
            if key_length < 0:
                missing.append(place)
                if len(missing) == _REFUSED_MAX:
                    break
            if position + max(0, key_length) > end:
                raise ValueError("a key reaches beyond its record")
            position = end
    except IndexError:
        raise ValueError("a record is cut short") from None
    return missing
