"""A source into a topic: what was read and how far, in one transaction."""

from collections.abc import Callable
from dataclasses import replace

from lakehead.connectors.runtime.dead_letters import DeadLetters
from lakehead.connectors.runtime.errors import InputReplaced, TransactionAborted
from lakehead.connectors.runtime.interfaces import (
    Batch,
    ConnectResult,
    DeadLetter,
    Partition,
    Position,
    Progress,
    Source,
    Work,
)
from lakehead.connectors.runtime.positions import PositionTopic
from lakehead.connectors.runtime.settings import RunSettings
from lakehead.connectors.runtime.stop import Stop
from lakehead.connectors.runtime.transactions import RecordTooBig, Transactions
from lakehead.storage.clock import Clock
from lakehead.storage.errors import StoreRefused, StoreUnavailable
from lakehead.storage.failpoints import failpoint

_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5


class SourceRun:
    """Runs a source. Not for two threads; `stop` may be requested by another."""

    def __init__(
        self,
        source: Source,
        topic: str,
        letters: DeadLetters,
        positions: PositionTopic,
        transactions: Transactions,
        settings: RunSettings,
        clock: Clock,
        *,
        stop: Stop,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.result = ConnectResult()
        self._source = source
        self._topic = topic
        self._letters = letters
        self._positions = positions
        self._transactions = transactions
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._on_progress = on_progress
        self._pending: dict[str, tuple[Partition, Position]] = {}
        self._open_result = ConnectResult()
        self._begun_s = 0.0
        self._is_whole = True
        self._failures = 0

    def run(self, *, follow: bool) -> ConnectResult:
        """Read what there is, or until stopped. Raises ConnectorError, StorageError."""
        started = self._clock.monotonic()
        self._transactions.open()
        # Only now: the last transaction of a killed run has come to its end.
        self._positions.load(self._clock, wait_s=self._settings.retry_seconds, stop=self._stop)
        try:
            while not self._stop.is_requested:
                if self._round() and (not follow or self._stop.wait(self._settings.poll_seconds)):
                    break
        finally:
            self._transactions.close()
            seconds = self._clock.monotonic() - started
            self.result = replace(self.result, seconds=seconds)
        return self.result

    def _round(self) -> bool:
        """Read all that is there now; whether it came to its end."""
        try:
            works = self._source.work(self._positions)
            total, done = sum(work.size_bytes for work in works), 0
            for work in works:
                for batch in self._source.read(work, self._positions(work.partition)):
                    done += batch.read_bytes
                    self._take(work, batch)
                    self._on_progress(Progress(self.result, work.name, done, total))
                    if self._stop.is_requested:
                        break
                else:
                    self._open_result = self._open_result.plus(ConnectResult(finished=1))
                    continue
                break
            if self._is_whole:
                self._commit()
        except (TransactionAborted, StoreUnavailable, InputReplaced) as error:
            if isinstance(error, StoreRefused):
                raise
            self._begin_again(error)
            return False
        return True

    def _take(self, work: Work, batch: Batch) -> None:
        if not self._pending:
            self._begun_s = self._clock.monotonic()
        letters = list(batch.letters)
        size = 0
        for record in batch.records:
            try:
                self._transactions.send(self._topic, record)
                size += record.size_bytes
            except RecordTooBig:
                reason = f"a record of {record.size_bytes} bytes is larger than the topic allows"
                letters.append(DeadLetter(record.place, reason, record.value or b""))
        sent = len(batch.records) - (len(letters) - len(batch.letters))
        self._open_result = self._open_result.plus(ConnectResult(records=sent, bytes=size)).plus(
            self._letters.dispose(letters)
        )
        failpoint("connect_batch_sent")
        self._transactions.serve()
        self._pending[work.name] = (work.partition, batch.position)
        self._is_whole = batch.is_whole
        age_s = self._clock.monotonic() - self._begun_s
        is_due = (
            self._open_result.bytes >= self._settings.transaction_bytes
            or age_s >= self._settings.transaction_seconds
        )
        if is_due and batch.is_whole:
            self._commit()

    def _commit(self) -> None:
        if self._pending:
            for partition, position in self._pending.values():
                self._transactions.send(
                    self._positions.topic, self._positions.record(partition, position)
                )
            self._transactions.commit()
            for partition, position in self._pending.values():
                self._positions.keep(partition, position)
            self.result = self.result.plus(ConnectResult(transactions=1))
        self.result = self.result.plus(self._open_result)
        self._pending = {}
        self._open_result = ConnectResult()
        self._failures = 0

    def _begin_again(self, error: TransactionAborted | StoreUnavailable | InputReplaced) -> None:
        """After an aborted transaction, trouble of a store, or a file that became another: what was
        in it is read again, after a pause. Raises the error at last.
        """
        self._transactions.abort()
        self._pending = {}
        self._is_whole = True
        self._open_result = ConnectResult()
        self.result = self.result.plus(ConnectResult(aborted=1))
        self._failures += 1
        if self._failures >= _ATTEMPTS:
            raise error
        self._stop.wait(_FIRST_PAUSE_S * 2 ** (self._failures - 1))
