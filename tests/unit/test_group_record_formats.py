"""Records of `__consumer_offsets`: golden bytes, old versions, broken input."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.coordinator.group.messages import GroupSnapshot, MemberSnapshot
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import crc_ok, read_header
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.format.varint import encode_varint

text = st.text(max_size=20)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberSnapshot,
    member_id=text,
    instance_id=st.none() | text,
    client_id=text,
    client_host=text,
    rebalance_timeout_ms=st.integers(1, 2**31 - 1),
    session_timeout_ms=st.integers(1, 2**31 - 1),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
groups = st.builds(
    GroupSnapshot,
    protocol_type=text,
    generation=i32,
    protocol_name=st.none() | text,
    leader=st.none() | text,
    members=st.lists(members, max_size=3).map(tuple),
    state_timestamp_ms=i64,
)
offsets = st.builds(
    CommittedOffset,
    offset=i64,
    leader_epoch=i32,
    metadata=text | st.text("é", min_size=60, max_size=70),
    commit_timestamp_ms=i64,
    topic_id=st.none() | st.binary(min_size=16, max_size=16),
) | st.builds(
    CommittedOffset,
    offset=i64,
    metadata=text,
    commit_timestamp_ms=i64,
    expire_timestamp_ms=st.integers(0, 2**63 - 1),
)
keys = st.builds(OffsetKey, group_id=text, topic=text, partition=i32) | st.builds(
    GroupKey, group_id=text
)


def test_offset_bytes_are_kafkas() -> None:
    key = encode_key(OffsetKey(group_id="g", topic="té", partition=7))
    assert key.hex() == "0001" + "000167" + "000374c3a9" + "00000007"
    value = encode_offset(
        CommittedOffset(offset=258, leader_epoch=3, metadata="m", commit_timestamp_ms=5)
    )
    numbers = "0000000000000102" + "00000003" + "026d" + "0000000000000005"
    assert value.hex() == "0004" + numbers + "00"
    value = encode_offset(
        CommittedOffset(
            offset=258,
            leader_epoch=3,
            metadata="m",
            commit_timestamp_ms=5,
            topic_id=bytes(range(16)),
        )
    )
    assert value.hex() == "0004" + numbers + "01" + "0010" + bytes(range(16)).hex()
    value = encode_offset(
        CommittedOffset(offset=258, metadata="m", commit_timestamp_ms=5, expire_timestamp_ms=6)
    )
    assert value.hex() == "0001" + "0000000000000102" + "00016d" + f"{5:016x}" + f"{6:016x}"


def test_group_bytes_are_kafkas() -> None:
    assert encode_key(GroupKey(group_id="g")).hex() == "0002" + "000167"
    value = encode_group(
        GroupSnapshot(
            protocol_type="consumer",
            generation=4,
            protocol_name=None,
            leader="l",
            members=(),
            state_timestamp_ms=-1,
        )
    )
    protocol_type = "0008" + b"consumer".hex()
    expected = "0003" + protocol_type + "00000004" + "ffff" + "00016c" + "ff" * 8 + "00000000"
    assert value.hex() == expected


def test_older_and_newer_offset_values_are_read() -> None:
    common = struct.pack(">q", 9)
    stamp = struct.pack(">q", 77)
    text_m = b"\x00\x01m"
    assert decode_offset(b"\x00\x00" + common + text_m + stamp).offset == 9
    with_expiry = b"\x00\x01" + common + text_m + stamp + stamp
    assert decode_offset(with_expiry).commit_timestamp_ms == 77
    flexible = b"\x00\x04" + common + b"\x00\x00\x00\x02" + b"\x02m" + stamp + b"\x00"
    assert decode_offset(flexible) == CommittedOffset(
        offset=9, leader_epoch=2, metadata="m", commit_timestamp_ms=77
    )
    plain = b"\x00\x03" + common + b"\x00\x00\x00\x02" + text_m + stamp
    assert decode_offset(plain) == decode_offset(flexible)
    tags = b"\x02" + b"\x00\x10" + b"i" * 16 + b"\x05\x01x"
    assert decode_offset(flexible[:-1] + tags).topic_id == b"i" * 16
    with pytest.raises(UnknownRecord):
        decode_offset(flexible[:-1] + b"\x01\x00\x03iii")


@given(keys)
def test_keys_round_trip(key: OffsetKey | GroupKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(offsets)
def test_offsets_round_trip(offset: CommittedOffset) -> None:
    assert decode_offset(encode_offset(offset)) == offset


@given(groups)
def test_groups_round_trip(group: GroupSnapshot) -> None:
    assert decode_group(encode_group(group)) == group


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except UnknownRecord:
            pass


@pytest.mark.parametrize("kind", [9, 17, -1])
def test_unknown_kinds_are_refused(kind: int) -> None:
    with pytest.raises(UnknownRecord):
        decode_key(struct.pack(">h", kind) + b"\x00\x01g")


@given(
    st.lists(
        st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)),
        min_size=1,
        max_size=80,
    ),
    st.integers(0, 2**60),
)
def test_written_batches_read_back(
    records: list[tuple[bytes, bytes | None]], timestamp: int
) -> None:
    batch = memoryview(encode_batch(records, timestamp))
    header = read_header(batch)
    assert crc_ok(batch)
    assert header.size == len(batch)
    assert (header.record_count, header.last_offset) == (len(records), len(records) - 1)
    assert [(r.key, r.value) for r in iter_kafka_records(batch)] == records
    assert {r.timestamp for r in iter_kafka_records(batch)} == {timestamp}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-65, "8101"), (300, "d804")],
)
def test_varints_are_zigzag(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
