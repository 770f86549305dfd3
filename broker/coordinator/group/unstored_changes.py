"""Changes of a group on their way to the log of its shard, and what becomes of one that the log
does not take: the group goes back to what the log has.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from lakehead.broker.coordinator.log import BatchingLog, OnDone
from lakehead.broker.coordinator.shards import refusal
from lakehead.storage.format.batch_writer import KeyValue

T = TypeVar("T")
Outcome = asyncio.Future[Exception | None]
"""None once records are durable, or the reason that they are not."""


class UnstoredChanges:
    """The changes of a group whose records may not be in the log."""

    __slots__ = ("_keys", "newest")

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self.newest: Outcome | None = None
        """The outcome of the newest records."""

    def append(self, log: BatchingLog, records: Sequence[KeyValue], go_back: OnDone) -> None:
        """Append the records of a change, one at least. `go_back` is called with the error if they
        could not be stored.
        """

        def on_done(error: Exception | None) -> None:
            if error is not None:
                go_back(error)
            elif self.newest is outcome:
                self._keys.clear()

        self._keys.update(key for key, _ in records)
        log.append(records, on_done)
        outcome = self.newest = log.outcome

    def take_keys(self) -> set[bytes]:
        """Return the keys of the records, once: of several changes of a turn the first one that
        was not stored takes the group back.
        """
        keys, self._keys = self._keys, set()
        return keys


def when_stored(outcome: Outcome | None, result: T) -> asyncio.Future[T]:
    """Return a future that gets `result` once records are durable, at once if there are none on
    their way, or a KafkaError if they could not be stored.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    if outcome is None or outcome.done():
        future.set_result(result)
        return future

    def on_stored(stored: Outcome) -> None:
        if future.done():
            return
        error = stored.result()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(refusal(error))

    outcome.add_done_callback(on_stored)
    return future
