"""The records of `__transaction_state`, byte by byte; what is cut short or strange is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.coordinator.transaction.messages import Transaction, TransactionState
from lakehead.broker.coordinator.transaction.record_formats import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

shorts, ints, longs = (st.integers(-(2**n), 2**n - 1) for n in (15, 31, 63))
topics = st.text(min_size=1, max_size=20)
transactions = st.builds(
    Transaction,
    transactional_id=st.just("x"),
    producer_id=longs,
    producer_epoch=shorts,
    timeout_ms=ints,
    state=st.sampled_from([s for s in TransactionState if s is not TransactionState.EMPTY]),
    partitions=st.frozensets(st.tuples(topics, ints), max_size=8),
    updated_ms=longs,
    start_ms=longs,
    previous_producer_id=longs,
    next_producer_id=longs,
    transaction_version=shorts,
)
ONGOING = Transaction(
    transactional_id="tx",
    producer_id=0x0102,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({("t", 1), ("t", 0), ("a", 2)}),
    updated_ms=0x0A,
    start_ms=0x0B,
    previous_producer_id=0x0102,
    transaction_version=2,
)


def test_a_value_is_laid_out_as_kafkas() -> None:
    assert encode_key("tx") == bytes.fromhex("0000 0002 7478")
    assert encode_value(ONGOING) == bytes.fromhex(
        "0001 0000000000000102 0003 0000ea60 01"  # version, producer, timeout, state
        "03 02 61 02 00000002 00"  # two topics: a-2
        "02 74 03 00000000 00000001 00"  # t-0, t-1
        "000000000000000a 000000000000000b"
        "02 00 08 0000000000000102 02 02 0002"  # tags 0 and 2
    )


def test_an_id_without_transaction_has_null_for_partitions() -> None:
    empty = Transaction(transactional_id="x", producer_id=1, timeout_ms=2, updated_ms=3)
    assert encode_value(empty) == bytes.fromhex(
        "0001 0000000000000001 ffff 00000002 00 00 0000000000000003 ffffffffffffffff 00"
    )
    assert decode_value("x", encode_value(empty)) == empty


def test_version_0_of_older_kafkas_is_read() -> None:
    data = bytes.fromhex(
        "0000 0000000000000102 0003 0000ea60 01"
        "00000001 0001 74 00000002 00000000 00000001"
        "000000000000000a 000000000000000b"
    )
    found = decode_value("tx", data)
    assert (found.producer_id, found.producer_epoch) == (0x0102, 3)
    assert found.partitions == {("t", 0), ("t", 1)}
    assert (found.previous_producer_id, found.transaction_version) == (-1, 0)


@given(transactions)
def test_what_is_written_is_read(transaction: Transaction) -> None:
    assert decode_value("x", encode_value(transaction)) == transaction


@given(st.text(max_size=40))
def test_keys_are_read(transactional_id: str) -> None:
    assert decode_key(encode_key(transactional_id)) == transactional_id


def test_every_value_that_is_cut_short_is_refused() -> None:
    data = encode_value(ONGOING)
    for size in range(len(data)):
        with pytest.raises(UnknownRecord):
            decode_value("tx", data[:size])


@pytest.mark.parametrize("data", ["0001 0000", "0000 0005 61", "0000 0001 ff"])
def test_strange_keys_are_refused(data: str) -> None:
    with pytest.raises(UnknownRecord):
        decode_key(bytes.fromhex(data))


def test_strange_values_are_refused() -> None:
    data = bytearray(encode_value(ONGOING))
    with pytest.raises(UnknownRecord, match="version 2"):
        decode_value("tx", b"\0\2" + data[2:])
    data[16] = 99
    with pytest.raises(UnknownRecord, match="state 99"):
        decode_value("tx", bytes(data))
