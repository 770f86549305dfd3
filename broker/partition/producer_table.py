"""The producers of one partition: bounded, small in memory, and cheap to save.

Most of many producers are idle. They are kept as packed records, as objects hold them (see
`lakehead.storage.format.partition_state`); those that have sent something since the last upload are
values. A million producers are some 150 MB so, of which nothing is for the garbage collector to
visit.

**Saving.** An upload takes the records that changed since the one before it, and a share of all
others, which go round: `since` is where the last complete round began, so the states of all objects
that reach beyond it have every producer. The size of an upload is bounded by the changes and the
share, however many producers there are. If all of them are small enough, each upload has them all.
The changes are bounded, too: an upload `is_due` before it has grown large.

**The cap.** Beyond it a new producer takes the place of one that has been idle longest among a few
(an approximated LRU, as caches do it), never of one with an open transaction or a batch on its way.
That one is unknown then, as if it had expired.

Records lie in shards: a hash table of a million takes a tenth of a second to grow, one of some
thousands does not.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from lakehead.storage.format.partition_state import (
    NONE,
    PackedState,
    ProducerBatch,
    ProducerRecord,
    newest_producers,
    opened_transactions,
    pack_producer,
    packed_times,
    unpack_producer,
)
from lakehead.storage.format.record_batch import NO_SEQUENCE

WINDOW = 5
"""Durable batches remembered for each producer."""
_SHARE = 64
"""A round takes about as many uploads at least, if nothing changes."""
_SHARDS = 256
_SAMPLE = 16
_SHARE_MIN = 6
"""Of its share an upload takes a sixth at least, however much has changed."""
_ACTIVE_SIZE = 64
"""About what an active producer takes in an upload."""


class ProducerLimits(NamedTuple):
    """`producers`: the cap. Up to `whole_bytes` of state each upload has all of it; beyond, its
    share of what has not changed is `share_bytes` at most, and less where it has more than
    `upload_bytes` with it. An upload is due when `changed_bytes` have changed. `active` are kept as
    values, and one shard has up to `shard_size`.
    """

    producers: int = 1_000_000
    whole_bytes: int = 64 * 1024
    share_bytes: int = 384 * 1024
    changed_bytes: int = 512 * 1024
    upload_bytes: int = 768 * 1024
    active: int = 1024
    shard_size: int = 4096

    def share(self, size: int, changed: int) -> int:
        """Return how much of what has not changed an upload takes, of `size` bytes in all, beside
        what has: so much of producers, and so much of aborted transactions.
        """
        full = max(min(self.whole_bytes, self.share_bytes), min(size // _SHARE, self.share_bytes))
        return min(full, max((self.upload_bytes - changed) // 2, -(-full // _SHARE_MIN)))


LIMITS = ProducerLimits()


class ProducerEntry:
    """One producer. `batches` oldest first; `transaction_start` is the first offset of its open
    transaction, `coordinator_epoch` that of its last marker; -1 for none. `end_offset`: where its
    last batch or marker ends.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "end_offset",
        "epoch",
        "timestamp",
        "transaction_start",
    )

    def __init__(self, epoch: int, timestamp: int) -> None:
        self.epoch = epoch
        self.timestamp = timestamp
        self.coordinator_epoch = NONE
        self.transaction_start = NONE
        self.end_offset = 0
        self.batches: list[ProducerBatch] = []

    @classmethod
    def unpacked(cls, data: bytes) -> "ProducerEntry":
        """Return the entry of a packed record."""
        record = unpack_producer(data)
        entry = cls(record.epoch, record.timestamp)
        entry.coordinator_epoch = record.coordinator_epoch
        entry.transaction_start = record.transaction_start
        entry.batches += record.batches
        if entry.batches:
            entry.end_offset = entry.batches[-1].end_offset
        return entry

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 before the first of this epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self) -> "ProducerEntry":
        """Return the entry as it is now."""
        copied = ProducerEntry(self.epoch, self.timestamp)
        copied.coordinator_epoch = self.coordinator_epoch
        copied.transaction_start = self.transaction_start
        copied.end_offset = self.end_offset
        copied.batches = self.batches[:]
        return copied

    def packed(self, producer_id: int, end_offset: int) -> bytes:
        """Return its record, with the last batches that end at or below an offset."""
        batches = [one for one in self.batches if one.end_offset <= end_offset][-WINDOW:]
        return pack_producer(
            ProducerRecord(
                producer_id,
                self.epoch,
                self.timestamp,
                batches,
                self.coordinator_epoch,
                self.transaction_start,
            )
        )


class ProducerTable:
    """The producers of one partition, by id."""

    def __init__(self, limits: ProducerLimits = LIMITS) -> None:
        self.limits = limits
        self.replaced = 0
        """Producers that were forgotten for new ones."""
        self.confirmed_offset = 0
        """Producers whose last batch ends at or below it may be packed, or make room."""
        self._active: OrderedDict[int, ProducerEntry] = OrderedDict()
        self._shards: list[dict[int, bytes]] = [{}]  # b"": only among the active ones, so far
        self._count = self._size = 0
        self._taken: dict[int, bytes] = {}
        """Records that the next upload takes, beside those of active producers."""
        self._taken_size = 0
        self._round: list[int] = []
        self._round_shard = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes of all records, those of active producers as they were when they became so."""
        return self._size

    def changed_size(self, unsettled: int) -> int:
        """Return about how many bytes the next upload has to take, with so many producers of which
        it will have nothing yet.
        """
        return self._taken_size + max(0, len(self._active) - unsettled) * _ACTIVE_SIZE

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield (producer id, entry) of all, to read."""
        for shard in self._shards:
            for producer_id, data in shard.items():
                entry = self._active.get(producer_id)
                yield producer_id, ProducerEntry.unpacked(data) if entry is None else entry

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer, to read or to change."""
        entry = self._active.get(producer_id)
        if entry is None:
            data = self._shard(producer_id).get(producer_id)
            if data is None:
                return None
            self._pack_some()
            entry = self._active[producer_id] = ProducerEntry.unpacked(data)
        return entry

    def add(self, producer_id: int, epoch: int) -> ProducerEntry:
        """Return a producer that is new."""
        if self._count >= self.limits.producers:
            self._make_room(producer_id)
        if len(self._shards) == 1 and self._count >= self.limits.shard_size:
            self._split()
        self._shard(producer_id)[producer_id] = b""
        self._count += 1
        self._pack_some()
        self._active[producer_id] = ProducerEntry(epoch, 0)
        return self._active[producer_id]

    def expire(self, before_ms: int) -> Iterator[int]:
        """Forget producers without an open transaction whose last batch came before `before_ms`.
        Yields how many, after each piece of the work, so that others may have a turn.
        """
        for shard in self._shards:
            old = [one for one in shard if self._is_idle(one, shard[one], before_ms)]
            for producer_id in old:
                self._forget(producer_id)
            yield len(old)

    def take_all(self, end_offset: int, before: Mapping[int, ProducerEntry | None]) -> bytes:
        """Return the records of all producers as of `end_offset`, which is not below what is
        durable. `before`: how those were then that have changed since, None if unknown.
        """
        active = self._take_active(end_offset, before)
        self._clear_taken()
        self.begin_round()
        return b"".join([data for shard in self._shards for data in shard.values()] + active)

    def take_share(
        self, end_offset: int, before: Mapping[int, ProducerEntry | None], share: int
    ) -> tuple[bytes, bool]:
        """Return the records that changed since the last one, as of `end_offset`, with so many
        bytes of all others; and whether these have been round.
        """
        active = self._take_active(end_offset, before)
        self._refresh(share)
        taken = b"".join([*self._taken.values(), *active])
        self._clear_taken()
        return taken, not self._round and self._round_shard == len(self._shards)

    def begin_round(self) -> None:
        """Let the next round begin."""
        self._round.clear()
        self._round_shard = 0

    def restore(self, states: Sequence[PackedState]) -> dict[int, int]:
        """Take over what states held, the oldest first; return where the transactions of producers
        begin that are open. May run in another thread. Raises ValueError.
        """
        if not any(state.producers for state in states):
            return {}  # as most partitions, of which thousands may be opened at once
        found = newest_producers(states)
        is_large = sum(len(state.producers) for state in states) > self.limits.shard_size * 64
        shards = self._shards = [{} for _ in range(_SHARDS if is_large else 1)]
        last = len(shards) - 1
        for producer_id, record in found.items():
            shards[producer_id & last][producer_id] = record
        self._restore_within_capacity()
        self._count = sum(map(len, shards))
        self._size = sum(sum(map(len, shard.values())) for shard in shards)
        return opened_transactions(found)

    def _restore_within_capacity(self) -> None:
        """States may hold producers that others have replaced: the newest stay."""
        excess = sum(map(len, self._shards)) - self.limits.producers
        if excess <= 0:
            return
        values = (data for shard in self._shards for data in shard.values())
        limit = sorted([packed_times(data)[0] for data in values])[excess - 1]
        for shard in self._shards:
            for producer_id, data in list(shard.items()):
                timestamp, start = packed_times(data)
                if excess and timestamp <= limit and start < 0:
                    del shard[producer_id]
                    excess -= 1

    def _shard(self, producer_id: int) -> dict[int, bytes]:
        return self._shards[producer_id & (len(self._shards) - 1)]

    def _split(self) -> None:
        shards: list[dict[int, bytes]] = [{} for _ in range(_SHARDS)]
        for producer_id, data in self._shards[0].items():
            shards[producer_id & (_SHARDS - 1)][producer_id] = data
        self._shards = shards
        self.begin_round()

    def _keep(self, producer_id: int, data: bytes) -> None:
        shard = self._shard(producer_id)
        self._size += len(data) - len(shard[producer_id])
        shard[producer_id] = data

    def _forget(self, producer_id: int) -> None:
        self._size -= len(self._shard(producer_id).pop(producer_id))
        self._active.pop(producer_id, None)
        self._count -= 1

    def _pack_some(self) -> None:
        """Pack a producer or two while there are many active ones, so that an upload finds little
        to do; for each that was known before, or has taken the place of another, let one go
        round, so that rounds keep up.
        """
        for _ in range(2):
            if len(self._active) < self.limits.active:
                return
            producer_id, entry = self._active.popitem(last=False)
            if entry.end_offset > self.confirmed_offset:
                self._active[producer_id] = entry
                continue
            data = entry.packed(producer_id, entry.end_offset)
            is_known = bool(self._shard(producer_id)[producer_id])
            self._keep(producer_id, data)
            self._take(producer_id, data)
            if is_known or self._count >= self.limits.producers:
                self._refresh(len(data))

    def _take_active(
        self, end_offset: int, before: Mapping[int, ProducerEntry | None]
    ) -> list[bytes]:
        """Return the records of the active producers as of an offset, and pack those that have not
        changed since.
        """
        taken: list[bytes] = []
        for producer_id, entry in list(self._active.items()):
            as_of = before.get(producer_id, entry)
            if as_of is None:
                continue
            data = as_of.packed(producer_id, end_offset)
            taken.append(data)
            if entry.end_offset <= end_offset:
                self._keep(producer_id, data)
                del self._active[producer_id]
        return taken

    def _take(self, producer_id: int, data: bytes) -> None:
        self._taken_size += len(data) - len(self._taken.get(producer_id, b""))
        self._taken[producer_id] = data

    def _clear_taken(self) -> None:
        self._taken.clear()
        self._taken_size = 0

    def _refresh(self, room: int) -> None:
        """Let the next producers of the round into the upload, `room` bytes or a little more."""
        while room > 0:
            while not self._round:
                if self._round_shard == len(self._shards):
                    return
                self._round = list(self._shards[self._round_shard])
                self._round_shard += 1
            producer_id = self._round.pop()
            data = self._shard(producer_id).get(producer_id)
            if data and producer_id not in self._active:  # those go into the upload anyway
                self._take(producer_id, data)
                room -= len(data)

    def _is_idle(self, producer_id: int, data: bytes, before_ms: int) -> bool:
        entry = self._active.get(producer_id)
        if entry is None:
            timestamp, start = packed_times(data)
            return timestamp < before_ms and start < 0
        return entry.timestamp < before_ms and entry.transaction_start < 0

    def _make_room(self, producer_id: int) -> None:
        """Forget one producer for a new one: of a few that have been here long the one that has
        been idle longest; the others are as good as new then.
        """
        for step in range(len(self._shards)):
            shard = self._shard(producer_id + step)
            sample = list(islice(shard, _SAMPLE))
            found: list[tuple[int, int]] = []
            for one in sample:
                timestamp, is_free = self._place_of(one, shard[one])
                if is_free:
                    found.append((timestamp, one))
            if found:
                idle = min(found)[1]
                self._forget(idle)
                self.replaced += 1
                for one in sample:
                    if one != idle:
                        shard[one] = shard.pop(one)
                return

    def _place_of(self, producer_id: int, data: bytes) -> tuple[int, bool]:
        """Return when a producer sent its last batch, and whether its place may be given away."""
        entry = self._active.get(producer_id)
        if entry is None:
            timestamp, start = packed_times(data)
            return timestamp, start < 0
        is_settled = entry.end_offset <= self.confirmed_offset
        return entry.timestamp, is_settled and entry.transaction_start < 0
