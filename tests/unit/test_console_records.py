"""Records as pages of the console show them, and the viewers that pages are made for."""

import base64
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.console.record_filter import RecordFilter, is_equal
from lakehead.broker.console.records import (
    INFLATED_OF_PAGE_MAX,
    TEXT_MAX,
    Decode,
    FoundBatches,
    Reading,
    RecordSearch,
    as_text,
    undecoded,
)
from lakehead.broker.console.viewer import is_foreign_host
from lakehead.broker.observability.page_access import PageAccess, basic_credentials
from lakehead.broker.settings import Settings
from lakehead.storage.format.record_batch import read_header
from tests.support.record_batches import TestRecord, encode_batch


def batch(base: int, values: list[bytes | None], **options: Any) -> memoryview:
    records = [
        TestRecord(offset=base + delta, key=b"k", value=value) for delta, value in enumerate(values)
    ]
    return memoryview(bytearray(encode_batch(records, **options)))


def covers(one: memoryview, position: int) -> bool:
    """True for a batch that a fetch from `position` would return."""
    header = read_header(one)
    return header.base_offset + header.last_offset_delta >= position


def page(
    batches: list[memoryview],
    offset: int,
    limit: int = 50,
    decode: Decode = undecoded,
    **wanted: str,
) -> RecordSearch:
    found = FoundBatches(offset=offset, start=0, end=100, is_led=True, batches=batches)
    search = RecordSearch(
        RecordFilter(**wanted), limit=limit, is_time_over=lambda: False, decode_values=decode
    )
    search.add(found)
    return search


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    offset=st.integers(0, 24),
    limit=st.integers(1, 30),
    codec=st.sampled_from(["none", "zstd", "gzip"]),
)
def test_pages_follow_one_another_without_gap_or_repetition(
    sizes: list[int], offset: int, limit: int, codec: str
) -> None:
    batches, base = [], 0
    for size in sizes:
        batches.append(batch(base, [b"%d" % (base + one) for one in range(size)], codec=codec))
        base += size
    seen, position = [], min(offset, base)
    while position < base:
        found = page([one for one in batches if covers(one, position)], position, limit)
        assert len(found.records) <= limit
        assert found.position > position
        seen += [int(record.value or "") for record in found.records]
        position = found.position
    assert seen == list(range(min(offset, base), base))


def test_a_text_is_looked_for_in_keys_and_values() -> None:
    found = page([batch(0, [b"apple", b"pear", None])], 0, text="pear")
    assert [record.offset for record in found.records] == [1]
    assert found.position == 3
    assert len(page([batch(0, [b"apple", b"pear", None])], 0, text="k").records) == 3


def test_a_filter_looks_at_the_whole_key() -> None:
    assert len(page([batch(0, [b"x"])], 0, key="k").records) == 1
    assert not page([batch(0, [b"x"])], 0, key="ke").records


@pytest.mark.parametrize(
    ("field", "equal_to", "passes"),
    [
        ("a.b", "1", True),
        ("a.b", "1.0", True),
        ("a.b", "", True),
        ("a.b", '"1"', False),
        ("a.c", "", False),
        ("l.1.n", "x", True),
        ("l.1.n", '"x"', True),
        ("l.2.n", "x", False),
        ("l.n", "", False),
        ("t", "true", True),
        ("t", "1", False),
        ("d.e", "7", True),
        ("z", "null", True),
    ],
)
def test_a_field_of_a_value_is_found_by_its_path(field: str, equal_to: str, passes: bool) -> None:
    value = b'{"a":{"b":1},"l":[{},{"n":"x"}],"t":true,"d.e":7,"z":null}'
    batches = [batch(0, [b"no JSON", b"{bad", b"[1]", value, None])]
    found = page(batches, 0, field=field, equal_to=equal_to)
    assert [record.offset for record in found.records] == ([3] if passes else [])


@given(st.text(max_size=8), st.text(max_size=8))
def test_any_text_is_compared(found: str, text: str) -> None:
    assert is_equal(found, found)
    assert is_equal(found, text) in {True, False}


def test_a_filter_looks_at_decoded_values_and_a_fault_leaves_its_neighbours() -> None:
    def decode(data: Sequence[bytes | None]) -> list[Reading]:
        return [
            Reading(fault="malformed")
            if one == b"bad"
            else Reading(text=f'{{"n":{len(one or b"")}}}', schema="AVRO schema 7")
            for one in data
        ]

    batches = [batch(0, [b"1", b"bad", b"333"])]
    assert [one.fault for one in page(batches, 0, decode=decode).records] == ["", "malformed", ""]
    found = page(batches, 0, decode=decode, field="n", equal_to="3")
    assert [one.offset for one in found.records] == [2]
    assert found.records[0].value == '{\n  "n": 3\n}'
    assert [one.value for one in page(batches, 0, decode=decode, text="bad").records] == ["bad"]


def test_a_search_whose_time_is_over_goes_on_at_its_position() -> None:
    batches = [batch(base, [b"x"] * 400) for base in (0, 400, 800)]
    found = FoundBatches(offset=0, start=0, end=1200, is_led=True, batches=batches)
    search = RecordSearch(RecordFilter(text="y"), limit=10, is_time_over=lambda: True)
    search.add(found)
    assert search.position == search.looked_at == 500
    assert search.is_over


def test_a_batch_that_cannot_be_read_is_named_and_passed() -> None:
    damaged = batch(0, [b"x" * 100] * 3, codec="zstd")
    damaged[-10:] = b"\0" * 10
    damaged[70:90] = b"\xff" * 20
    found = page([damaged, batch(3, [b"y"])], 0)
    assert "offset 0" in found.problems[0]
    assert [record.value for record in found.records] == ["y"]
    assert found.position == 4


def test_bytes_are_shown_as_json_text_or_hexadecimal() -> None:
    assert as_text(None) is None
    assert as_text(b'{"a":1}') == '{\n  "a": 1\n}'
    assert as_text(b"{not json") == "{not json"
    assert as_text(b"\xff\x00") == "ff 00"
    assert as_text("ä".encode()) == "ä"
    assert as_text(b"[" * 3000) == "[" * 3000


@given(st.binary(max_size=3 * TEXT_MAX))
def test_any_bytes_have_a_text_of_bounded_length(data: bytes) -> None:
    text = as_text(data)
    assert text is not None
    assert len(text) <= 6 * TEXT_MAX + 2


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 900 + b"]" * 900,  # each line has blanks for its depth
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b'{"a": "\\ud800"}',  # half of a character cannot be written as UTF-8
        b"\x00\x1b[31mred",
        "\u202egnp.exe".encode(),
        b"1" * 10_000_000,
        b"\xff" * 10_000_000,
    ],
)
def test_a_hostile_value_is_short_text_that_can_be_seen_and_written(value: bytes) -> None:
    text = as_text(value)
    assert text is not None
    assert len(text) <= 4 * TEXT_MAX
    text.encode()
    assert not {"\x00", "\x1b", "\u202e"} & set(text)


def test_many_and_long_headers_are_cut() -> None:
    headers = tuple((f"n{number}" * 1_000, b"v" * 100_000) for number in range(300))
    one = TestRecord(offset=0, key=b"k", value=b"v", headers=headers)
    (record,) = page([memoryview(bytearray(encode_batch([one])))], 0).records
    assert record.headers_left_out == 300 - len(record.headers) > 0
    assert sum(len(name) + len(value or "") for name, value in record.headers) < 60_000


def test_batches_that_inflate_to_gigabytes_end_the_search_and_not_the_node() -> None:
    size = 16 << 20
    bomb = bytes(batch(0, [b"\0" * size], codec="zstd"))
    assert len(bomb) < 10_000
    batches = []
    for offset in range(100):  # 1.6 GB, of which a page looks at an eighth
        body = bytearray(bomb)
        body[:8] = offset.to_bytes(8, "big")
        batches.append(memoryview(body))
    tracemalloc.start()
    try:
        found = page(batches, 0, text="no such text")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.is_over
    assert INFLATED_OF_PAGE_MAX // size <= found.position < 20
    assert peak < 8 * size
    later = page(batches[found.position :], found.position)
    assert later.position > found.position, "the next page goes on"


def test_credentials_are_taken_from_a_header_of_http_basic_alone() -> None:
    def header(text: bytes) -> str:
        return f"Basic {base64.b64encode(text).decode()}"

    assert basic_credentials(header(b"ann:pass:word")) == ("ann", "pass:word")
    assert basic_credentials(header(b"\xff:x")) == ("", "")
    assert basic_credentials("Basic !!") == ("", "")
    assert basic_credentials("Bearer x") == ("", "")
    assert basic_credentials("") == ("", "")


@pytest.mark.parametrize(
    ("host", "is_foreign"),
    [
        ("127.0.0.1:9464", False),
        ("localhost", False),
        ("LOCALHOST:9464", False),
        ("[::1]:9464", False),
        ("evil.example:9464", True),
        ("127.0.0.1.evil.example", True),
        ("", True),
    ],
)
def test_a_page_without_a_password_is_only_for_names_of_this_machine(
    host: str, is_foreign: bool
) -> None:
    assert is_foreign_host(PageAccess(Settings()), host) is is_foreign
    guarded = PageAccess(Settings(metrics_users="a:b"))
    assert not is_foreign_host(guarded, host)
