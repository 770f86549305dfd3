"""Records of consumer groups: Kafka's own bytes, round trips, broken input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    ClassicMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    GroupEpoch,
    RecordKind,
    ResolvedRegex,
    Target,
    TargetEpoch,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from lakehead.broker.coordinator.group.record_formats import decode_key
from lakehead.broker.coordinator.record_reader import UnknownRecord

TOPIC_ID = bytes(range(1, 17))
MEMBER = MemberMetadata(
    instance_id="i",
    client_id="c",
    client_host="/h",
    topics=frozenset({"t", "u"}),
    regex="r.*",
    rebalance_timeout_ms=300_000,
    assignor="range",
)
CLASSIC = ClassicMetadata(session_timeout_ms=45_000, protocols=(("range", b"\1\2"),))
ID_HEX = TOPIC_ID.hex()
MEMBER_HEX = "00000269000263032f68030274027504722e2a000493e00672616e6765"
WRITTEN_BY_KAFKA: list[tuple[RecordKind, ConsumerGroupValue, str]] = [
    (
        RecordKind.GROUP,
        GroupEpoch(epoch=7, topics_hash=258),
        "0000" + "00000007" + "010008" + "0000000000000102",
    ),
    (RecordKind.GROUP, GroupEpoch(epoch=7), "0000" + "00000007" + "00"),
    (RecordKind.MEMBER, MEMBER, MEMBER_HEX + "00"),
    (
        RecordKind.MEMBER,
        MemberMetadata(
            instance_id="i",
            client_id="c",
            client_host="/h",
            topics=frozenset({"t", "u"}),
            regex="r.*",
            rebalance_timeout_ms=300_000,
            assignor="range",
            classic=CLASSIC,
        ),
        MEMBER_HEX + "010011010000afc8020672616e67650301020000",
    ),
    (RecordKind.TARGET_EPOCH, TargetEpoch(epoch=9), "00000000000900"),
    (
        RecordKind.TARGET,
        Target(partitions={TOPIC_ID: frozenset({0, 3})}),
        "000002" + ID_HEX + "0300000000000000030000",
    ),
    (
        RecordKind.CURRENT,
        CurrentAssignment(
            epoch=5,
            previous_epoch=4,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned={TOPIC_ID: frozenset({1})},
            revoking={TOPIC_ID: frozenset({2})},
        ),
        "0000"
        + ("00000005" + "00000004" + "01")
        + ("02" + ID_HEX + "020000000100")
        + ("02" + ID_HEX + "020000000200")
        + "00",
    ),
    (
        RecordKind.CURRENT,
        CurrentAssignment(
            epoch=5,
            previous_epoch=4,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned={TOPIC_ID: frozenset({1, 3})},
            revoking={TOPIC_ID: frozenset({2})},
            assigned_epochs={TOPIC_ID: (4, 5)},
            revoking_epochs={TOPIC_ID: (3,)},
        ),
        "0000"
        + ("00000005" + "00000004" + "01")
        + ("02" + ID_HEX + "030000000100000003" + "010009" + "030000000400000005")
        + ("02" + ID_HEX + "0200000002" + "010005" + "0200000003")
        + "00",
    ),
    (
        RecordKind.REGEX,
        ResolvedRegex(topics=frozenset({"t"}), version=3, timestamp_ms=4),
        "0000" + "020274" + "0000000000000003" + "0000000000000004" + "00",
    ),
]
"""Written by the classes of Kafka 4.3.0."""


@pytest.mark.parametrize(("kind", "value", "written"), WRITTEN_BY_KAFKA)
def test_values_are_kafkas_bytes(kind: RecordKind, value: ConsumerGroupValue, written: str) -> None:
    assert encode_consumer_value(value).hex() == written
    assert decode_consumer_value(kind, bytes.fromhex(written)) == value


def test_keys_are_kafkas_bytes() -> None:
    keys = {
        RecordKind.GROUP: "0003000167",
        RecordKind.MEMBER: "000500016700016d",
        RecordKind.TARGET_EPOCH: "0006000167",
        RecordKind.TARGET: "000700016700016d",
        RecordKind.CURRENT: "000800016700016d",
        RecordKind.REGEX: "001000016700016d",
    }
    for kind, written in keys.items():
        has_name = len(written) > len(keys[RecordKind.GROUP])
        key = ConsumerGroupKey(kind, "g", "m" if has_name else "")
        assert encode_consumer_key(key).hex() == written
        assert decode_key(bytes.fromhex(written)) == key


text = st.text(max_size=8)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.dictionaries(
    st.binary(min_size=16, max_size=16),
    st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    max_size=3,
)
values = st.one_of(
    st.builds(GroupEpoch, epoch=i32, topics_hash=i64).map(lambda v: (RecordKind.GROUP, v)),
    st.builds(TargetEpoch, epoch=i32).map(lambda v: (RecordKind.TARGET_EPOCH, v)),
    st.builds(Target, partitions=partitions).map(lambda v: (RecordKind.TARGET, v)),
    st.builds(
        CurrentAssignment,
        epoch=i32,
        previous_epoch=i32,
        state=st.sampled_from(MemberState),
        assigned=partitions,
        revoking=partitions,
    ).map(lambda v: (RecordKind.CURRENT, v)),
    st.builds(ResolvedRegex, topics=st.frozensets(text), version=i64, timestamp_ms=i64).map(
        lambda v: (RecordKind.REGEX, v)
    ),
    st.builds(
        MemberMetadata,
        instance_id=st.none() | text,
        rack_id=st.none() | text,
        client_id=text,
        client_host=text,
        topics=st.frozensets(text),
        regex=text,
        rebalance_timeout_ms=i32,
        assignor=st.none() | text,
        classic=st.none()
        | st.builds(
            ClassicMetadata,
            session_timeout_ms=i32,
            protocols=st.lists(st.tuples(text, st.binary(max_size=9)), max_size=3).map(tuple),
        ),
    ).map(lambda v: (RecordKind.MEMBER, v)),
)


@given(values)
def test_values_come_back(case: tuple[RecordKind, ConsumerGroupValue]) -> None:
    kind, value = case
    assert decode_consumer_value(kind, encode_consumer_value(value)) == value


@given(values, st.data())
def test_values_that_are_cut_short_are_refused(
    case: tuple[RecordKind, ConsumerGroupValue], data: st.DataObject
) -> None:
    kind, value = case
    whole = encode_consumer_value(value)
    end = data.draw(st.integers(0, 2))
    with pytest.raises(UnknownRecord):
        decode_consumer_value(kind, whole[:end])


def test_other_kinds_and_versions_are_refused() -> None:
    with pytest.raises(UnknownRecord):
        decode_key(bytes.fromhex("0009000167"))
    with pytest.raises(UnknownRecord):
        decode_consumer_value(RecordKind.TARGET_EPOCH, bytes.fromhex("00010000000900"))


def test_a_state_of_a_later_release_is_kept_apart() -> None:
    value = bytes.fromhex("0000" + "00000005" + "00000004" + "09" + "0101" + "00")
    known = decode_consumer_value(RecordKind.CURRENT, value)
    assert isinstance(known, CurrentAssignment)
    assert known.state is MemberState.UNKNOWN
