"""The seam between a stream engine and its write-ahead log.

Positions are bytes in a log that never ends: they only grow, across laps of a ring and, on a
device, across restarts; they start at 0 in a new log. A record occupies `[position, end_position)`.

Order of calls: `recover()` to its end, `start()` once, then `append()` and `trim()`, then
`close()`. All calls come from one event loop, and listeners are called on that loop.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from lakehead.storage.clock import Clock
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import TaskScope

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Claim:
    """The knowledge of a starting node about its own volume when another host holds it.

    `other_hosts` are the hosts that the metadata knows, any of which may have taken it over;
    `live_nodes` the nodes of other hosts that live: one whose log lies on the volume keeps it.
    """

    other_hosts: tuple[str, ...]
    live_nodes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOwner:
    """The node that a log is opened for, before the node registers: its identity, and what it
    lends. `store` is the cluster's own; `describe` describes a stream. A block log needs the ids
    and the `claim` only; without one a volume that another host holds is refused. A log is made
    where there is none only if it `may_be_new`: else the node has left something in one that is
    there.
    """

    cluster_id: str
    node_id: int
    incarnation: str
    store: ObjectStore
    describe: Callable[[int], StreamInfo]
    clock: Clock
    rng: random.Random
    scope: TaskScope
    claim: Claim | None = None
    may_be_new: bool = True


class LogIdentity(NamedTuple):
    """The identity of an opened log. `log_id` is 32 hex digits, given to the log when it was made:
    those of a volume, or of a node's objects in a store. `epoch` is the highest node epoch that was
    started on it, -1: none. The log reaches to the position `end` at least; -1: its positions say
    nothing, since they begin again with each start.
    """

    log_id: str
    epoch: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WalRecord:
    """One record batch of one stream, as recovered.

    `epoch` is the stream epoch it was written under; `base_offset` and `count` are stream offsets
    (the record covers `base_offset .. base_offset + count`, end exclusive).
    """

    position: int
    end_position: int
    stream_id: int
    epoch: int
    base_offset: int
    count: int
    payload: memoryview


class WalRange(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Offsets [start_offset, end_offset) of a stream, written under stream epoch `epoch`, that a
    log holds. `max_timestamp` in milliseconds, `size` in bytes. `headers`: what the partition's
    state needs of the batches (`lakehead.storage.format.producer_headers`).
    """

    stream_id: int
    epoch: int
    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int
    headers: bytes


class WalPart(NamedTuple):
    """Positions of a log up to `end_position`, without a gap after the part before: one record, or
    the ranges of many that were not read.
    """

    end_position: int
    record: WalRecord | None = None
    ranges: tuple[WalRange, ...] = ()


class WalListener(Protocol):
    """The listener that a log notifies of durability."""

    def released(self, position: int) -> None:
        """Every record that ends at or below `position` is durable. In order, on the loop."""

    def failed(self, error: Exception) -> None:
        """The log is broken: said once, and nothing is released after it.

        Batches that were appended and not released have an unknown outcome: recovery may find them.
        """


class WalFloor(NamedTuple):
    """The beginning of a node's log: recovery needs no objects below (epoch, number)."""

    epoch: int
    number: int


class SealedRange(NamedTuple):
    """Offsets [start, end) of a stream in a sealed object, all appended under one stream epoch.

    `max_timestamp` in milliseconds, `size` in bytes. `has_headers`: the object carries some that
    the partition's state is made of.
    """

    stream_id: int
    epoch: int
    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int
    has_headers: bool = False


class SealedObject(NamedTuple):
    """One group commit below the seal of its epoch: a whole stream object."""

    key: str
    size: int
    created_ms: int
    ranges: tuple[SealedRange, ...]


class SealedLog(NamedTuple):
    """The rest of a node's ended epochs, in which nothing more can be acknowledged.

    `objects` are in the order of the log. `leftovers` are keys of unneeded data: below the floor,
    or above a seal. Seals are in neither.
    """

    objects: tuple[SealedObject, ...]
    leftovers: tuple[str, ...]


class SealableLog(Protocol):
    """The log of one node as its recovering node sees it, when its group commits are objects: the
    metadata keeps its floor, and the objects may be committed as they are.
    """

    @property
    def are_shared(self) -> bool:
        """Return true if they lie in the cluster's store, where every reader finds them."""

    async def seal(self, floor: WalFloor, *, before: int) -> SealedLog:
        """End every epoch from the floor's to the one before `before`, and return what they hold,
        which `recover()` then yields. May be repeated. Raises StoreUnavailable, CorruptObject,
        WalCorrupted, SettingsError (another cluster's log).
        """

    async def discard(self, keys: Sequence[str]) -> None:
        """Delete objects that no node needs; a failed deletion is left to the garbage sweep."""


class WalObjects(SealableLog, Protocol):
    """The additional interface of a log whose group commits are objects."""

    def floor_at(self, position: int) -> WalFloor:
        """Return the floor to be committed with everything that ends at or below `position`."""


class WriteAheadLog(Protocol):
    """A durable, ordered queue of record batches: appended at one end, trimmed at the other."""

    @property
    def objects(self) -> WalObjects | None:
        """Set when group commits are objects. Then `objects.seal()` comes before `recover()`, and
        stands for it when nothing is to be read.
        """

    @property
    def next_position(self) -> int:
        """The position of the next record; after `recover()`, the beginning of the new epoch."""

    @property
    def released_position(self) -> int:
        """The durable frontier: everything that ends at or below it survives a crash."""

    @property
    def trimmed_position(self) -> int:
        """Everything that ends at or below it is no longer needed and is not recovered."""

    @property
    def capacity(self) -> int:
        """Bytes that fit between the trimmed position and the next position."""

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet released."""

    async def identify(self, *, reach: int = -1) -> LogIdentity | None:
        """Return which log this is, before `recover()`. None: one that cannot be another, in the
        cluster's own store, or that ends with its process. Its `end` is exact if it is below
        `reach`, which may take the reading of all that is there. Raises what `recover()` raises.
        """

    def recover(self) -> AsyncGenerator[WalRecord, None]:
        """Yield the records from the trimmed position to the end, in order. Before `start()`. A
        caller that may stop earlier closes it: reads of the device may be under way.
        """

    def survey(self) -> AsyncGenerator[WalPart, None]:
        """Yield what `recover()` would, without reading records where the log has an index of them.
        The ranges of one stream are in order; those of several streams in one part overlap in the
        log.
        """

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        """Begin a node epoch, greater than every earlier one, after all that was recovered.

        Raises Fenced when the log has seen this epoch or a later one.
        """

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        """Add one record and return its end position, to be compared with `released()`.

        The payload may be referred to until it is released: it must not change any more. Raises
        WalFull (no space until a trim or a release; nothing was changed), RecordTooLarge,
        WalFailed, WalClosed.
        """

    async def trim(self, position: int) -> None:
        """Free everything that ends at or below `position`; at most the released position.

        Remembered by recovery at some later time: after a crash, records may be recovered that
        were trimmed, never the other way round.
        """

    async def close(self) -> None:
        """Wait until all that was appended is released (or the log failed), then let go."""
