"""Records into topics by transactions of one producer, whose transactional id fences former runs.

One at a time: the first record begins a transaction, `commit` ends it. A broker that dies and comes
back is waited out by librdkafka; what it cannot mend becomes TransactionAborted (do it again) or an
error that ends the run.
"""

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lakehead.connectors.runtime.errors import KafkaFailed, RunStopped, TransactionAborted
from lakehead.connectors.runtime.interfaces import Record
from lakehead.connectors.runtime.kafka_clients import KafkaConfig, kafka_failure, made_client
from lakehead.connectors.runtime.stop import Stop
from lakehead.storage.clock import Clock
from lakehead.storage.failpoints import failpoint

_QUEUE_KIB = 32 * 1024
_STEP_S = 1.0
"""Of one call to the client, which a stop cannot cut short and which is repeated."""
_LAST_STEP_S = 0.5
"""Of a call when a stop has no time left: enough for a cluster that responds."""
_LAST_WORDS = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_MESSAGE_BYTES_MAX = 1_048_588
_NEXT_TO_ZERO = 1
"""librdkafka takes a timestamp of 0 for none, and writes the time of the day."""
_OVERHEAD = 1_024
"""Overhead of a batch with one record: the limit of a topic is that of batches."""
_STOPPED = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
"""The transaction has failed before: what it failed by comes out when it is aborted."""


class RecordTooBig(Exception):
    """A topic does not take a record of this size. The transaction goes on without it."""


class Transactions:
    """The transactions of one connector."""

    def __init__(
        self,
        config: KafkaConfig,
        name: str,
        clock: Clock,
        stop: Stop,
        *,
        timeout_s: float,
        retry_s: float,
        largest_record: int | None = None,
    ) -> None:
        self.is_open = False
        self._name = name
        self._clock = clock
        self._stop = stop
        self._retry_s = retry_s
        self._refused: KafkaError | None = None
        self._fatal: KafkaError | None = None
        defaults: KafkaConfig = {
            "compression.type": "zstd",
            "linger.ms": 20,
            "partitioner": "murmur2_random",  # as Kafka's own clients choose
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            "message.max.bytes": max(1_000, (largest_record or _MESSAGE_BYTES_MAX) - _OVERHEAD),
        }
        ours: KafkaConfig = {
            "transactional.id": f"lakehead-connect-{name}",
            "transaction.timeout.ms": int(timeout_s * 1000),
        }
        settings = {**defaults, **config, **ours}
        self._producer: Any = made_client(Producer, settings, error_cb=self._on_error)

    def open(self) -> None:
        """Fence every former run; its open transaction ends. Raises KafkaFailed."""
        self._until_done(self._producer.init_transactions, "cannot begin to write")

    def send(self, topic: str, record: Record) -> None:
        """Take a record into the transaction, waiting while the queue is full.

        Raises RecordTooBig, TransactionAborted, RunStopped, ConnectorError.
        """
        if not self.is_open:
            self._begin()
        options: dict[str, Any] = {}
        if record.partition is not None:
            options["partition"] = record.partition
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms or _NEXT_TO_ZERO
        if record.headers:
            options["headers"] = list(record.headers)
        while True:
            try:
                self._producer.produce(
                    topic, record.value, record.key, on_delivery=self._delivered, **options
                )
                return
            except BufferError:
                self._check_stop(f"cannot write to {topic}")
                self._poll(0.1)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise RecordTooBig from None
                self._failed(error, f"cannot write to {topic}")

    def serve(self) -> None:
        """Serve the client's callbacks; to be called now and then. Raises ConnectorError."""
        self._poll(0)

    def send_offsets(self, offsets: Sequence[Any], group: Any) -> None:
        """Take a group's offsets into the transaction. Raises as `send` does."""
        if not self.is_open:
            self._begin()
        self._until_done(
            lambda wait: self._producer.send_offsets_to_transaction(offsets, group, wait),
            "cannot keep offsets",
        )

    def commit(self) -> None:
        """End the transaction: everything in it is in the topics, or TransactionAborted is raised
        and nothing is.
        """
        if not self.is_open:
            return
        failpoint("connect_transaction_written")
        self._until_done(self._producer.commit_transaction, "cannot commit")
        self.is_open = False
        failpoint("connect_transaction_committed")

    def abort(self) -> None:
        """End the transaction: nothing of it is in the topics. Raises ConnectorError."""
        if self.is_open:
            self.is_open = False
            self._until_done(self._producer.abort_transaction, "cannot abort")

    def close(self) -> None:
        """Abort what is open, as far as the cluster can be reached."""
        try:
            if self.is_open:
                self._producer.abort_transaction(max(_LAST_STEP_S, self._stop.left_s(_STEP_S)))
        except KafkaException:
            pass  # the cluster aborts it when its time is over

    def _begin(self) -> None:
        self._refused = None
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise kafka_failure(error, "cannot begin a transaction", self._name) from None
        self.is_open = True

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and error.code() not in _LAST_WORDS and self._refused is None:
            self._refused = error

    def _poll(self, wait_s: float) -> None:
        """Have callbacks called. Raises what has ended the producer for good."""
        try:
            self._producer.poll(wait_s)
        except KafkaException as error:
            raise kafka_failure(error, "cannot write", self._name) from None
        if self._fatal is not None:
            raise kafka_failure(self._fatal, "cannot write", self._name)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error

    def _until_done(self, call: Callable[[float], None], what: str) -> None:
        """Repeat a call that the client says may be repeated."""
        deadline = self._clock.monotonic() + self._retry_s
        while True:
            try:
                return call(max(_LAST_STEP_S, self._stop.left_s(_STEP_S)))
            except KafkaException as error:
                self._poll(0)  # a call may only time out while the client knows more
                if error.args[0].retriable():
                    self._check_stop(what)
                if not error.args[0].retriable() or self._clock.monotonic() > deadline:
                    self._failed(error, what)

    def _check_stop(self, what: str) -> None:
        """Raise RunStopped when a stop does not wait any longer. A transaction that is open then,
        or of which the end is not known, is ended by the next run of the connector, or by the
        cluster after `transaction.timeout.ms`.
        """
        if self._stop.is_over:
            raise RunStopped(
                f"stopped, and {what}: the cluster did not respond within "
                f"{self._stop.within_s:g} s; the next run reads uncommitted records again"
            )

    def _failed(self, error: KafkaException, what: str) -> None:
        """Raise what an error means; a transaction that can be done again is aborted first."""
        cause: KafkaError = error.args[0]
        refused = self._refused
        if not cause.txn_requires_abort() and cause.code() not in _STOPPED:
            raise kafka_failure(error, what, self._name) from None
        self.abort()
        if refused is not None and not refused.retriable() and not refused.fatal():
            failure = kafka_failure(refused, "the cluster refuses a record", self._name)
            if isinstance(failure, KafkaFailed) and refused.code() in _NEVER:
                raise failure from None
        raise TransactionAborted(f"{what}: {(refused or cause).str()}") from None


_NEVER = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
"""Refusals that a second try meets again."""
