"""Tails in object WALs: what is acknowledged and not in committed objects yet.

With an object WAL the tail lies in the cluster's store, in objects that are complete stream objects
(docs/storage/object-wal.md). Recovery's rules decide which of them count: the state with the tail
is the metadata as it would be if every node were recovered now. So it is exact beside uploads,
moves of partitions and crashes:

- Object k of an epoch counts if all below it, from the floor on, are there.
- An upload deletes objects only after the entry that moves the floor. If the floors are the same
  after the listing as before it, the listing missed nothing that was acknowledged before.
- A task that finds a WAL object gone looks its offsets up again: they are in another object now.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lakehead.storage.errors import ObjectNotFound, StoreUnavailable
from lakehead.storage.format.stream_object import ObjectIndex, read_index
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CommitObjects
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.stream.recovery import uncommitted
from lakehead.storage.tasks import task_group
from lakehead.storage.wal.object import WalName, is_seal_size, sealed_object, wal_key
from lakehead.storage.wal.object.names import node_prefix

IN_CLUSTER = "object:"
"""The address of a write-ahead log in the cluster's store (`NodeState.wal`)."""
_LOOKS_MAX = 20
_READS_AT_ONCE = 32

SelectNodes = Callable[[MetadataImage], Iterable[NodeState]]
"""The nodes whose tails a reader wants. Raises what the reader is to raise for one whose log is
somewhere else.
"""


class WalTails:
    """The tails of the nodes that `select` names. `indexes` are those of the WAL objects that
    counted at the last look.
    """

    def __init__(self, store: ObjectStore, select: SelectNodes) -> None:
        self._store = store
        self._select = select
        self.indexes: dict[str, ObjectIndex] = {}
        self._tail_of: tuple[MetadataImage, MetadataImage] | None = None

    async def add_to(self, log: MetadataLog) -> MetadataImage:
        """Return the newest state of the log, with the tail: the same object as before if nothing
        was added. Raises what `select` raises, and StoreUnavailable.
        """
        for _ in range(_LOOKS_MAX):
            state = log.state
            nodes = list(self._select(state))
            try:
                left = {node.node_id: await self._left_by(node) for node in nodes}
            except ObjectNotFound:
                await log.refresh(surely=True)
                continue
            now = await log.refresh(surely=True)
            if all(_floor(now, node.node_id) == _floor(state, node.node_id) for node in nodes):
                found = {index.key: index for one in left.values() for index in one}
                return self._recovered(state, found, left)
        raise StoreUnavailable(
            f"write-ahead logs in {self._store.uri} are uploaded faster than they are read"
        )

    async def of_copy(self, state: MetadataImage) -> MetadataImage:
        """Return a state with the tail, in a store to which no node writes. Raises ObjectNotFound,
        StoreUnavailable.
        """
        left = {node.node_id: await self._left_by(node) for node in self._select(state)}
        return self._recovered(state, {one.key: one for few in left.values() for one in few}, left)

    def _recovered(
        self,
        state: MetadataImage,
        found: dict[str, ObjectIndex],
        left: Mapping[int, Sequence[ObjectIndex]],
    ) -> MetadataImage:
        """Return the state with the tail: the same object as before if it is the same tail."""
        if self._tail_of is not None and self._tail_of[0] is state and found == self.indexes:
            return self._tail_of[1]
        after = state
        for node_id, indexes in left.items():
            after = _as_if_recovered(after, node_id, indexes)
        self._tail_of, self.indexes = (state, after), found
        return after

    async def _left_by(self, node: NodeState) -> list[ObjectIndex]:
        """Return the indexes of a node's WAL objects that count, in the order of its log.

        Raises ObjectNotFound: one was deleted meanwhile.
        """
        store, prefix = self._store, node_prefix(node.node_id)
        listed: set[tuple[int, int]] = set()
        for meta in await store.list(prefix, start_after=f"{prefix}{node.wal_epoch:010d}"):
            name = WalName.parse(meta.key)
            if name is not None and not is_seal_size(meta.size):
                listed.add((name.epoch, name.number))
        keys = []
        for epoch in range(node.wal_epoch, node.epoch + 1):
            number = node.wal_floor if epoch == node.wal_epoch else 0
            while (epoch, number) in listed:
                keys.append(wal_key(node.node_id, epoch, number))
                number += 1
        return await self._indexes(store, keys)

    async def _indexes(self, store: ObjectStore, keys: Sequence[str]) -> list[ObjectIndex]:
        found = {key: self.indexes[key] for key in keys if key in self.indexes}
        slots = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(key: str) -> None:
            async with slots:
                found[key] = await read_index(store, key)

        async with task_group() as group:
            for key in keys:
                if key not in found:
                    group.create_task(read(key))
        return [found[key] for key in keys]


def open_nodes(state: MetadataImage) -> list[NodeState]:
    """Return the nodes that streams are open on: of these the log may have records that no
    committed object has.
    """
    owners = {stream.node_id for stream in state.streams.values() if stream.is_open}
    return [state.nodes[one] for one in sorted(owners) if one in state.nodes]


def _floor(state: MetadataImage, node_id: int) -> tuple[int, int]:
    """Start of a node's log; None once it is retired."""
    node = state.nodes.get(node_id)
    return (-1, -1) if node is None else (node.wal_epoch, node.wal_floor)


def _as_if_recovered(
    state: MetadataImage, node_id: int, indexes: Sequence[ObjectIndex]
) -> MetadataImage:
    """Return the state as if a node's log had ended and were committed."""
    objects = uncommitted([sealed_object(index) for index in indexes], state, node_id)
    if not objects:
        return state
    node = state.nodes[node_id]
    live = replace(state, nodes=state.nodes.set(node_id, replace(node, is_fenced=False)))
    commit = CommitObjects(node_id=node_id, node_epoch=node.epoch, objects=tuple(objects))
    return apply_records(live, [commit], time_ms=0)
