"""A partition's state as objects carry it: its producers, their open transactions, and which
transactions were aborted.

Version 2, MessagePack: `[2, [[producer id, epoch, timestamp ms, [[first sequence, last sequence,
base offset, end offset], …], coordinator epoch, first offset of its open transaction], …], aborted
transactions]`; batches oldest first, -1 where there is no coordinator epoch or open transaction,
aborted transactions packed as `transaction_index` says. Version 1 has neither these two fields of a
producer nor aborted transactions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from storage.errors import UnsupportedFormat

VERSION = 2
NONE = -1


class ProducerBatch(NamedTuple):
    """One batch of a producer: its sequence numbers, inclusive, and offsets [base, end)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class ProducerRecord(NamedTuple):
    """What is kept of one producer. `timestamp` in milliseconds."""

    producer_id: int
    epoch: int
    timestamp: int
    batches: Sequence[ProducerBatch]
    coordinator_epoch: int = NONE
    transaction_start: int = NONE


class PartitionState(NamedTuple):
    """A partition's state as of some end offset. `aborted` is packed."""

    producers: Sequence[ProducerRecord] = ()
    aborted: bytes = b""

    @property
    def open_transactions(self) -> list[tuple[int, int]]:
        """(first offset, producer id) of each."""
        return [
            (one.transaction_start, one.producer_id)
            for one in self.producers
            if one.transaction_start >= 0
        ]


def encode_state(state: PartitionState) -> bytes:
    """Return the bytes of a state."""
    return msgspec.msgpack.encode((VERSION, *state))


def decode_state(data: bytes) -> PartitionState:
    """Return the state in `data`. Raises UnsupportedFormat."""
    version, *fields = msgspec.msgpack.decode(data)
    if version > VERSION:
        raise UnsupportedFormat(
            f"a partition state has version {version}, this Lakehead reads {VERSION}: upgrade it"
        )
    return msgspec.convert(fields, PartitionState)
