"""Produce requests whose batches are wrong: an error code, nothing in the log, others unharmed."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.process import ServerProcess
from tests.support import wire as protocol
from tests.support.broker_process import server_under_test
from tests.support.traffic import create_topic
from tests.support.wire import Batch, Wire, old_message_set

TOPIC, NEIGHBOURS = "batches", "neighbours"
OK, CORRUPT, UNKNOWN_TOPIC, TOO_LARGE = 0, 2, 3, 10
INVALID_TIMESTAMP, OUT_OF_ORDER_SEQUENCE, UNSUPPORTED_FORMAT = 32, 45, 43
UNSUPPORTED_CODEC, INVALID_RECORD = 76, 87
INVALID_REQUEST, UNKNOWN_PRODUCER_ID, UNKNOWN_SERVER_ERROR = 42, 59, -1
REFUSED = {CORRUPT, UNSUPPORTED_FORMAT, UNSUPPORTED_CODEC, INVALID_RECORD, INVALID_REQUEST}

GOOD = Batch(values=(b"one", b"two"))
WRONG: dict[str, tuple[bytes | None, set[int]]] = {
    "nothing": (None, REFUSED),
    "empty": (b"", REFUSED),
    "header cut": (GOOD.encode()[:40], REFUSED),
    "body cut": (GOOD.encode()[:-3], REFUSED),
    "bytes after the batch": (GOOD.encode() + b"\x00" * 7, REFUSED | {OK}),  # Kafka drops them
    "two batches": (GOOD.encode() * 2, REFUSED),
    "crc": (Batch(crc=1).encode(), {CORRUPT}),
    "flipped bit": (GOOD.encode()[:-1] + bytes((GOOD.encode()[-1] ^ 1,)), {CORRUPT}),
    "magic 0": (old_message_set(0), REFUSED),
    "magic 1": (old_message_set(1), REFUSED),
    "magic 3": (Batch(magic=3).encode(), REFUSED),
    "magic -1": (Batch(magic=-1).encode(), REFUSED),
    "length 0": (Batch(length=0).encode(), REFUSED),
    "length -1": (Batch(length=-1).encode(), REFUSED),
    "length too small": (Batch(length=20).encode(), REFUSED),
    "length too large": (Batch(length=5000).encode(), REFUSED),
    "length 2 GiB": (Batch(length=2**31 - 1).encode(), REFUSED),
    "count above": (Batch(record_count=9).encode(), REFUSED),
    "count 2 Gi": (Batch(record_count=2**31 - 1).encode(), REFUSED),
    "count -1": (Batch(record_count=-1).encode(), REFUSED),
    "no records": (Batch(values=(), last_offset_delta=0).encode(), REFUSED),
    "delta above": (Batch(last_offset_delta=5).encode(), REFUSED),
    "delta 2 Gi": (Batch(last_offset_delta=2**31 - 1).encode(), REFUSED),
    "delta -1": (Batch(last_offset_delta=-1).encode(), REFUSED),
    "control batch": (Batch(attributes=0x20).encode(), REFUSED),
    "LogAppendTime": (Batch(attributes=0x08).encode(), {INVALID_TIMESTAMP}),
    "of the year 9999": (Batch(timestamp=253_402_300_799_000).encode(), {INVALID_TIMESTAMP}),
    "of the end of time": (Batch(timestamp=2**63 - 1).encode(), {INVALID_TIMESTAMP}),
    "too large": (Batch(values=(b"x" * 1_100_000,)).encode(), {TOO_LARGE}),
    "producer without sequence": (
        Batch(producer_id=5, producer_epoch=0, base_sequence=-1).encode(),
        REFUSED | {OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID},
    ),
}

if os.environ.get("BROKER") == "kafka":
    # Kafka does so for a few of these; a client must not be told that of its own mistake.
    REFUSED |= {UNKNOWN_SERVER_ERROR}
    del WRONG["nothing"]  # and this it never answers


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("batches")
    with server_under_test(folder) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        create_topic(server.bootstrap, NEIGHBOURS, 2)
        yield server


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_batch_gets_its_error_and_leaves_no_trace(broker: ServerProcess, name: str) -> None:
    records, codes = WRONG[name]
    with Wire(broker.port) as bystander, Wire(broker.port) as wire:
        end = bystander.end_offset(TOPIC, 0)
        error = wire.produce_error(TOPIC, 0, records)
        assert error in codes
        taken = 2 if error == OK else 0
        assert bystander.end_offset(TOPIC, 0) == end + taken
        assert wire.produce_error(TOPIC, 0, GOOD.encode()) == OK
        assert bystander.end_offset(TOPIC, 0) == end + taken + 2


def test_an_unknown_topic_or_partition_is_an_error_of_its_own(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        assert wire.produce_error("no-such-topic", 0, GOOD.encode()) == UNKNOWN_TOPIC
        for partition in (1, -1, 2**31 - 1):
            assert wire.produce_error(TOPIC, partition, GOOD.encode()) == UNKNOWN_TOPIC
        assert wire.produce_error(TOPIC, 0, GOOD.encode()) == OK


def test_one_wrong_partition_does_not_spoil_its_neighbour(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        request = _two_partitions(NEIGHBOURS, Batch(crc=1).encode(), GOOD.encode())
        answer = wire.ask(request)
        assert answer is not None
        assert wire.end_offset(NEIGHBOURS, 0) == 0
        assert wire.end_offset(NEIGHBOURS, 1) == 2


def _two_partitions(topic: str, first: bytes, second: bytes) -> bytes:
    entries = (
        struct.pack(">i", index) + protocol.data(records)
        for index, records in enumerate((first, second))
    )
    topics = protocol.array(protocol.string(topic) + protocol.array(*entries))
    head = (
        protocol.header(protocol.PRODUCE, 8)
        + protocol.string(None)
        + struct.pack(">hi", -1, 10_000)
    )
    return head + topics


def test_a_gap_in_the_sequence_is_refused(broker: ServerProcess) -> None:
    def batch(sequence: int) -> bytes:
        return Batch(producer_id=77, producer_epoch=0, base_sequence=sequence).encode()

    with Wire(broker.port) as wire:
        end = wire.end_offset(TOPIC, 0)
        assert wire.produce_error(TOPIC, 0, batch(0)) == OK
        assert wire.produce_error(TOPIC, 0, batch(2)) == OUT_OF_ORDER_SEQUENCE
        assert wire.produce_error(TOPIC, 0, batch(1)) == OK
        assert wire.produce_error(TOPIC, 0, batch(0)) == OK, "a repeat is answered as before"
        assert wire.end_offset(TOPIC, 0) == end + 2


@pytest.mark.parametrize("attributes", [5, 6, 7])
def test_an_unknown_codec_is_refused(broker: ServerProcess, attributes: int) -> None:
    with Wire(broker.port) as wire:
        end = wire.end_offset(TOPIC, 0)
        error = wire.produce_error(TOPIC, 0, Batch(attributes=attributes).encode())
        assert error in REFUSED
        assert wire.end_offset(TOPIC, 0) == end
