"""Read one object's description of itself: its name, index and extension block. Data is read only
for the stream epochs of records that the index does not hold.
"""

from dataclasses import dataclass

from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.partition_state import decode_packed
from lakehead.storage.format.producer_headers import parse_producer_headers
from lakehead.storage.format.stream_object import (
    BLOCK_HEADER_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    IndexItem,
    ObjectIndex,
    StreamInfo,
    read_index,
    record_headers,
)
from lakehead.storage.metadata.records import state_kind
from lakehead.storage.object_store.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRange:
    """Offsets [start_offset, end_offset) of a stream in an object. `epochs` are pairs of a stream
    epoch and the first offset under it here; `state` and `state_since` are as in `CommittedRange`.
    """

    key: str
    kind: str
    created_ms: int
    node_id: int
    stream_id: int
    topic_id: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int
    state: str
    state_since: int
    epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object. `producer_id` is the greatest that it names, -1 without any."""

    key: str
    kind: str
    size: int
    created_ms: int
    node_id: int
    node_epoch: int
    cluster_id: str
    producer_id: int
    ranges: tuple[FoundRange, ...]


async def look_into(store: ObjectStore, key: str) -> FoundObject:
    """Return what an object says. Raises ObjectNotFound, CorruptObject, UnsupportedFormat,
    StoreUnavailable.
    """
    index = await read_index(store, key)
    ranges = []
    for stream_id, info in sorted(index.streams.items()):
        items = index.items_of(stream_id)
        if items:
            ranges.append(_range(index, info, items, await _epochs(store, index, info, items)))
    return FoundObject(
        key=key,
        kind=index.kind,
        size=index.size,
        created_ms=index.created_ms,
        node_id=index.node_id,
        node_epoch=index.node_epoch,
        cluster_id=index.cluster_id,
        producer_id=max((_producer_id(key, one) for one in index.streams.values()), default=-1),
        ranges=tuple(ranges),
    )


def _range(
    index: ObjectIndex,
    info: StreamInfo,
    items: tuple[IndexItem, ...],
    epochs: tuple[tuple[int, int], ...],
) -> FoundRange:
    return FoundRange(
        key=index.key,
        kind=index.kind,
        created_ms=index.created_ms,
        node_id=index.node_id,
        stream_id=info.stream_id,
        topic_id=info.topic_id,
        topic=info.topic,
        partition=info.partition,
        start_offset=items[0].start_offset,
        end_offset=items[-1].end_offset,
        max_timestamp=max(item.max_timestamp for item in items),
        size=sum(item.size for item in items),
        state=state_kind(info),
        state_since=info.state_since,
        epochs=epochs,
    )


def _producer_id(key: str, info: StreamInfo) -> int:
    found = [-1]
    try:
        if info.state is not None:
            found += [producer_id for producer_id, _ in decode_packed(info.state).records()]
        found += [one.header.producer_id for one in parse_producer_headers(info.headers or b"")]
    except ValueError as error:
        raise CorruptObject(key, 0, f"a partition's state cannot be read: {error}") from error
    return max(found)


async def _epochs(
    store: ObjectStore, index: ObjectIndex, info: StreamInfo, items: tuple[IndexItem, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the stream epochs of an object's records, with where they begin."""
    start = items[0].start_offset
    if info.epoch >= 0:
        return ((info.epoch, start),)
    first = await _first_epoch(store, index, items[0])
    if JobName.parse(index.key) is None:
        return ((first, start),)  # an upload ends with the epoch
    found = {first: start}
    last = len(items) - 1
    newest = await _first_epoch(store, index, items[last])
    await _changes(store, index, items, (0, first), (last, newest), found)
    await _read_through(store, index, items[last], found)
    return tuple(sorted(found.items()))


async def _changes(
    store: ObjectStore,
    index: ObjectIndex,
    items: tuple[IndexItem, ...],
    low: tuple[int, int],
    high: tuple[int, int],
    found: dict[int, int],
) -> None:
    """Add the epochs that begin between two items, of which the first epochs are known: epochs are
    in order, so items between two of one epoch need not be read.
    """
    if low[1] == high[1]:
        return
    if high[0] == low[0] + 1:
        await _read_through(store, index, items[low[0]], found)
        found.setdefault(high[1], items[high[0]].start_offset)
        return
    number = (low[0] + high[0]) // 2
    middle = (number, await _first_epoch(store, index, items[number]))
    await _changes(store, index, items, low, middle, found)
    await _changes(store, index, items, middle, high, found)


async def _first_epoch(store: ObjectStore, index: ObjectIndex, item: IndexItem) -> int:
    at = item.position + BLOCK_HEADER_SIZE
    record = await store.get_range(index.key, at, RECORD_HEADER_SIZE)
    epoch: int = RECORD_HEADER.unpack(record)[2]
    return epoch


async def _read_through(
    store: ObjectStore, index: ObjectIndex, item: IndexItem, found: dict[int, int]
) -> None:
    data = await store.get_range(index.key, item.position, item.size)
    try:
        for _, _, epoch, base, *_ in record_headers(data)[0]:
            found.setdefault(epoch, base)
    except ValueError as error:
        raise CorruptObject(index.key, item.position, str(error)) from error
