"""Compacted topics take no record without a key: the one rule for which the broker looks into
records, since their headers do not tell (KIP-467 names the records to the producer).
"""

from kio.schema.errors import ErrorCode

from broker.protocol.errors import KafkaError
from storage.format.record_batch import HEADER_SIZE, BatchHeader
from storage.format.records import inflate, read_varint

INFLATED_SIZE_MAX = 64 * 1024 * 1024
_SHOWN = 3


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


def check_keys(records: memoryview, header: BatchHeader, topic: str, partition: int) -> None:
    """Raise RecordsRefused when a record has no key, KafkaError (INVALID_RECORD) when the records
    cannot be read. `records` is one whole batch.
    """
    try:
        missing = records_without_key(records, header)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    if missing:
        reason = (
            "Compacted topic cannot accept message without key in topic partition "
            f"{topic}-{partition}."
        )
        raise RecordsRefused(tuple((place, reason) for place in missing))


def records_without_key(batch: memoryview, header: BatchHeader) -> list[int]:
    """Return the places of a batch's records that have no key. Raises ValueError."""
    data = bytes(inflate(header, batch[HEADER_SIZE : header.size], INFLATED_SIZE_MAX))
    view, position = memoryview(data), 0
    missing: list[int] = []
    try:
        for place in range(header.record_count):
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
            if position + max(0, key_length) > end:
                raise ValueError("a key reaches beyond its record")
            position = end
    except IndexError:
        raise ValueError("a record is cut short") from None
    return missing
