"""A coordinator's log, written once for everything that one turn of the event loop brings.

A batch costs about the same whether it has one record or a hundred. What arrives together, from
many clients, is one batch; what arrives alone waits for nothing but the end of the turn.
"""

import asyncio
from collections.abc import Sequence

from lakehead.broker.coordinator.log import CoordinatorLog, OnDone
from lakehead.storage.format.batch_writer import KeyValue


class GatheredLog:
    """Appends to a log, in order. Other writers to the same log call `flush` before."""

    def __init__(self, log: CoordinatorLog) -> None:
        self._log = log
        self._records: list[KeyValue] = []
        self._waiting: list[OnDone] = []
        self._outcome: asyncio.Future[Exception | None] | None = None

    @property
    def outcome(self) -> asyncio.Future[Exception | None]:
        """The error, or None, of all that this turn brought; there must be something. Known
        once each `on_done` was called.
        """
        assert self._waiting
        if self._outcome is None:
            self._outcome = asyncio.get_running_loop().create_future()
        return self._outcome

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        """Append records, as `CoordinatorLog.append`, by the end of this turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._records += records
        self._waiting.append(on_done)

    def flush(self) -> None:
        """Append what was gathered."""
        if not self._waiting:
            return
        records, self._records = self._records, []
        waiting, self._waiting = self._waiting, []
        outcome, self._outcome = self._outcome, None

        def on_done(error: Exception | None) -> None:
            for one in waiting:
                one(error)
            if outcome is not None and not outcome.done():
                outcome.set_result(error)

        self._log.append(records, on_done)
