"""Snapshots of a cluster for readers that poll, with or without the tail in object WALs."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehead.lake.catalog import Catalog, open_metadata
from lakehead.lake.planner import ByteRange
from lakehead.lake.store_reader import Fetched, StoreReader
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.stream_object import ObjectIndex
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage, NodeState

if TYPE_CHECKING:
    from lakehead.storage.stream.wal_tails import WalTails

Select = Callable[[Catalog], Iterable[int]]
"""The ids of a reader's streams in a catalog."""

_SELDOM_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A catalog, and the indexes of the WAL objects that it names. Reads for plans go through it,
    so that these are not looked for again: they may be gone.
    """

    catalog: Catalog
    reader: StoreReader
    wal_indexes: Mapping[str, ObjectIndex] = field(default_factory=dict)

    def open_catalog(self) -> Catalog:
        """See `StoreReader.open_catalog`: the newest metadata, without the tail."""
        return self.reader.open_catalog()

    def read_indexes(self, keys: Sequence[str]) -> dict[str, ObjectIndex]:
        """See `StoreReader.read_indexes`."""
        known = {key: self.wal_indexes[key] for key in keys if key in self.wal_indexes}
        return known | self.reader.read_indexes([key for key in keys if key not in known])

    def read(self, ranges: Sequence[ByteRange]) -> Iterator[Fetched]:
        """See `StoreReader.read`."""
        return self.reader.read(ranges)


class Snapshots:
    """Takes snapshots of one cluster, each from what came since the one before. With `select` they
    have the tail of the streams that it names. For one thread.
    """

    def __init__(self, reader: StoreReader, *, select: Select | None = None) -> None:
        self._reader = reader
        self._tails = None if select is None else _tails(reader, select)
        self._log: MetadataLog | None = None
        self._looked_at = 0.0
        self._newest: Snapshot | None = None

    def now(self) -> Snapshot:
        """Return the cluster as it is now; the same object as before if nothing was committed.

        Raises as `Catalog.open`; SettingsError for a tail that is not in the cluster's store.
        """
        state = self._reader.run(self._state())
        if self._newest is None or self._newest.catalog.state is not state:
            self._newest = Snapshot(
                catalog=Catalog(state, self._reader.store.uri),
                reader=self._reader,
                wal_indexes={} if self._tails is None else dict(self._tails.indexes),
            )
        return self._newest

    async def _state(self) -> MetadataImage:
        now = time.monotonic()
        if self._log is None:
            self._log = await open_metadata(self._reader.store)
        else:
            # A reader that polls seldom may find the next entry deleted: only a sure look can
            # distinguish that from no change. One that polls often sees the change soon enough.
            is_sure = self._tails is not None or now - self._looked_at > _SELDOM_S
            await self._log.refresh(surely=is_sure)
        self._looked_at = now
        if self._tails is None:
            return self._log.state
        return await self._tails.add_to(self._log)


def _tails(reader: StoreReader, select: Select) -> "WalTails":
    # The modules of write-ahead logs take a moment to load: most reads have no use for them.
    from lakehead.storage.stream.wal_tails import WalTails

    uri = reader.store.uri
    return WalTails(reader.store, lambda state: _leaders(state, select(Catalog(state, uri)), uri))


def _leaders(state: MetadataImage, stream_ids: Iterable[int], uri: str) -> list[NodeState]:
    """Return the nodes that these streams are open on. Raises SettingsError for one whose log is
    somewhere else.
    """
    from lakehead.storage.stream.wal_tails import IN_CLUSTER

    streams = [state.stream(stream_id) for stream_id in stream_ids]
    nodes = [state.nodes[one] for one in sorted({s.node_id for s in streams if s.is_open})]
    for node in nodes:
        if node.wal != IN_CLUSTER:
            raise SettingsError(
                f"tail=wal reads the write-ahead logs in {uri}, and that of node {node.node_id} is "
                f"{node.wal or 'unknown'}: start its nodes with --wal object:, or read with "
                "tail=objects what is uploaded"
            )
    return nodes
