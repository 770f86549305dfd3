"""The identity of a node's log in a store of its own: the marks that each start leaves there.

`wal/<node id>/log/<epoch, 10 digits>-<log id, 32 hex digits>`, whose content is the cluster's id in
ASCII. The newest mark counts; a start puts its own before anything is appended in its epoch, and
deletes the older ones. The log id is made with the first mark and stays. So a store that is empty,
or an earlier copy, shows itself. The cluster's own store needs no marks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import SettingsError, StoreUnavailable
from lakehead.storage.event_logger import event_logger
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.object_store.put import put_if_absent
from lakehead.storage.wal.object.names import node_prefix
from lakehead.storage.wal.protocol import LogIdentity, WalOwner

_log = event_logger("storage.wal")

_RETRY_S = 0.05
_NAME = re.compile(r"wal/(\d+)/log/(\d{10,})-([0-9a-f]{32})")


class LogMark(NamedTuple):
    """One start of a node's log in a store of its own."""

    node_id: int
    epoch: int
    log_id: str

    @property
    def key(self) -> str:
        """The name of the object."""
        return f"{node_prefix(self.node_id)}log/{self.epoch:010d}-{self.log_id}"

    @classmethod
    def parse(cls, key: str) -> LogMark | None:
        """Return the mark that a key names, None for a key of another kind."""
        match = _NAME.fullmatch(key)
        return None if match is None else cls(int(match[1]), int(match[2]), match[3])


class LogMarks:
    """The marks of one node's log in `store`, which retries."""

    def __init__(self, store: ObjectStore, owner: WalOwner) -> None:
        self._store = store
        self._owner = owner
        self._found: LogIdentity | None = None

    async def identity(self) -> LogIdentity:
        """Return which log is there; one that no epoch was started on gets an id now.

        Raises StoreUnavailable, SettingsError (another cluster's log).
        """
        marks = await self._list()
        if not marks:
            if self._found is None:
                self._found = LogIdentity(self._owner.rng.randbytes(16).hex())
            return self._found
        newest = max(marks, key=lambda mark: mark.epoch)
        cluster_id = (await self._store.get(newest.key)).decode(errors="replace")
        if cluster_id != self._owner.cluster_id:
            raise SettingsError(
                f"{self._store.uri} holds the log of node {newest.node_id} of another cluster, "
                f"{cluster_id}: give this one a prefix of its own"
            )
        self._found = LogIdentity(newest.log_id, newest.epoch)
        return self._found

    async def start(self, epoch: int) -> None:
        """Leave the mark of an epoch, which no other process has: of the log that `identity`
        returned, though the mark of an earlier start may have arrived since. Raises
        StoreUnavailable.
        """
        found = self._found or await self.identity()
        mark = LogMark(self._owner.node_id, epoch, found.log_id)
        content = self._owner.cluster_id.encode()
        await put_if_absent(
            self._store,
            mark.key,
            [content],
            Backoff(self._owner.rng, first_s=_RETRY_S, most_s=_RETRY_S),
            on_unknown=lambda error: _log.warning(
                "log_mark_unknown", key=mark.key, error=str(error)
            ),
        )
        older = [one.key for one in await self._list() if one.epoch < epoch]
        try:
            await self._store.delete(older)
        except StoreUnavailable as error:
            _log.warning("log_marks_left", count=len(older), error=str(error))

    async def _list(self) -> list[LogMark]:
        prefix = f"{node_prefix(self._owner.node_id)}log/"
        listed = await self._store.list(prefix)
        return [mark for meta in listed if (mark := LogMark.parse(meta.key)) is not None]
