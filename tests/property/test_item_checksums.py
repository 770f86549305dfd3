"""Each byte of an index item is under a checksum, and each batch under its own: both are checked
in one look at the bytes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.decode.checksums import first_wrong
from lakehead.lake.decode.decoder import BlockRange, RecordDecoder
from lakehead.storage.errors import CorruptObject
from tests.support.record_batches import CODECS, TestRecord, block, encode_batch

SOURCE = BlockRange(
    key="data/x",
    position=5000,
    stream_id=7,
    topic="orders",
    partition=3,
    first_offset=0,
    end_offset=1 << 60,
)
sizes = st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=4), min_size=1, max_size=4)


def items(shape: Sequence[Sequence[int]], codec: str) -> list[bytes]:
    """One for each of `shape`: batches of a record of so many bytes."""
    made, offset = [], 0
    for values in shape:
        held = []
        for size in values:
            held.append(encode_batch([TestRecord(offset=offset, value=b"v" * size)], codec=codec))
            offset += 1
        made.append(block(held))
    return made


def rows(data: bytes, source: BlockRange) -> int:
    return sum(batch.num_rows for batch in RecordDecoder(("offset",)).decode(data, source))


@settings(deadline=None)
@given(
    shape=sizes,
    codec=st.sampled_from(CODECS),
    place=st.integers(0, 1 << 20),
    mask=st.integers(1, 255),
    window=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_any_byte_that_has_changed_is_an_error(
    shape: list[list[int]], codec: str, place: int, mask: int, window: tuple[int, int]
) -> None:
    """Bytes of batches that are not asked for, too, and those that no batch's checksum covers."""
    made = items(shape, codec)
    first, end = sorted(window)
    source = replace(
        SOURCE,
        items=tuple((len(item), crc32c(item)) for item in made),
        first_offset=first,
        end_offset=end,
    )
    data = bytearray(b"".join(made))
    count = sum(map(len, shape))
    assert rows(bytes(data), source) == max(0, min(end, count) - first)
    place %= len(data)
    data[place] ^= mask
    with pytest.raises(CorruptObject, match=r"data of orders-3 fails its checksum") as caught:
        rows(bytes(data), source)
    assert caught.value.position - 5000 <= place


def test_a_batch_that_was_stored_damaged_is_an_error() -> None:
    """The item's checksum is right then."""
    (item,) = items([[10, 20, 30]], "none")
    data = bytearray(item)
    data[-5] ^= 1
    source = replace(SOURCE, items=((len(data), crc32c(bytes(data))),))
    with pytest.raises(CorruptObject, match="batch at offset 2 of orders-3 fails its checksum"):
        rows(bytes(data), source)


def test_items_that_are_not_the_bytes_are_an_error() -> None:
    (item,) = items([[10, 2000]], "none")
    half = len(item) // 2
    for cut in (half, len(item) - 1):
        source = replace(SOURCE, items=((cut, crc32c(item[:cut])),))
        with pytest.raises(CorruptObject, match="batch at offset 1 of orders-3 fails its checksum"):
            rows(item, source)


@settings(deadline=None)
@given(head=st.binary(max_size=50), size=st.integers(0, 1 << 20), seed=st.integers(0, 9))
def test_a_sum_is_moved_on_by_any_number_of_bytes(head: bytes, size: int, seed: int) -> None:
    body = np.random.default_rng(seed).bytes(size)
    before, after = crc32c(head), crc32c(head + body)
    told = [np.array([one], np.int64) for one in (before, after, size, crc32c(body))]
    assert first_wrong(*told) == -1
    told[3] ^= 1
    assert first_wrong(*told) == 0
