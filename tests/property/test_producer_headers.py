"""A partition's state from the headers that objects carry is the one that all batches make."""

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.partition.producer_state import WINDOW, ProducerStates
from storage.format import record_batch
from storage.format.producer_headers import KEPT, parse_producer_headers, producer_headers
from storage.format.record_batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header

batches = st.lists(
    st.tuples(
        st.integers(-1, 2),  # producer
        st.integers(0, 2),  # epoch
        st.integers(0, 50),  # sequence
        st.integers(1, 3),  # records
        st.sampled_from([0, 0, 0, TRANSACTIONAL, CONTROL | TRANSACTIONAL]),
    ),
    max_size=60,
)


def encoded(drawn: list[tuple[int, int, int, int, int]]) -> list[bytes]:
    found, offset = [], 0
    for producer, epoch, sequence, count, attributes in drawn:
        header = BatchHeader(
            offset, 60, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count
        )
        found.append(record_batch._HEADER.pack(*header) + bytes(header.size - 61))
        offset += count
    return found


def snapshot(headers: list[BatchHeader], end: int) -> list[object]:
    """The producers in order of their ids, which is that of no state."""
    states = ProducerStates()
    for header in headers:
        states.add(header, header.base_offset, end, 7)
    return sorted(msgspec.msgpack.decode(states.snapshot(end))[1])


@given(batches, st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=300, deadline=None)
def test_what_objects_carry_makes_the_same_state(
    drawn: list[tuple[int, int, int, int, int]], cuts: list[int]
) -> None:
    whole = encoded(drawn)
    end = sum(count for *_, count, _ in drawn)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    carried: list[BatchHeader] = []
    for first, last in pairwise(edges):
        carried += parse_producer_headers(producer_headers(whole[first:last]))
    assert KEPT == WINDOW
    assert snapshot(carried, end) == snapshot([read_header(batch) for batch in whole], end)
    offsets = [header.base_offset for header in carried]
    assert offsets == sorted(set(offsets))
    # Nothing of a transaction is left out, nothing of nobody is in.
    marked = [read_header(b) for b in whole if read_header(b).is_transactional]
    assert {h for h in marked if h.producer_id >= 0} <= set(carried)
    assert all(header.producer_id >= 0 for header in carried)


def test_payloads_that_are_no_batches_are_passed_over() -> None:
    assert producer_headers([b"", b"x" * 60]) == b""
    assert parse_producer_headers(b"") == []
