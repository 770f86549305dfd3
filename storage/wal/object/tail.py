"""Reads the log of another node while that node writes it.

An object whose number follows those that were read, by the writer's hand, is durable: a node that
recovers the log finds it too. It may be there a moment before the writer knows so, and acknowledges
it.
"""

from collections.abc import Sequence
from functools import partial

from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.format.stream_object import (
    StreamRecord,
    check_item,
    iter_records,
    parse_index,
)
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal.object.names import is_seal_size, wal_key
from lakehead.storage.wal.protocol import WalFloor


class ObjectWalTail:
    """The log of one epoch of a node, from a floor on. `incarnation` is that of the writer."""

    def __init__(
        self, store: ObjectStore, *, cluster_id: str, node_id: int, epoch: int, incarnation: str
    ) -> None:
        self._store = store
        self._writer = (cluster_id, node_id, epoch, incarnation)
        self._key = partial(wal_key, node_id, epoch)
        self._epoch = epoch
        self._number = 0

    def skip_to(self, floor: WalFloor) -> None:
        """Read nothing below a floor: committed objects hold that, and it may be deleted."""
        if floor.epoch == self._epoch:
            self._number = max(self._number, floor.number)

    def rewind_to(self, floor: WalFloor) -> None:
        """Begin again at a floor."""
        self._number = floor.number if floor.epoch == self._epoch else 0

    async def next(self, stream_ids: frozenset[int]) -> Sequence[StreamRecord] | None:
        """Return what the next object holds of these streams. None: it is not there yet, or the log
        has ended before it. Raises StoreUnavailable, CorruptObject, UnsupportedFormat.
        """
        key = self._key(self._number)
        try:
            body = await self._store.get(key)
        except ObjectNotFound:
            return None
        if is_seal_size(len(body)):
            return None
        index = parse_index(key, body, len(body))
        writer = (index.cluster_id, index.node_id, index.node_epoch, index.writer_id)
        if writer != self._writer:
            raise CorruptObject(
                key, 0, f"it was written by node {index.node_id}, {index.writer_id}"
            )
        found: list[StreamRecord] = []
        view = memoryview(body)
        for item in index.items:
            if item.stream_id not in stream_ids:
                continue
            data = view[item.position : item.position + item.size]
            check_item(key, item, data)
            try:
                found += iter_records(data)
            except ValueError as error:
                raise CorruptObject(key, item.position, str(error)) from error
        self._number += 1
        return found
