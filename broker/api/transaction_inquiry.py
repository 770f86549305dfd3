"""The question whether the partitions of a produce request are in its transaction (KIP-890).

Asked of the transaction's coordinator, once for a request, for the partitions in which its batches
begin a transaction. A client of transactions of version 2 (Produce 12) does not add partitions to
its transaction: asking does.
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
"""First version of Produce that may be answered with TRANSACTION_ABORTABLE (KIP-890)."""

_UNREACHED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
Batches = Iterable[tuple[Partition, BatchHeader]]


class TransactionInquiry:
    """What one produce request asks, and what it was told."""

    def __init__(
        self, services: BrokerServices, transactional_id: str | None, version: int
    ) -> None:
        self._services = services
        self._transactional_id = transactional_id
        self._version = version
        self._confirmed: dict[Partition, Verification] = {}
        self._refused: dict[Partition, KafkaError] = {}
        self.refusal: KafkaError | None = None
        """Why the whole request is refused."""

    def start(
        self,
        batches: Batches,
        on_answer: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> bool:
        """Ask about the transactional ones of a request's batches, of which there is one; False:
        nothing has to be asked. Else `on_answer` is called once, later, or `on_error` with an
        unexpected error.
        """
        if self._transactional_id is None:
            self.refusal = KafkaError(ErrorCode.transactional_id_authorization_failed)
            return False
        asked = [(one, header) for one, header in batches if _is_of_transaction(header)]
        producers = {(header.producer_id, header.producer_epoch) for _, header in asked}
        if len(producers) > 1:
            self.refusal = KafkaError(
                ErrorCode.invalid_producer_id_mapping,
                "Transactional records contained more than one producer ID",
            )
            return False
        for partition, header in asked:
            try:
                verification = partition.verification(header, is_adding=self._is_adding)
            except KafkaError as error:
                self._refused[partition] = error
                continue
            if verification is not None:
                self._confirmed[partition] = verification
        if not self._confirmed:
            return False
        asking = self._ask(self._transactional_id, *producers.pop(), on_answer)
        self._services.scope.spawn_apart(
            asking, name="ask a transaction coordinator", on_error=on_error
        )
        return True

    def check_answer(self, partition: Partition) -> None:
        """Raise what the coordinator has against a partition: KafkaError."""
        if self.refusal is not None:
            raise self.refusal
        if partition in self._refused:
            raise self._refused[partition]

    def check_verified(self, partition: Partition, header: BatchHeader) -> None:
        """Refuse a batch of a transaction that is not open. Raises KafkaError."""
        if _is_of_transaction(header):
            partition.check_verified(header, self._confirmed.get(partition))

    @property
    def _is_adding(self) -> bool:
        return self._version >= ADDING_SINCE

    async def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        on_answer: Callable[[], None],
    ) -> None:
        places = {(one.topic.name, one.index): one for one in self._confirmed}
        codes = await self._services.transactions.verify(
            transactional_id, producer_id, producer_epoch, list(places), is_adding=self._is_adding
        )
        for place, partition in places.items():
            code = codes.get(place, ErrorCode.coordinator_not_available)
            if code is not ErrorCode.none:
                self._refused[partition] = _for_client(code, self._version)
        asyncio.get_running_loop().call_soon(on_answer)


def _is_of_transaction(header: BatchHeader) -> bool:
    return header.is_transactional and header.producer_id != NO_PRODUCER_ID


def _for_client(code: ErrorCode, version: int) -> KafkaError:
    """Return a coordinator's error as a producer of this version understands it. What passes by
    itself is NOT_ENOUGH_REPLICAS for it, as in Kafka: it tries again, and looks for no new leader.
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
