"""Reads byte ranges as Arrow batches: fetch, check, decode. One way for scans, Spark and jobs."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakehead.lake.decode.decoder import Abort, BatchGroup, BlockRange, RecordDecoder
from lakehead.lake.moved_ranges import read_moved
from lakehead.lake.planner import ByteRange
from lakehead.lake.store_reader import Fetched, ObjectReader


def read_records(
    reader: ObjectReader, ranges: Sequence[ByteRange], decoder: RecordDecoder
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `ranges`, in their order and offset order within each.

    A batch never holds records of two ranges. Raises CorruptObject, ObjectNotFound, DataLoss,
    StoreUnavailable.
    """
    yield from decode_all(read_moved(reader, ranges), decoder)


def decode_all(pieces: Iterator[Fetched], decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
    """Yield the records of pieces that were read. Raises CorruptObject, and what reading raises."""
    for fetched in pieces:
        yield from decode_fetched(fetched, decoder)


def decode_groups(pieces: Iterator[Fetched], decoder: RecordDecoder) -> Iterator[BatchGroup]:
    """Yield the same by groups of record batches. Raises as `decode_all`."""
    for fetched in pieces:
        yield from decoder.groups(fetched.data, _source(fetched))


def decode_fetched(fetched: Fetched, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
    """Yield the records of one piece of a range. Raises CorruptObject."""
    yield from decoder.decode(fetched.data, _source(fetched))


def count_fetched(fetched: Fetched, decoder: RecordDecoder) -> int:
    """Return the number of records of one piece of a range. Raises CorruptObject."""
    return decoder.count(fetched.data, _source(fetched))


def _source(fetched: Fetched) -> BlockRange:
    range_ = fetched.range
    return BlockRange(
        key=range_.key,
        position=fetched.position,
        stream_id=range_.stream_id,
        topic=range_.topic,
        partition=range_.partition,
        first_offset=range_.first_offset,
        end_offset=range_.end_offset,
        aborted=tuple(
            Abort(
                producer_id=abort.producer_id,
                first_offset=abort.first_offset,
                last_offset=abort.last_offset,
            )
            for abort in range_.aborted
        ),
        items=fetched.items,
    )
