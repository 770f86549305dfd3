"""Bytes about groups: what clients put into JoinGroup, and what a coordinator finds in its log."""

import struct

from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    decode_consumer_value,
)
from lakehead.broker.coordinator.group.consumer_protocol import read_assignment, read_subscription
from lakehead.broker.coordinator.group.record_formats import decode_key
from lakehead.broker.coordinator.record_reader import UnknownRecord
from tests.unit.test_consumer_group_records import WRITTEN_BY_KAFKA

_KEY_LENGTH = struct.Struct(">H")


def read_consumer_protocol(data: bytes) -> None:
    """A subscription of JoinGroup and an assignment of SyncGroup."""
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except UnknownRecord:
            continue


def consumer_protocol_seeds() -> list[bytes]:
    topic = struct.pack(">h1s", 1, b"t")
    owned = struct.pack(">i", 1) + topic + struct.pack(">iii", 2, 0, 1)
    subscription = struct.pack(">hi", 3, 1) + topic + struct.pack(">i", -1) + owned
    subscription += struct.pack(">ih1s", 4, 1, b"r")
    return [subscription, struct.pack(">h", 0) + owned + struct.pack(">i", -1)]


def read_group_record(data: bytes) -> None:
    """A record of a consumer group: the length of its key, the key, the value."""
    if len(data) < _KEY_LENGTH.size:
        return
    end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(data)[0]
    key = decode_key(data[_KEY_LENGTH.size : end])
    if isinstance(key, ConsumerGroupKey):
        decode_consumer_value(key.kind, data[end:])


def group_record_seeds() -> list[bytes]:
    return [
        _KEY_LENGTH.pack(8) + struct.pack(">hh1sh1s", kind, 1, b"g", 1, b"m") + bytes.fromhex(value)
        for kind, _, value in WRITTEN_BY_KAFKA
    ]
