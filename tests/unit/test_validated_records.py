"""The broker's check of records and the kernel that reads them for the lake hold the same."""

import random

from lakehead.broker.partition.record_checks import (
    EVERY_TIME,
    MalformedRecord,
    places_out_of_time,
)
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.record_check import RecordChecker
from tests.support.record_batches import TestRecord, encode_record, seal_batch

BASE = 1_700_000_000_000


def test_what_validation_takes_can_be_read_and_nothing_else() -> None:
    rng = random.Random(3)
    headers = (("h", b"1"), ("i", None))
    plain = b"".join(
        encode_record(TestRecord(offset=n, key=b"k", value=b"value", headers=headers), 0, BASE)
        for n in range(4)
    )
    checker = RecordChecker()
    taken = 0
    for _ in range(10_000):
        body = bytearray(plain)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[place] = rng.randrange(256)
                case 1:
                    del body[place]
                case _:
                    body.insert(place, rng.choice((0, 1, 0x7F, 0x80, 0xFF)))
        sealed = memoryview(
            seal_batch(bytes(body), base_offset=0, last_offset_delta=3, record_count=4)
        )
        header = read_header(sealed)
        found = checker.check(header, sealed)
        try:
            places = places_out_of_time(memoryview(body), header, EVERY_TIME)
        except MalformedRecord:
            assert found is not None, body.hex()
            assert found.is_whole, body.hex()
            continue
        assert (found is not None) == bool(places), body.hex()
        taken += found is None
    assert 200 < taken < 9_000
