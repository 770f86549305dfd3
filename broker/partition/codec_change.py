"""Batches in the codec that their topic wants, where that is not the producer's (compression.type,
KIP-390). It takes a moment of a processor's time, so it is not done on the event loop.
"""

import asyncio

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.recompression import recompressed
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.stream.inflating import InflatedBatches

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
