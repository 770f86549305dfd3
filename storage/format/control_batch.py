"""Control batches: the markers that end a producer's transaction in a partition (KIP-98).

One record. Key: version i16 = 0, type i16 (0 abort, 1 commit). Value: version i16 = 0, epoch of the
transaction coordinator i32. The batch is the producer's, transactional, and has no sequence number.
"""

import struct
from typing import NamedTuple

from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import CONTROL, TRANSACTIONAL
from lakehead.storage.format.records import iter_kafka_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """The end of a transaction: committed or aborted, and the epoch of the coordinator that wrote
    it.
    """

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    marker: Marker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Return the control batch of one offset that ends a producer's transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.is_commit else _ABORT)
    return encode_batch(
        [(key, _VALUE.pack(_VERSION, marker.coordinator_epoch))],
        timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(batch: memoryview) -> Marker | None:
    """Return what a whole control batch says; None where it ends no transaction: one that
    compaction has emptied, or of another type. Raises ValueError for a malformed one.
    """
    for record in iter_kafka_records(batch):
        try:
            _, kind = _KEY.unpack_from(record.key or b"")
            if kind not in {_ABORT, _COMMIT}:
                return None
            _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
        except struct.error as error:
            raise ValueError(f"malformed transaction marker: {error}") from error
        return Marker(kind == _COMMIT, coordinator_epoch)
    return None
