"""A partition's state from what objects carry of batches is the one that all batches make."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.partition.producer_table import WINDOW
from lakehead.storage.format import record_batch
from lakehead.storage.format.control_batch import Marker, encode_marker, read_marker
from lakehead.storage.format.partition_state import decode_packed
from lakehead.storage.format.producer_headers import (
    KEPT,
    StateBatch,
    parse_producer_headers,
    producer_headers,
    state_batch,
)
from lakehead.storage.format.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    patch,
    read_header,
)
from tests.support.repetitions import examples

batches = st.lists(
    st.tuples(
        st.integers(-1, 2),  # producer
        st.integers(0, 2),  # epoch
        st.integers(0, 50),  # sequence
        st.integers(1, 3),  # records
        st.sampled_from([0, 0, 0, TRANSACTIONAL, TRANSACTIONAL, CONTROL]),
    ),
    max_size=60,
)


def encoded(drawn: list[tuple[int, int, int, int, int]]) -> list[memoryview]:
    found, offset = [], 0
    for producer, epoch, sequence, count, attributes in drawn:
        if attributes & CONTROL:
            marker = Marker(is_commit=bool(sequence % 2), coordinator_epoch=sequence)
            batch = encode_marker(
                marker, producer_id=producer, producer_epoch=epoch, timestamp_ms=5
            )
            patch(batch, 0, offset, 0)
            found.append(memoryview(batch))
            offset += 1
            continue
        header = BatchHeader(
            offset, 60, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count
        )
        packed = record_batch._HEADER.pack(*header) + bytes(header.size - 61)
        found.append(memoryview(packed))
        offset += count
    return found


def snapshot(found: list[StateBatch], end: int) -> list[object]:
    """Producers, whose order is that of no state; and aborted transactions."""
    states = ProducerStates()
    for header, marker in found:
        states.add(header, header.base_offset, end, 7, marker)
    packed = decode_packed(states.snapshot(0, end).data)
    return [dict(packed.records()), packed.aborted, states.transactions.last_stable_offset(end)]


@given(batches, st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=examples(300), deadline=None)
def test_what_objects_carry_makes_the_same_state(
    drawn: list[tuple[int, int, int, int, int]], cuts: list[int]
) -> None:
    whole = encoded(drawn)
    end = read_header(whole[-1]).end_offset if whole else 0
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    carried: list[StateBatch] = []
    for first, last in pairwise(edges):
        carried += parse_producer_headers(producer_headers(whole[first:last]))
    assert KEPT == WINDOW
    assert snapshot(carried, end) == snapshot([state_batch(batch) for batch in whole], end)
    offsets = [header.base_offset for header, _ in carried]
    assert offsets == sorted(set(offsets))
    # Nothing of a transaction is left out, nothing of nobody is in.
    marked = [read_header(b) for b in whole if read_header(b).is_transactional]
    headers = {header for header, _ in carried}
    assert {h for h in marked if h.producer_id >= 0} <= headers
    assert all(header.producer_id >= 0 for header in headers)


def test_payloads_that_are_no_batches_are_passed_over() -> None:
    assert producer_headers([b"", b"x" * 60]) == b""
    assert list(parse_producer_headers(b"")) == []


def test_a_marker_that_is_cut_short_is_an_error_and_not_another_state() -> None:
    marker = Marker(is_commit=True, coordinator_epoch=3)
    batch = bytes(encode_marker(marker, producer_id=1, producer_epoch=0, timestamp_ms=5))
    assert read_marker(memoryview(batch)) == marker
    for size in range(61, len(batch)):
        with pytest.raises(ValueError, match="cut short"):
            list(parse_producer_headers(batch[:size]))
