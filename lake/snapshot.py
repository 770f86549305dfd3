"""Snapshots of a cluster for readers that poll, with or without the tail in object WALs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehead.lake.catalog import Catalog, open_metadata
from lakehead.lake.planner import ByteRange
from lakehead.lake.store_reader import Fetched, StoreReader
from lakehead.storage.format.stream_object import ObjectIndex
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage

if TYPE_CHECKING:
    from lakehead.lake.wal_tails import Select, WalTails

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

    def __init__(self, reader: StoreReader, *, select: "Select | None" = None) -> None:
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


def _tails(reader: StoreReader, select: "Select") -> "WalTails":
    # The modules of write-ahead logs take a moment to load: most reads have no use for them.
    from lakehead.lake.wal_tails import WalTails

    return WalTails(reader.store, select)
