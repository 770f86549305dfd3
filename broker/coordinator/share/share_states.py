"""The states of share-partitions as the map that a coordinator's log keeps.

The log writes and reads records; a snapshot replaces a state, and an update adds to it. So the last
value of a key is always a snapshot, which is encoded only when the log reads it.
"""

from collections.abc import Iterator, MutableMapping

import structlog

from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.coordinator.share.record_formats import (
    ShareSnapshot,
    ShareUpdate,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
)
from lakehead.broker.coordinator.share.state_batches import combined
from lakehead.broker.share.record_state import ShareState
from lakehead.broker.share.share_partition_key import SharePartitionKey

_log = structlog.get_logger(__name__)


class StoredState:
    """A state, and the number of updates since its snapshot."""

    __slots__ = ("snapshot", "updates")

    def __init__(self, snapshot: ShareSnapshot) -> None:
        self.snapshot = snapshot
        self.updates = 0

    @property
    def state(self) -> ShareState:
        """The state, with all updates."""
        return self.snapshot.state

    def with_update(self, update: ShareUpdate) -> ShareState:
        """Return the state that an update makes. A write that comes late has an older start offset,
        and does not move it back: the states of what lies behind it are forgotten.
        """
        state = self.state
        start_offset = max(state.start_offset, update.start_offset)
        return ShareState(
            start_offset,
            state.state_epoch,
            state.leader_epoch if update.leader_epoch < 0 else update.leader_epoch,
            update.delivery_complete_count,
            combined(state.batches, update.batches, start_offset),
        )

    def add(self, update: ShareUpdate) -> None:
        """Take over an update."""
        self.snapshot = ShareSnapshot(
            epoch=self.snapshot.epoch,
            state=self.with_update(update),
            created_ms=self.snapshot.created_ms,
            written_ms=self.snapshot.written_ms,
        )
        self.updates += 1


class ShareStates(MutableMapping[bytes, bytes]):
    """Every state of a shard. Keys and values are those of records."""

    def __init__(self) -> None:
        self.by_key: dict[SharePartitionKey, StoredState] = {}

    def __getitem__(self, key: bytes) -> bytes:
        is_update, place = decode_key(key)
        if is_update:
            raise KeyError(key)
        return encode_snapshot(self.by_key[place].snapshot)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        try:
            is_update, place = decode_key(key)
            if not is_update:
                self.by_key[place] = StoredState(decode_snapshot(value))
            elif place in self.by_key:
                self.by_key[place].add(decode_update(value))
        except UnknownRecord as error:
            _log.warning("share_record_unknown", error=str(error))

    def __delitem__(self, key: bytes) -> None:
        is_update, place = decode_key(key)
        if is_update:
            raise KeyError(key)
        del self.by_key[place]

    def __iter__(self) -> Iterator[bytes]:
        return map(encode_key, self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)
