"""The rules for which the broker looks into records, since the headers of batches do not tell.
Compacted topics take no record without a key; topics that want it take none that nothing can read,
or that is too far from the clock (KIP-467 names the records to the producer).

A few kilobytes may inflate to millions of records, so more than a few are walked off the event
loop, and inflate to a multiple of the topic's `max.message.bytes` at most.
"""

import asyncio

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.record_keys import records_without_key
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.record_validation import (
    EVERY_TIME,
    MalformedRecord,
    TimeRange,
    places_out_of_time,
)
from lakehead.broker.partition.topic import Topic
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.record_batch import BatchHeader, read_header
from lakehead.storage.stream.inflating import InflatedBatches

INFLATED_SIZE_MAX = 64 * 1024 * 1024
INFLATION_MAX = 16
"""Records of a batch may be this many times `max.message.bytes` when they are inflated."""
RECORDS_INLINE_MAX = 500
"""Records of one request that are walked on the event loop."""
_BYTES_A_RECORD = 64
_SHOWN = 3


class RecordsRefused(KafkaError):
    """A batch is refused for some of its records: `record_errors` are their places and why."""

    def __init__(
        self,
        record_errors: tuple[tuple[int, str], ...],
        code: ErrorCode = ErrorCode.invalid_record,
    ) -> None:
        shown = ", ".join(f"record {place}: {reason}" for place, reason in record_errors[:_SHOWN])
        super().__init__(
            code,
            f"One or more records have been rejected due to {len(record_errors)} record errors in "
            f"total, and only showing the first three errors at most: {shown}",
        )
        self.record_errors = record_errors


def walked_inline(header: BatchHeader, rules: RecordRules) -> int:
    """Return how many records of a batch the event loop would walk to check them; more than
    `RECORDS_INLINE_MAX` for a compressed batch, whose header does not bound the work. Where each
    field is looked at, some bytes count as a record, since a record may have very many headers.
    """
    if header.codec:
        return RECORDS_INLINE_MAX + 1
    fields = header.size // _BYTES_A_RECORD if rules.validates_records else 0
    return header.record_count + fields


async def check_records_aside(
    batch: memoryview, topic: Topic, index: int, now_ms: int, memory: InflatedBatches
) -> None:
    """Do as `check_records`, off the event loop, as soon as there is memory to decompress a batch.
    KafkaError (INVALID_RECORD) is also for records that inflate too far; at once, if their number
    says so.
    """
    count = read_header(batch).record_count

    async def read() -> memoryview:
        return batch

    size_max = min(INFLATED_SIZE_MAX, INFLATION_MAX * topic.rules.batch_size_max)
    loop = asyncio.get_running_loop()
    try:
        async with memory.inflated(read, size_max, count) as (header, records):
            await loop.run_in_executor(None, check_records, records, header, topic, index, now_ms)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error


def check_records(
    records: memoryview, header: BatchHeader, topic: Topic, index: int, now_ms: int
) -> None:
    """Check the decompressed `records` of one batch for partition `index` by its topic's rules.

    Raises RecordsRefused: INVALID_RECORD for records that cannot be read or have no key,
    INVALID_TIMESTAMP for those too far from the clock. Raises KafkaError (INVALID_RECORD) when keys
    cannot be looked for.
    """
    if topic.rules.validates_records:
        _validate(records, header, topic.rules, now_ms)
    if topic.rules.needs_keys:
        _check_keys(records, header, topic, index)


def _validate(data: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int) -> None:
    earliest = max(EVERY_TIME.earliest, now_ms - rules.before_ms)
    latest = min(EVERY_TIME.latest, now_ms + rules.after_ms)
    try:
        found = places_out_of_time(data, header, TimeRange(earliest, latest))
    except MalformedRecord as error:
        raise RecordsRefused(((error.place, error.reason),)) from None
    if not found or rules.is_log_append_time:  # then records get the broker's time
        return
    allowed = f"The timestamp should be within [{earliest}, {latest}]"
    errors = [(at, f"Timestamp {time} of message is out of range. {allowed}") for at, time in found]
    raise RecordsRefused(tuple(errors), ErrorCode.invalid_timestamp)


def _check_keys(records: memoryview, header: BatchHeader, topic: Topic, index: int) -> None:
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
