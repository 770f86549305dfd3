"""The headers of a stream's batches that a partition's state is made of: an object that has no
newer state of a partition carries them, so that opening the partition needs none of its data.

They are headers as they are, 61 bytes each, in offset order. A state remembers five batches of each
idempotent producer, and what is under way of transactions; so the newest five of each producer are
there, and all that belong to transactions.
"""

from collections.abc import Sequence

from storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CONTROL,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    producer_id,
    read_header,
)
from storage.object_store.protocol import Buffer

KEPT = 5
_FLAGS_POSITION = ATTRIBUTES_POSITION + 1


def producer_headers(batches: Sequence[Buffer]) -> bytes:
    """Return the headers that count of a stream's batches, each one RecordBatch."""
    found: list[bytes] = []
    kept: dict[int, int] = {}
    for batch in reversed(batches):
        if len(batch) < HEADER_SIZE:
            continue
        producer = producer_id(batch)
        if producer == NO_PRODUCER_ID:
            continue
        count, flags = kept.get(producer, 0), batch[_FLAGS_POSITION]
        if count < KEPT or flags & (TRANSACTIONAL | CONTROL):
            found.append(bytes(batch[:HEADER_SIZE]))
            kept[producer] = count + (not flags & CONTROL)  # a marker has no sequence
    found.reverse()
    return b"".join(found)


def parse_producer_headers(data: bytes) -> list[BatchHeader]:
    """Return headers from what an object carries."""
    return [read_header(data, at) for at in range(0, len(data) - HEADER_SIZE + 1, HEADER_SIZE)]
