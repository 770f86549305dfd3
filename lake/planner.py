"""Plans reads: from offsets of partitions to splits, each a list of byte ranges. Pure.

A split is what one task reads: about `SPLIT_BYTES` whatever the partitions and objects are, so that
a large partition is read by many tasks and many small ranges by one. Data blocks are never cut: a
range covers whole items of an object's index, and its offsets say which of their records count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.errors import DataLoss
from lakehead.lake.positions import TopicPartition
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.stream_object import AbortedTransaction, IndexItem, ObjectIndex
from lakehead.storage.format.transaction_index import TransactionIndex
from lakehead.storage.metadata.extents import Extent

SPLIT_BYTES = 64 * 1024 * 1024
SPLIT_BYTES_MIN = 8 * 1024 * 1024
"""Below this, the start of a task costs more than what it shares out."""


WAL_PREFIX = "wal/"
"""Prefix of the keys of WAL objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The requested offsets [start, end) of a partition. Extents and index items whose records are
    all older than `since_ms` may be left out.
    """

    log: PartitionLog
    start: int
    end: int
    since_ms: int = 0

    def extents(self) -> tuple[Extent, ...]:
        """Return the extents that hold some of these offsets."""
        return tuple(
            extent
            for extent in self.log.extents
            if extent.start_offset < self.end
            and extent.end_offset > self.start
            and not self.is_older(extent.max_timestamp)
        )

    def is_older(self, max_timestamp: int) -> bool:
        """Return whether records up to a time are all older than requested; -1: it is unknown."""
        return 0 <= max_timestamp < self.since_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Bytes of an object that lie next to each other and hold offsets [first_offset, end_offset).

    `items` are the (size, CRC-32C) of the index items the range is made of, in order, and `starts`
    their first offsets; what reads it fetches whole items and checks them. Records outside the
    offsets are to be left out.
    """

    key: str
    position: int
    length: int
    topic: str
    partition: int
    topic_id: str
    stream_id: int
    first_offset: int
    end_offset: int
    items: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def id(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def after(self, read: int) -> "ByteRange":
        """Return what is left of the range when its first `read` bytes, whole items, are read."""
        count, size = 0, 0
        while size < read:
            size += self.items[count][0]
            count += 1
        return replace(
            self,
            position=self.position + read,
            length=self.length - read,
            first_offset=max(self.first_offset, self.starts[count]),
            items=self.items[count:],
            starts=self.starts[count:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Byte ranges that one task reads, in order."""

    ranges: tuple[ByteRange, ...]

    @property
    def length(self) -> int:
        """Bytes to fetch."""
        return sum(range_.length for range_ in self.ranges)


def needed_objects(requested: Sequence[OffsetRange]) -> tuple[str, ...]:
    """Return the keys of the objects whose indexes a plan needs, each once."""
    return tuple(
        dict.fromkeys(extent.object_key for range_ in requested for extent in range_.extents())
    )


def plan_splits(
    requested: Sequence[OffsetRange],
    indexes: Mapping[str, ObjectIndex],
    *,
    split_bytes: int = SPLIT_BYTES,
    splits_min: int = 1,
    splits_wanted: int = 1,
    workers: int = 1,
    offsets_max: int | None = None,
    fail_on_data_loss: bool = True,
) -> tuple[Split, ...]:
    """Return splits of even size, at most about `split_bytes` each, that cover the offsets.

    Of several splits there are as many for each of `workers`: none works alone at the end.

    `splits_wanted` requests more of at least `SPLIT_BYTES_MIN`, so that all cores have work;
    `splits_min` for more still, down to one index item each; no split has more than `offsets_max`
    offsets, for which several may read one item. An object without an index in `indexes` is lost:
    DataLoss, or left out.
    """
    pieces = [
        piece for range_ in requested for piece in _pieces(range_, indexes, fail_on_data_loss)
    ]
    if offsets_max is not None:
        pieces = _cut(pieces, offsets_max)
    total = sum(piece.length for piece in pieces)
    spread = min(splits_wanted, total // SPLIT_BYTES_MIN)
    count = max(-(-total // split_bytes), spread, splits_min, 1)
    count = -(-count // workers) * workers if count > 1 else count
    target = max(-(-total // count), 1)
    splits: list[Split] = []
    held: list[ByteRange] = []
    cut, taken, offsets = target, 0, 0
    for piece in pieces:
        offsets += piece.end_offset - piece.first_offset
        is_full = offsets_max is not None and offsets > offsets_max
        # cut where the middle of the piece is nearer to the next split
        if held and (is_full or taken + piece.length // 2 >= cut):
            splits.append(Split(ranges=_joined(held)))
            held, offsets = [], piece.end_offset - piece.first_offset
            cut = max(cut + target, taken + 1)
        held.append(piece)
        taken += piece.length
    if held:
        splits.append(Split(ranges=_joined(held)))
    return tuple(splits)


def _cut(pieces: list[ByteRange], most: int) -> list[ByteRange]:
    """Cut pieces to `most` offsets: each part of an item is read with all of the item's bytes."""
    return [
        replace(piece, first_offset=start, end_offset=min(start + most, piece.end_offset))
        for piece in pieces
        for start in range(piece.first_offset, piece.end_offset, most)
    ]


def _pieces(
    requested: OffsetRange,
    indexes: Mapping[str, ObjectIndex],
    fail_on_data_loss: bool,
) -> Iterator[ByteRange]:
    """Yield one range per index item that holds requested offsets."""
    log, transactions = requested.log, TransactionIndex(requested.log.aborted)
    for extent in requested.extents():
        index = indexes.get(extent.object_key)
        start = max(requested.start, extent.start_offset)
        end = min(requested.end, extent.end_offset)
        if index is None:
            if fail_on_data_loss:
                raise DataLoss(
                    f"offsets {start} to {end - 1} of {log.id} are lost: object "
                    f"{extent.object_key} is gone: put it back (lakehead verify names all that is "
                    "missing), or set failOnDataLoss to false to read the rest"
                )
            continue
        for item in covering_items(index, log.stream_id, start, end):
            if requested.is_older(item.max_timestamp):
                continue
            yield ByteRange(
                key=extent.object_key,
                position=item.position,
                length=item.size,
                topic=log.id.topic,
                partition=log.id.partition,
                topic_id=log.topic_id,
                stream_id=log.stream_id,
                first_offset=max(start, item.start_offset),
                end_offset=min(end, item.end_offset),
                items=((item.size, item.crc),),
                starts=(item.start_offset,),
                aborted=tuple(transactions.aborted_among(item.start_offset, item.end_offset)),
            )


def covering_items(index: ObjectIndex, stream_id: int, start: int, end: int) -> list[IndexItem]:
    """Return the items that hold offsets [start, end) of a stream. Raises CorruptObject if some are
    missing.
    """
    items = [
        item
        for item in index.items_of(stream_id)
        if item.start_offset < end and item.end_offset > start
    ]
    expected = start
    for item in items:
        if item.start_offset > expected:
            break
        expected = item.end_offset
    if expected < end:
        raise CorruptObject(
            index.key,
            0,
            f"its index lacks offset {expected} of stream {stream_id}, which the metadata log "
            "says it holds",
        )
    return items


def _joined(pieces: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    """Join ranges that lie next to each other, and parts of one item.

    WAL objects are deleted as soon as what they hold is elsewhere: their items stay ranges of their
    own, which are read at once or not at all.
    """
    joined: list[ByteRange] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is None or not _continues(last, piece):
            joined.append(piece)
        elif last.position + last.length - last.items[-1][0] == piece.position:
            joined[-1] = replace(last, end_offset=piece.end_offset)
        elif last.position + last.length == piece.position and not piece.key.startswith(WAL_PREFIX):
            joined[-1] = replace(
                last,
                length=last.length + piece.length,
                end_offset=piece.end_offset,
                items=last.items + piece.items,
                starts=last.starts + piece.starts,
                aborted=tuple(dict.fromkeys(last.aborted + piece.aborted)),
            )
        else:
            joined.append(piece)
    return tuple(joined)


def _continues(last: ByteRange, piece: ByteRange) -> bool:
    return (
        last.key == piece.key
        and last.stream_id == piece.stream_id
        and last.end_offset == piece.first_offset
    )
