"""The topic `_schemas` as a log: several registries read it, and one at a time writes.

Every registry reads the whole topic, in committed order, into its state. The writer is decided
where the write happens: all registries of a topic share one transactional id. A write is

1. `init_transactions`, unless this process wrote last: the cluster fences the former writer, and
   ends its open transaction, one way or the other;
2. read to the end of the topic (the last writer has read its own records, and there can be no
   others);
3. decide, on a state that no other registry can change any more without fencing us;
4. one transaction with all records of the change.

A registry that was fenced in between fails to commit, has changed nothing, and begins again at 1.
If the response to a commit is lost, 1 settles its outcome and 2 shows it: the last record of each
attempt carries its name in a header, and a registry that has read it has read them all. So no
election, no forwarding and no clock is needed, and a registry that was paused for a day cannot
spoil anything. It is the same idea as the write-ahead log's.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from lakehead.connectors.schema_registry.errors import (
    RegistryError,
    schema_too_large,
    store_failed,
    timed_out,
)
from lakehead.connectors.schema_registry.records import MalformedRecord, Record, decode, encode
from lakehead.connectors.schema_registry.state import RegistryState
from lakehead.storage.clock import Clock
from lakehead.storage.errors import SettingsError


def _silent_logger() -> logging.Logger:
    """Return where a client's chatter about connections goes; what matters comes as errors."""
    logger = logging.getLogger("lakehead.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def prepare_topic(
    client: Mapping[str, str], topic: str, *, replication_factor: int, timeout_s: float
) -> None:
    """Make the topic if there is none. Raises SettingsError for one that would lose schemas."""
    settings: dict[str, Any] = {**client, "logger": _silent_logger()}
    admin = AdminClient(settings)
    try:
        found = admin.list_topics(timeout=timeout_s).topics.get(topic)
        if found is None:
            _create(admin, topic, replication_factor, timeout_s)
            found = admin.list_topics(topic, timeout=timeout_s).topics[topic]
        if len(found.partitions) > 1:
            raise SettingsError(
                f"topic {topic} has {len(found.partitions)} partitions and needs one, since "
                "schemas have one order: name another with --topic"
            )
        _check_policy(admin, topic, timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise SettingsError(
            f"topic {topic} at {client['bootstrap.servers']} cannot be made ready: "
            f"{_kafka_reason(error)}; check that a broker runs there and that this user may "
            "create and write the topic"
        ) from None


def _create(admin: AdminClient, topic: str, replication_factor: int, timeout_s: float) -> None:
    made = NewTopic(
        topic,
        num_partitions=1,
        replication_factor=replication_factor,
        config={"cleanup.policy": "compact"},
    )
    try:
        admin.create_topics([made], request_timeout=timeout_s)[topic].result(timeout_s + 1)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another registry was quicker
            raise


def _check_policy(admin: AdminClient, topic: str, timeout_s: float) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    wanted: Mapping[Any, Any] = admin.describe_configs([resource], request_timeout=timeout_s)
    policy = wanted[resource].result(timeout_s + 1)["cleanup.policy"].value
    if policy != "compact":
        raise SettingsError(
            f"topic {topic} has cleanup.policy={policy}, which deletes schemas that are in use: "
            "set it to compact"
        )


def _kafka_reason(error: Exception) -> str:
    first = error.args[0] if error.args else None
    return first.str() if isinstance(first, KafkaError) else "no response in time"


ATTEMPT_HEADER = "lakehead.attempt"
_POLL_S = 0.2
_FETCH_WAIT_MS = 100
"""The client reports the end of a topic that ends with a marker when the next fetch is empty."""
_PAUSE_S = 0.02
_PAUSE_MAX_S = 1.0
_TRANSACTION_MS = 15_000
_RECORD_BYTES_MAX = 16 << 20
_log = structlog.get_logger("connectors.schema_registry")
_Result = TypeVar("_Result")

Decision = tuple[Sequence[Record], _Result]
"""The records to write, all or nothing, and the caller's result once they are written."""


class _NotWritten(Exception):
    """An attempt failed: another registry wrote, or the cluster did not respond. Try again."""


class SchemaLog:
    """The topic and its state. `client` is librdkafka's settings, with `bootstrap.servers`.

    Methods block and may be called by many threads. `lock` guards `state`.
    """

    def __init__(
        self,
        client: Mapping[str, str],
        topic: str,
        *,
        clock: Clock,
        rng: random.Random,
        timeout_s: float,
    ) -> None:
        self.topic = topic
        self.state = RegistryState()
        self.lock = threading.Lock()
        self._client: dict[str, Any] = {**client, "logger": _silent_logger()}
        self._clock = clock
        self._rng = rng
        self._timeout_s = timeout_s
        self._partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self._admin = AdminClient({**self._client})
        self._moved = threading.Condition(self.lock)
        self._position = 0
        self._attempt = ""
        self._is_attempt_seen = False
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, name="schemas reader", daemon=True)
        self._writing = threading.Lock()
        self._producer: Producer | None = None

    def open(self) -> None:
        """Begin to read, and return when the state is that of the topic. Raises RegistryError."""
        self._reader.start()
        self.catch_up()

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster. Raises RegistryError."""
        try:
            return str(self._admin.list_topics(self.topic, timeout=self._timeout_s).cluster_id)
        except KafkaException as error:
            raise store_failed(f"the cluster is not reachable: {_reason(error)}") from None

    def close(self) -> None:
        """Stop reading. A write under way ends first."""
        with self._writing:
            self._producer = None
        self._closing.set()
        if self._reader.is_alive():
            self._reader.join()

    # --------------------------------------------------------------------------------- reading

    def catch_up(self, deadline: float | None = None) -> None:
        """Read to the present end of the topic. Raises RegistryError if that is unknown."""
        if deadline is None:
            deadline = self._clock.monotonic() + self._timeout_s
        end = self._end(deadline)
        with self._moved:
            while self._position < end:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._closing.is_set():
                    raise timed_out(
                        f"topic {self.topic} is read to offset {self._position} of {end}: it did "
                        f"not get further in {self._timeout_s:g} s"
                    )
                self._moved.wait(min(left, 1.0))

    def _end(self, deadline: float) -> int:
        left = self._left(deadline)
        wanted = {TopicPartition(self.topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        try:
            found = self._admin.list_offsets(
                wanted,
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=left,
            )
            return int(next(iter(found.values())).result(left + 1).offset)
        except (KafkaException, TimeoutError) as error:
            raise store_failed(f"the end of topic {self.topic} cannot be read: {error}") from None

    def _read(self) -> None:
        consumer = Consumer(
            {
                **self._client,
                "group.id": "lakehead-schema-registry",  # required by the client, never joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": _RECORD_BYTES_MAX,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        consumer.assign([self._partition])
        try:
            while not self._closing.is_set():
                message = consumer.poll(_POLL_S)
                if message is not None:
                    self._take(consumer, message)
        finally:
            consumer.close()

    def _take(self, consumer: Consumer, message: Any) -> None:
        error = message.error()
        if error is None:
            self._apply(message)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's name for it
            self._move(message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            _log.warning("schemas_topic_recreated", topic=self.topic, reason=error.str())
            with self.lock:
                self.state, self._position = RegistryState(), 0
            consumer.assign([self._partition])
        else:
            _log.warning("schemas_topic_unreadable", topic=self.topic, reason=error.str())

    def _apply(self, message: Any) -> None:
        record: Record | None = None
        try:
            record = decode(message.key(), message.value())
        except MalformedRecord as error:
            _log.error("schemas_record_skipped", offset=message.offset(), reason=str(error))
        attempt = dict(message.headers() or ()).get(ATTEMPT_HEADER)
        with self._moved:
            if record is not None:
                self.state.apply(record)
            if attempt is not None and attempt.decode(errors="replace") == self._attempt:
                self._is_attempt_seen = True
        self._move(message.offset() + 1)

    def _move(self, position: int) -> None:
        with self._moved:
            self._position = max(self._position, position)
            self._moved.notify_all()

    # --------------------------------------------------------------------------------- writing

    def write(self, decide: Callable[[], Decision[_Result]]) -> _Result:
        """Change the state by `decide`; return its result once the change is durable.

        `decide` may be called several times, and takes the lock to look at the state. The state may
        change between two of its locks, but then nothing is written. Raises RegistryError, and the
        errors of `decide`.

        The time-out counts from the call, so a change that waits behind others is not carried out
        when its client has long turned to another registry.
        """
        deadline = self._clock.monotonic() + self._timeout_s
        if not self._writing.acquire(timeout=self._timeout_s):
            raise timed_out(f"topic {self.topic}: other changes took {self._timeout_s:g} s")
        try:
            return self._write(decide, deadline)
        finally:
            self._writing.release()

    def _write(self, decide: Callable[[], Decision[_Result]], deadline: float) -> _Result:
        decided: _Result | None = None
        attempts = 0
        while True:
            try:
                if self._producer is None:
                    producer = self._taken_over(deadline)
                    self.catch_up(deadline)
                    self._producer = producer
                if attempts and self._is_attempt_seen:
                    return decided  # type: ignore[return-value]
                try:
                    records, decided = decide()
                except RegistryError:
                    # No commit will show if this state is the last one: read, and see again.
                    self.catch_up(deadline)
                    records, decided = decide()
                if not records:
                    return decided
                attempts += 1
                with self.lock:
                    self._attempt = f"{self._rng.getrandbits(64):016x}"
                    self._is_attempt_seen = False
                self._commit(self._producer, records, deadline)
                self._wait_seen(deadline)
                return decided
            except _NotWritten as reason:
                self._producer = None
                if self._clock.monotonic() >= deadline:
                    raise timed_out(
                        f"topic {self.topic} took no write in {self._timeout_s:g} s: {reason}"
                    ) from None
                most = min(_PAUSE_MAX_S, _PAUSE_S * 2**attempts)
                self._closing.wait(self._rng.uniform(0, most))

    def _wait_seen(self, deadline: float) -> None:
        """Wait until this process has read all that it committed.

        The response to a commit comes before the markers that make its records readable.
        """
        with self._moved:
            while not self._is_attempt_seen:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._closing.is_set():
                    self._producer = None  # the next write fences, and so waits for the markers
                    raise timed_out(f"topic {self.topic}: what was committed cannot be read yet")
                self._moved.wait(min(left, 1.0))

    def _taken_over(self, deadline: float) -> Producer:
        """A producer that has fenced those of all other registries."""
        producer = Producer(
            {
                **self._client,
                "transactional.id": f"lakehead-schema-registry-{self.topic}",
                "transaction.timeout.ms": _TRANSACTION_MS,
                "message.max.bytes": _RECORD_BYTES_MAX,
                "linger.ms": 0,
            }
        )
        try:
            producer.init_transactions(self._left(deadline))
        except KafkaException as error:
            raise _NotWritten(_reason(error)) from None
        return producer

    def _commit(self, producer: Producer, records: Sequence[Record], deadline: float) -> None:
        left = self._left(deadline)
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Any) -> None:
            if error is not None:
                refused.append(error)

        try:
            producer.begin_transaction()
            for number, record in enumerate(records, start=1):
                key, value = encode(record)
                is_last = number == len(records)
                producer.produce(
                    self.topic,
                    key=key,
                    value=value,
                    partition=0,
                    headers=[(ATTEMPT_HEADER, self._attempt.encode())] if is_last else None,
                    on_delivery=delivered,
                )
            producer.commit_transaction(left)
        except KafkaException as error:
            codes = {each.code() for each in refused} | {error.args[0].code()}
            if KafkaError.MSG_SIZE_TOO_LARGE in codes:
                self._producer = None
                with suppress(KafkaException):
                    producer.abort_transaction(self._timeout_s)
                raise schema_too_large(
                    f"raise max.message.bytes of topic {self.topic}, or make it smaller"
                ) from None
            raise _NotWritten(_reason(error)) from None

    def _left(self, deadline: float) -> float:
        """Seconds to the deadline. Raises RegistryError if it is over."""
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise timed_out(f"topic {self.topic} took no write in {self._timeout_s:g} s")
        return left


def _reason(error: KafkaException) -> str:
    found: KafkaError = error.args[0]
    return found.str()
