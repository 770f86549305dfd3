"""Committed offsets: the part of each partition that readers of committed records may see (KIP-98).

A partition's newest state in objects names its open and its aborted transactions; later ones are in
the headers of batches, which objects without a state carry. Only indexes are read, those of all
partitions side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.store_reader import ObjectReader
from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.format.partition_state import (
    PackedState,
    decode_packed,
    open_transactions,
    union_of_aborted,
)
from lakehead.storage.format.producer_headers import StateBatch, parse_producer_headers
from lakehead.storage.format.record_batch import NO_PRODUCER_ID
from lakehead.storage.format.stream_object import ObjectIndex
from lakehead.storage.format.transaction_index import TransactionIndex
from lakehead.storage.metadata.extents import Extent

_INDEXES_MAX = 32
_LOOKS_MAX = 5


def committed(reader: ObjectReader, logs: Sequence[PartitionLog]) -> tuple[PartitionLog, ...]:
    """Return partitions as readers of committed records see them: up to the first record that is
    not decided, and with the transactions that were aborted.

    Raises CorruptObject, UnsupportedFormat, StoreUnavailable, and ObjectNotFound where an object
    went away with all that names it: these partitions are older than the grace period of garbage,
    so look again (`committed_now`). The content of a lost object is not known.
    """
    searches = [_Search(log) for log in logs]
    waiting, count = searches, 1  # mostly the newest object has the state
    while waiting := [search for search in waiting if search.sources]:
        keys = [one.object_key for search in waiting for one in search.sources[-count:]]
        indexes = reader.read_indexes(list(dict.fromkeys(keys)))
        for search in waiting:
            search.take(count, indexes)
        count = _INDEXES_MAX
    if gone := {key for search in searches for key in search.gone}:
        _require_named(reader.open_catalog(), gone)
    return tuple(search.log() for search in searches)


def committed_now(reader: ObjectReader, catalog: Catalog, topic: str) -> tuple[PartitionLog, ...]:
    """Return the partitions of a topic as `committed` does; by newer metadata where what a catalog
    names has gone away since. Raises as that, and UnknownTopic.
    """
    for _ in range(_LOOKS_MAX):
        try:
            return committed(reader, catalog.partitions(topic))
        except ObjectNotFound:
            catalog = reader.open_catalog()
    return committed(reader, catalog.partitions(topic))


def _require_named(catalog: Catalog, keys: set[str]) -> None:
    """Raise ObjectNotFound for an object that nothing refers to any more."""
    for key in sorted(keys):
        known = catalog.state.objects.get(key)
        if known is None or not known.stream_ids:
            raise ObjectNotFound(key)


class _Search:
    """The search for one partition's newest state, and for what came after it. `sources` are the
    extents that are left to look at, in offset order.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.gone: list[str] = []
        self._states: list[PackedState] = []
        self._newest_first: list[list[StateBatch]] = []
        extents = (*log.state_extents, *log.extents) if log.state_from >= 0 else ()
        self.sources = [one for one in extents if one.end_offset > log.state_from]

    def take(self, count: int, indexes: Mapping[str, ObjectIndex]) -> None:
        """Look at the last `count` of the sources."""
        for _ in range(min(count, len(self.sources))):
            extent = self.sources.pop()
            known = indexes.get(extent.object_key)
            info = None if known is None else known.streams.get(self._log.stream_id)
            if info is None:
                self.gone.append(extent.object_key)
                continue  # if it is lost, what needs its records fails
            if info.state is not None:
                self._states.append(decode_packed(info.state))
                if info.state_since < 0:
                    self.sources.clear()
                    return
            elif not self._states:  # else the state behind it has what it says
                self._newest_first.append(_batches(extent, info.headers or b""))

    def log(self) -> PartitionLog:
        """Return the partition as far as it is decided."""
        log, index = self._log, TransactionIndex()
        oldest_first = self._states[::-1]
        aborted = union_of_aborted([one.aborted for one in oldest_first])
        index.restore(open_transactions(oldest_first), aborted)
        for batches in reversed(self._newest_first):
            for batch in batches:
                _add(index, batch)
        end_offset = max(index.last_stable_offset(log.end_offset), log.start_offset)
        entries = index.aborted_among(log.start_offset, end_offset)
        return replace(log, end_offset=end_offset, aborted=tuple(entries))


def _add(index: TransactionIndex, batch: StateBatch) -> None:
    header, producer_id = batch.header, batch.header.producer_id
    if batch.marker is not None:
        index.end(producer_id, header.base_offset, is_commit=batch.marker.is_commit)
    elif (
        header.is_transactional
        and header.record_count > 0  # compaction empties none of an open transaction
        and producer_id != NO_PRODUCER_ID
        and not index.is_open(producer_id)
    ):
        index.begin(producer_id, header.base_offset)


def _batches(extent: Extent, headers: bytes) -> list[StateBatch]:
    try:
        return list(parse_producer_headers(headers))
    except ValueError as error:
        raise CorruptObject(extent.object_key, 0, str(error)) from error
