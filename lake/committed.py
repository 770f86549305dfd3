"""What readers of committed records may see of partitions, as objects tell (KIP-98).

A partition's newest state in objects names its open and its aborted transactions; what came after
it the headers of batches tell, which objects without a state carry. Indexes alone are read.
"""

from collections.abc import Sequence
from dataclasses import replace

from lake.catalog import PartitionLog
from lake.store_reader import StoreReader
from storage.errors import CorruptObject
from storage.format.partition_state import PartitionState, decode_state
from storage.format.producer_headers import StateBatch, parse_producer_headers
from storage.format.record_batch import NO_PRODUCER_ID
from storage.format.transaction_index import TransactionIndex
from storage.metadata.extents import Extent

_INDEXES_MAX = 32


def committed(reader: StoreReader, logs: Sequence[PartitionLog]) -> tuple[PartitionLog, ...]:
    """Return partitions as readers of committed records see them: up to the first record that is
    not decided, and with the transactions that were aborted.

    Raises CorruptObject, UnsupportedFormat, StoreUnavailable.
    """
    return tuple(_committed(reader, log) for log in logs)


def _committed(reader: StoreReader, log: PartitionLog) -> PartitionLog:
    if log.state_from < 0:
        return log  # no producer that is told from others ever wrote to it
    state, after = _newest_state(reader, log)
    index = TransactionIndex()
    index.restore(state.open_transactions, state.aborted)
    for header, marker in after:
        producer_id = header.producer_id
        if marker is not None:
            index.end(producer_id, header.base_offset, is_commit=marker.is_commit)
        elif (
            header.is_transactional
            and header.record_count > 0  # compaction empties none of an open transaction
            and producer_id != NO_PRODUCER_ID
            and not index.is_open(producer_id)
        ):
            index.begin(producer_id, header.base_offset)
    end_offset = max(index.last_stable_offset(log.end_offset), log.start_offset)
    aborted = index.aborted_among(log.start_offset, end_offset)
    return replace(log, end_offset=end_offset, aborted=tuple(aborted))


def _newest_state(
    reader: StoreReader, log: PartitionLog
) -> tuple[PartitionState, list[StateBatch]]:
    """Return the newest state in objects, and what counts of the batches behind it."""
    sources = [one for one in (*log.state_extents, *log.extents) if one.end_offset > log.state_from]
    found: list[list[StateBatch]] = []
    read = 0
    while read < len(sources):
        count = _INDEXES_MAX if read else 1  # mostly the newest has it
        chunk = sources[max(len(sources) - read - count, 0) : len(sources) - read]
        read += len(chunk)
        indexes = reader.read_indexes([extent.object_key for extent in chunk])
        for extent in reversed(chunk):
            known = indexes.get(extent.object_key)
            info = None if known is None else known.streams.get(log.stream_id)
            if info is None:
                continue  # it is lost; who needs its records is told
            if info.state is not None:
                return decode_state(info.state), _in_order(found)
            found.append(_batches(extent, info.headers or b""))
    return PartitionState(), _in_order(found)


def _batches(extent: Extent, headers: bytes) -> list[StateBatch]:
    try:
        return list(parse_producer_headers(headers))
    except ValueError as error:
        raise CorruptObject(extent.object_key, 0, str(error)) from error


def _in_order(newest_first: list[list[StateBatch]]) -> list[StateBatch]:
    return [batch for found in reversed(newest_first) for batch in found]
