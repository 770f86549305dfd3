"""Verify that the partitions of a produce request are in its transaction (KIP-890).

A request sends one verification to the transaction's coordinator, for the partitions in which its
batches begin a transaction. A client of transaction version 2 (Produce 12) does not add partitions
to its transaction: the verification does.
"""

import asyncio
from collections.abc import Callable, Iterable

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Partition
from lakehead.broker.partition.verification import Verification
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.services import BrokerServices
from lakehead.storage.format.record_batch import NO_PRODUCER_ID, BatchHeader

ADDING_SINCE = 12
"""First version of Produce whose partitions are added to the transaction (KIP-890)."""
ABORTABLE_SINCE = 11
"""First version of Produce whose response may have TRANSACTION_ABORTABLE (KIP-890)."""

_UNREACHED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
Batches = Iterable[tuple[Partition, BatchHeader]]


class TransactionVerification:
    """The verification of one produce request, and its outcome."""

    def __init__(
        self, services: BrokerServices, transactional_id: str | None, version: int
    ) -> None:
        self._services = services
        self._transactional_id = transactional_id
        self._version = version
        self._confirmed: dict[Partition, Verification] = {}
        self._refused: dict[Partition, KafkaError] = {}
        self.refusal: KafkaError | None = None
        """The error of the whole request, if it is refused."""

    def start(
        self,
        batches: Batches,
        on_response: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> bool:
        """Verify the transactional batches of a request, of which there is at least one.

        Return False if no verification is necessary. Otherwise call `on_response` once, later, or
        `on_error` with an unexpected error.
        """
        if self._transactional_id is None:
            self.refusal = KafkaError(ErrorCode.transactional_id_authorization_failed)
            return False
        transactional = [(one, header) for one, header in batches if _is_of_transaction(header)]
        producers = {(header.producer_id, header.producer_epoch) for _, header in transactional}
        if len(producers) > 1:
            self.refusal = KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                "Transactional records contained more than one producer ID",
            )
            return False
        for partition, header in transactional:
            try:
                verification = partition.verification(header, is_adding=self._is_adding)
            except KafkaError as error:
                self._refused[partition] = error
                continue
            if verification is not None:
                self._confirmed[partition] = verification
        if not self._confirmed:
            return False
        sending = self._verify(self._transactional_id, *producers.pop(), on_response)
        self._services.scope.spawn_apart(sending, name="verify a transaction", on_error=on_error)
        return True

    def check_codes(self, partition: Partition) -> None:
        """Raise KafkaError if the coordinator refused a partition."""
        if self.refusal is not None:
            raise self.refusal
        if partition in self._refused:
            raise self._refused[partition]

    def check_verified(self, partition: Partition, header: BatchHeader) -> None:
        """Raise KafkaError for a batch of a transaction that is not open."""
        if _is_of_transaction(header):
            partition.check_verified(header, self._confirmed.get(partition))

    @property
    def _is_adding(self) -> bool:
        return self._version >= ADDING_SINCE

    async def _verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        on_response: Callable[[], None],
    ) -> None:
        partitions = {(one.topic.name, one.index): one for one in self._confirmed}
        codes = await self._services.transactions.verify(
            transactional_id,
            producer_id,
            producer_epoch,
            list(partitions),
            is_adding=self._is_adding,
        )
        for where, partition in partitions.items():
            code = codes.get(where, ErrorCode.coordinator_not_available)
            if code is not ErrorCode.none:
                self._refused[partition] = _for_client(code, self._version)
        asyncio.get_running_loop().call_soon(on_response)


def _is_of_transaction(header: BatchHeader) -> bool:
    return header.is_transactional and header.producer_id != NO_PRODUCER_ID


def _for_client(code: ErrorCode, version: int) -> KafkaError:
    """Return a coordinator's error for a producer of this version. A transient error becomes
    NOT_ENOUGH_REPLICAS, as in Kafka: the producer retries, and does not look for a new leader.
    """
    busy = code is ErrorCode.concurrent_transactions and version < ADDING_SINCE
    if busy or code in _UNREACHED:
        return KafkaError(
            ErrorCode.not_enough_replicas,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name.upper()}",
        )
    if code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch)
    if code is ErrorCode.transaction_abortable and version < ABORTABLE_SINCE:
        code = ErrorCode.invalid_txn_state
    if code is ErrorCode.invalid_txn_state:
        return KafkaError(code, "Partition was not added to the transaction")
    return KafkaError(code)
