"""The kernels that check batches of very many records judge as Python does, error for error."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.partition import record_checks
from lakehead.broker.partition.record_checks import (
    MalformedRecord,
    TimeRange,
    places_out_of_time,
    records_without_key,
)
from lakehead.storage.format.record_batch import BatchHeader, read_header
from tests.support.record_batches import TestRecord, encode_record, seal_batch
from tests.support.repetitions import examples

BASES = (0, 1_700_000_000_000, -1, (1 << 63) - 1, -(1 << 63))
SIZES = (0, 1, -1, 5, 63, 64, 1 << 31, -(1 << 34), (1 << 63) - 1, -(1 << 63), (1 << 64) + 1)


def varint(value: int, padding: int = 0) -> bytes:
    """Zigzag, with bytes that add nothing behind it."""
    number = value << 1 if value >= 0 else ~(value << 1)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    for _ in range(padding):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


@st.composite
def odd_records(draw: st.DrawFn, place: int) -> bytes:
    """A record that is right but for some of its numbers."""

    def number(right: int) -> bytes:
        odd = draw(st.integers(0, 19))
        if odd == 0:
            return varint(draw(st.sampled_from(SIZES)))
        return varint(right, padding=draw(st.integers(1, 10)) if odd == 1 else 0)

    def field() -> bytes:
        content = draw(st.none() | st.binary(max_size=3))
        return number(-1 if content is None else len(content)) + (content or b"")

    count = draw(st.integers(0, 3))
    headers = b"".join(field() + field() for _ in range(count))
    delta = draw(st.sampled_from([0, 1, -5, *SIZES]))
    body = b"\0" + varint(delta) + number(place) + field() + field() + number(count) + headers
    return number(len(body)) + body


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records, whole or damaged, and how many the header of their batch names."""
    count = draw(st.integers(0, 6))
    if draw(st.booleans()):
        body = bytearray(b"".join(draw(odd_records(place)) for place in range(count)))
    else:
        body = bytearray()
        for place in range(count):
            key = draw(st.none() | st.binary(max_size=2))
            headers = tuple(("h", b"1") for _ in range(draw(st.integers(0, 2))))
            record = TestRecord(offset=place, key=key, value=b"value", headers=headers)
            body += encode_record(record, 0, 0)
    for _ in range(draw(st.integers(0, 2)) if body else 0):
        at = draw(st.integers(0, len(body) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                body[at] = draw(st.integers(0, 255))
            case 1:
                body.insert(at, draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF))))
            case 2:
                del body[at:]
                break
            case _:
                body += b"\xff" * 11
    return bytes(body), max(0, count + draw(st.sampled_from((0, 0, 0, 1, -1))))


def header_of(body: bytes, count: int, base: int) -> BatchHeader:
    sealed = seal_batch(
        body, base_offset=0, last_offset_delta=max(0, count - 1), record_count=count
    )
    return read_header(memoryview(sealed))._replace(base_timestamp=base)


def verdict(check: Any, *given: Any) -> Any:
    try:
        return check(*given)
    except MalformedRecord as error:
        return error.place, error.reason
    except ValueError as error:
        return str(error)


def both(check: Any, *given: Any) -> tuple[Any, Any]:
    """What Python and the kernel say."""
    found = []
    for least in (1 << 40, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_checks, "KERNEL_RECORDS_MIN", least)
            found.append(verdict(check, *given))
    return found[0], found[1]


@settings(max_examples=examples(200), deadline=None)
@given(bodies(), st.sampled_from(BASES))
def test_kernel_and_python_validate_alike(records: tuple[bytes, int], base: int) -> None:
    body, count = records
    header = header_of(body, count, base)
    times = TimeRange(base - 3, base + 3) if abs(base) < 1 << 62 else TimeRange(-9, 9)
    python, kernel = both(places_out_of_time, memoryview(body), header, times)
    assert python == kernel


@settings(max_examples=examples(200), deadline=None)
@given(bodies())
def test_kernel_and_python_miss_the_same_keys(records: tuple[bytes, int]) -> None:
    body, count = records
    python, kernel = both(records_without_key, memoryview(body), count)
    assert python == kernel


def test_no_more_places_are_named_than_a_response_takes() -> None:
    lacking = b"".join(
        encode_record(TestRecord(offset=n, key=None, value=b""), 0, 0) for n in range(1500)
    )
    python, kernel = both(records_without_key, memoryview(lacking + b"\xff"), 1501)
    assert python == kernel == list(range(1000))
    header = header_of(lacking, 1500, 0)
    python, kernel = both(places_out_of_time, memoryview(lacking), header, TimeRange(5, 6))
    assert python == kernel
    assert len(kernel) == 1000


def test_a_batch_of_millions_is_checked_in_no_time() -> None:
    """Millions of records, or of headers of one record, took 5 to 15 s of processor time."""
    fields = b"\0\0\0\1\1" + varint(8_000_000) + b"\0\1" * 8_000_000
    body = varint(len(fields)) + fields
    header, times = header_of(body, 1, 0), TimeRange(-9, 9)
    keyed = (b"\x10\0\0\0\2k\2v\0") * 2_000_000  # offsets are not looked at for keys
    for check in (
        lambda: places_out_of_time(memoryview(body), header, times),
        lambda: records_without_key(memoryview(keyed), 2_000_000),
    ):
        check()  # loads the kernels
        begun = time.thread_time()
        found: list[Any] = check()
        assert time.thread_time() - begun < 0.5
        assert found == []
