"""Transactions that clients began, what they wrote and read, and what became of them.

Values name the transaction that wrote them: `NAME:NUMBER`, where NUMBER counts the values of the
transaction. A transaction whose commit was never requested must never be seen, whatever became of
its client; one whose commit was requested without a clear response may be seen as a whole.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Fate(StrEnum):
    """The state of a transaction as far as its client knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Seen(NamedTuple):
    """A value that a reader of committed records got."""

    partition: int
    offset: int
    value: str
    at: float
    """When the reader had it, in seconds of the history's clock."""

    @property
    def writer(self) -> str:
        """The name of the transaction that wrote it."""
        return writer_of(self.value)


@dataclass(slots=True)
class Transaction:
    """One transaction."""

    name: str
    writes: dict[str, int] = field(default_factory=dict)
    """Partitions by value, in the order of the calls."""
    reads: list[Seen] = field(default_factory=list)
    """The records that it read before it was ended."""
    commit_begun: float = math.inf
    """When its client requested the commit."""
    fate: Fate = Fate.OPEN

    @property
    def may_be_seen(self) -> bool:
        """Return true if its values may be in the log."""
        return self.fate is Fate.COMMITTED or (
            self.fate is Fate.OPEN and self.commit_begun < math.inf
        )


@dataclass(slots=True)
class TransactionHistory:
    """All transactions of a run by name, and what was read. Clients write from their threads."""

    clock: Callable[[], float] = time.monotonic
    transactions: dict[str, Transaction] = field(default_factory=dict)
    readings: dict[str, list[Seen]] = field(default_factory=dict)
    """By reader, in its order; a reader begins somewhere and passes nothing over."""
    delivered: dict[int, set[int]] = field(default_factory=dict)
    """Offsets by partition that members with automatic commits were given."""

    def begin(self, name: str) -> Transaction:
        """Note a new transaction."""
        made = self.transactions[name] = Transaction(name)
        return made

    def request_commit(self, transaction: Transaction) -> None:
        """Note that a commit is requested now."""
        transaction.commit_begun = self.clock()

    def record_seen(self, reader: str, records: Iterable[tuple[int, int, str]]) -> list[Seen]:
        """Note (partition, offset, value) of records that a reader was given."""
        now = self.clock()
        found = [Seen(partition, offset, value, now) for partition, offset, value in records]
        self.readings.setdefault(reader, []).extend(found)
        return found

    def record_delivered(self, places: Iterable[tuple[int, int]]) -> None:
        """Note partitions and offsets that a member with automatic commits was given."""
        for partition, offset in places:
            self.delivered.setdefault(partition, set()).add(offset)


def writer_of(value: str) -> str:
    """Return the name of the transaction that wrote a value."""
    return value.rpartition(":")[0]
