"""Tails in object WALs: what is acknowledged and not in committed objects yet.

With an object WAL the tail lies in the cluster's store, in objects that are complete stream objects
(docs/storage/object-wal.md). Recovery's rules decide which of them count: the state with the tail
is the metadata as it would be if every node were recovered now. So it is exact beside uploads,
moves of partitions and crashes:

- Object k of an epoch counts if all below it, from the floor on, are there.
- An upload deletes objects only after the entry that moves the floor. So metadata that were read
  after a listing have whatever the listing missed, of all that was acknowledged before it. Of the
  listing count the objects from the floors of these metadata on.
- An object of the listing that is gone lies below the floors of the next metadata. So a look ends,
  however fast nodes upload: the listing stays, and each turn at it has less to read.
- A task that finds a WAL object gone looks its offsets up again: they are in another object now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.format.stream_object import ObjectIndex, read_index
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CommitObjects
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import ObjectStore
from lakehead.storage.stream.recovery import uncommitted
from lakehead.storage.tasks import for_each
from lakehead.storage.wal.object import WalName, is_seal_size, sealed_object, wal_key
from lakehead.storage.wal.object.names import node_prefix

IN_CLUSTER = "object:"
"""The address of a write-ahead log in the cluster's store (`NodeState.wal`)."""
_READS_AT_ONCE = 32

WalListing = Mapping[int, frozenset[tuple[int, int]]]
"""(epoch, number) of the WAL objects that were there at one moment, by node."""

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
        was added. Raises as `at_newest`.
        """
        return await self.at_newest(log, await self.look(log.state))

    async def look(self, state: MetadataImage) -> WalListing:
        """Return the WAL objects that are there now of the nodes in a state. Raises what `select`
        raises, and StoreUnavailable.
        """
        return {node.node_id: await self._listed(node) for node in self._select(state)}

    async def at_newest(self, log: MetadataLog, listing: WalListing) -> MetadataImage:
        """Return the newest state of the log, with the tail as far as a listing has it: all that
        was acknowledged before the listing is in it. Raises what `select` raises, CorruptObject
        (an object that counts is missing for good), StoreUnavailable.
        """
        missing: ObjectNotFound | None = None
        tried: set[str] = set()
        while True:
            state = await log.refresh(surely=True)
            keys = {
                node.node_id: _counting(node, listing[node.node_id])
                for node in self._select(state)
                if node.node_id in listing
            }
            wanted = {key for some in keys.values() for key in some}
            if missing is not None and wanted == tried:
                raise CorruptObject(
                    str(missing), 0, "it is missing, and records of a write-ahead log are in it"
                )
            try:
                left = {node_id: await self._indexes(some) for node_id, some in keys.items()}
            except ObjectNotFound as error:
                missing, tried = error, wanted
                continue
            return self._recovered(state, left)

    async def of_copy(self, state: MetadataImage) -> MetadataImage:
        """Return a state with the tail, in a store to which no node writes. Raises ObjectNotFound,
        StoreUnavailable.
        """
        left = {
            node.node_id: await self._indexes(_counting(node, await self._listed(node)))
            for node in self._select(state)
        }
        return self._recovered(state, left)

    def _recovered(
        self, state: MetadataImage, left: Mapping[int, Sequence[ObjectIndex]]
    ) -> MetadataImage:
        """Return the state with the tail: the same object as before if it is the same tail."""
        found = {index.key: index for one in left.values() for index in one}
        if self._tail_of is not None and self._tail_of[0] is state and found == self.indexes:
            return self._tail_of[1]
        after = state
        for node_id, indexes in left.items():
            after = _as_if_recovered(after, node_id, indexes)
        self._tail_of, self.indexes = (state, after), found
        return after

    async def _listed(self, node: NodeState) -> frozenset[tuple[int, int]]:
        """Return (epoch, number) of a node's WAL objects from its floor's epoch on, without
        seals.
        """
        prefix = node_prefix(node.node_id)
        found = await self._store.list(prefix, start_after=f"{prefix}{node.wal_epoch:010d}")
        names = [WalName.parse(one.key) for one in found if not is_seal_size(one.size)]
        return frozenset((one.epoch, one.number) for one in names if one is not None)

    async def _indexes(self, keys: Sequence[str]) -> list[ObjectIndex]:
        """Return the indexes of WAL objects. Raises ObjectNotFound: one was deleted meanwhile."""
        found = {key: self.indexes[key] for key in keys if key in self.indexes}

        async def read(key: str) -> None:
            found[key] = await read_index(self._store, key)

        unread = [key for key in keys if key not in found]
        await for_each(unread, read, at_once=_READS_AT_ONCE)
        return [found[key] for key in keys]


def open_nodes(state: MetadataImage) -> list[NodeState]:
    """Return the nodes that streams are open on: of these the log may have records that no
    committed object has.
    """
    owners = {stream.node_id for stream in state.streams.values() if stream.is_open}
    return [state.nodes[one] for one in sorted(owners) if one in state.nodes]


def nodes_in_cluster(state: MetadataImage) -> list[NodeState]:
    """Return those of `open_nodes` whose log is in the cluster's store."""
    return [node for node in open_nodes(state) if node.wal == IN_CLUSTER]


def _counting(node: NodeState, listed: frozenset[tuple[int, int]]) -> list[str]:
    """Return the keys of a node's WAL objects that count, in the order of its log."""
    keys = []
    for epoch in range(node.wal_epoch, node.epoch + 1):
        number = node.wal_floor if epoch == node.wal_epoch else 0
        while (epoch, number) in listed:
            keys.append(wal_key(node.node_id, epoch, number))
            number += 1
    return keys


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
