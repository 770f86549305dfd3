"""The records of `__share_group_state`, byte by byte; what is cut short or strange is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.coordinator.share.record_formats import (
    RecordKey,
    ShareSnapshot,
    ShareUpdate,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey, parse_key

KEY = SharePartitionKey("gr", bytes(range(1, 17)), 3)
SNAPSHOT = ShareSnapshot(
    epoch=1,
    state=ShareState(4, 2, 3, 5, (StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1),)),
    created_ms=10,
    written_ms=11,
)
UPDATE = ShareUpdate(1, 3, 4, -1, (StateBatch(5, 9, RecordState.AVAILABLE, 2),))

# Written by the classes of Kafka 4.2 for the same fields.
KAFKAS_SNAPSHOT_KEY = "0000000267720102030405060708090a0b0c0d0e0f1000000003"
KAFKAS_UPDATE_KEY = "0001000267720102030405060708090a0b0c0d0e0f1000000003"
KAFKAS_SNAPSHOT = (
    "00000000000100000002000000030000000000000004000000000000000a000000000000000b"
    "02000000000000000500000000000000090200010001000400000005"
)
KAFKAS_UPDATE = "00000000000100000003000000000000000402000000000000000500000000000000090000020000"

shorts, ints, longs = (st.integers(-(2**n), 2**n - 1) for n in (15, 31, 63))
batches = st.lists(st.builds(StateBatch, longs, longs, st.sampled_from(RecordState), shorts)).map(
    tuple
)
states = st.builds(ShareState, longs, ints, ints, ints, batches)


def test_records_are_laid_out_as_kafkas() -> None:
    assert encode_key(KEY).hex() == KAFKAS_SNAPSHOT_KEY
    assert encode_key(KEY, is_update=True).hex() == KAFKAS_UPDATE_KEY
    assert encode_snapshot(SNAPSHOT).hex() == KAFKAS_SNAPSHOT
    assert encode_update(UPDATE).hex() == KAFKAS_UPDATE


def test_kafkas_records_are_read() -> None:
    assert decode_key(bytes.fromhex(KAFKAS_UPDATE_KEY)) == RecordKey(is_update=True, key=KEY)
    assert decode_snapshot(bytes.fromhex(KAFKAS_SNAPSHOT)) == SNAPSHOT
    assert decode_update(bytes.fromhex(KAFKAS_UPDATE)) == UPDATE


@given(states, ints, longs)
def test_what_is_written_is_read(state: ShareState, epoch: int, time_ms: int) -> None:
    snapshot = ShareSnapshot(epoch=epoch, state=state, created_ms=time_ms, written_ms=time_ms)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    update = ShareUpdate(
        epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count, state.batches
    )
    assert decode_update(encode_update(update)) == update


@pytest.mark.parametrize("text", [KAFKAS_SNAPSHOT, KAFKAS_UPDATE])
def test_a_value_that_is_cut_short_is_refused(text: str) -> None:
    data = bytes.fromhex(text)
    decode = decode_snapshot if text == KAFKAS_SNAPSHOT else decode_update
    for size in range(len(data)):
        with pytest.raises(UnknownRecord):
            decode(data[:size])


def test_other_versions_and_states_are_refused() -> None:
    with pytest.raises(UnknownRecord):
        decode_key(b"\0\2" + encode_key(KEY)[2:])
    with pytest.raises(UnknownRecord):
        decode_snapshot(b"\0\1" + encode_snapshot(SNAPSHOT)[2:])
    with pytest.raises(UnknownRecord):
        decode_update(encode_update(UPDATE).replace(b"\0\0\2\0\0", b"\5\0\2\0\0"))


def test_the_key_of_a_share_partition_is_kafkas_text() -> None:
    assert KEY.text == "gr:AQIDBAUGBwgJCgsMDQ4PEA:3"
    assert parse_key("a:b:AQIDBAUGBwgJCgsMDQ4PEA:3") == KEY._replace(group_id="a:b")
    for bad in ("", "a", "a:b:1", ":AQIDBAUGBwgJCgsMDQ4PEA:3", "a:AQIDBAUGBwgJCgsMDQ4PEA:x"):
        with pytest.raises(ValueError):  # each kind of text has its own message
            parse_key(bad)
