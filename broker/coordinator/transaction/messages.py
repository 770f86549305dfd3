"""A transaction as its coordinator keeps it, and the decisions of the state machine."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 32_767
TEXT_SIZE_MAX = 32_767
"""Longest transactional id in bytes, as UTF-8."""
TV_0 = 0
"""The client adds partitions itself and keeps its epoch; Kafka stores it as transaction.version
0."""
TV_2 = 2
"""The broker adds partitions, and each transaction has an epoch of its own (KIP-890)."""


class TransactionState(IntEnum):
    """Kafka's states; the values are those in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that admin tools show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETED = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
IDLE = COMPLETED | {TransactionState.EMPTY}
"""No transaction is open or being ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The durable state of a transactional id. Times in milliseconds since the epoch, -1 for none.

    `previous_producer_id` and `next_producer_id` bridge the change of ids when epochs run out.
    `last_producer_epoch` distinguishes a repeated request from a new one; it is not in the log.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    transaction_version: int = TV_0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Return true if the producer id needs a successor: the last epoch is kept for fencing."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def bumps_epochs(self) -> bool:
        """Return true if each transaction gets an epoch of its own (KIP-890)."""
        return self.transaction_version >= TV_2


class Refused(NamedTuple):
    """The request fails with an error, and nothing changes."""

    code: ErrorCode


class Settled(NamedTuple):
    """The request succeeds at once: its effect exists already."""

    producer_id: int
    producer_epoch: int


class Store(NamedTuple):
    """This goes to the log; the machine waits for `stored`."""

    transaction: Transaction


class NeedsProducerId(NamedTuple):
    """Try again with an unused producer id."""


Decision: TypeAlias = Refused | Settled | Store | NeedsProducerId


class Producer(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int
