"""A batch in another codec says the same of its records as before."""

import itertools

import cramjam
import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import (
    INFLATED_SIZE_MAX,
    change_codec,
    check_batch,
)
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.format.compression import recompressed
from lakehead.storage.format.record_batch import (
    CODECS,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    crc_ok,
    read_header,
    stamp,
)
from lakehead.storage.format.records import inflate, iter_kafka_records
from lakehead.storage.stream.inflating import InflatedBatches
from tests.support.wire import Batch

BATCH = Batch(
    values=tuple(b"value %d " % number * 50 for number in range(20)),
    producer_id=7,
    producer_epoch=1,
    base_sequence=40,
)
MEMORY = 1 << 20


def changed(batch: memoryview, codec: int, level: int | None = None) -> memoryview:
    header = read_header(batch)
    records = inflate(header, batch[HEADER_SIZE:])
    return memoryview(recompressed(batch, header, records, codec, level))


def plain() -> memoryview:
    return memoryview(bytearray(BATCH.encode()))


@pytest.mark.parametrize(("first", "second"), [*itertools.product(range(len(CODECS)), repeat=2)])
def test_only_the_bytes_of_the_records_change(first: int, second: int) -> None:
    once = changed(plain(), first)
    twice = changed(once, second)
    assert list(iter_kafka_records(twice)) == list(iter_kafka_records(plain()))
    assert crc_ok(twice)
    header = read_header(twice)
    assert (header.codec, header.size) == (second, len(twice))
    same = {"length": 0, "crc": 0, "attributes": 0}
    assert header._replace(**same) == read_header(plain())._replace(**same)
    assert check_batch(twice, version=9, rules=RecordRules(), now_ms=1 << 60) == header
    if second == 0:
        assert twice == plain()


def test_what_else_the_attributes_say_stays() -> None:
    batch = plain()
    stamp(batch, 5)
    header = read_header(changed(batch, 4, 9))
    assert (header.attributes, header.max_timestamp) == (LOG_APPEND_TIME | 4, 5)


async def test_records_that_cannot_be_read_or_are_too_large_are_refused() -> None:
    memory = InflatedBatches(MEMORY)

    async def code(batch: memoryview, rules: RecordRules) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            await change_codec(batch, rules, memory)
        return refused.value.code

    garbage = memoryview(bytearray(Batch(attributes=4, body=b"no zstd at all").encode()))
    assert await code(garbage, RecordRules(codec=1)) is ErrorCode.invalid_record
    small = changed(plain(), 4)
    rules = RecordRules(codec=0, batch_size_max=len(plain()) - 1)
    assert await code(small, rules) is ErrorCode.message_too_large
    bomb = Batch(attributes=4, body=bytes(cramjam.zstd.compress(bytes(INFLATED_SIZE_MAX + 1))))
    too_long = memoryview(bytearray(bomb.encode()))
    assert await code(too_long, RecordRules(codec=1)) is ErrorCode.invalid_record
    rules = RecordRules(codec=0, batch_size_max=len(plain()))
    assert await change_codec(small, rules, memory) == plain()
    assert memory.used == 0
