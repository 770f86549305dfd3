"""Clients that read and write in transactions, under any fault, and note all in a history.

- Writers: each reads committed records of a topic and writes to some partitions of the same topic,
  in one transaction after another. A quarter is aborted. A client that ends as if it crashed leaves
  its transaction open; the next one of the same id ends it.
- Copiers: members of a group that read a topic, write each value to the same partition of another
  topic, and commit their positions in the same transaction. They are librdkafka's, and Kafka's own
  TransactionalMessageCopier where there is Java, in a group of its own.
- Members with automatic commits, which read the same topic.
"""

import itertools
import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from bench.apache_kafka import tools
from bench.maven import MissingTool
from tests.checker.transaction_history import Fate, Transaction, TransactionHistory
from tests.checker.transaction_rules import CommittedLog
from tests.checker.workload import IsOver, Worker, join_all
from tests.support.traffic import NO_SECURITY, QUICK_RECONNECT, new_consumer, place_of

LIMIT_S = 60.0
COPIES, JAVA_COPIES = "copies", "java-copies"
"""Suffixes of the topics with copies of the source, and of the groups that make them."""
AUTO_COMMIT = "auto-commit"
BATCH = 100
JAVA_REST_S = 10.0
"""From one start of the Java copier to the next, at least."""
TIMEOUT_MS = 10_000
"""Of a transaction, after which the coordinator aborts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLoad:
    """The cluster and the topics that the clients use, and the number of clients."""

    bootstrap: str
    topic: str
    """Of the writers. Topics, groups and transactional ids of the others begin with its name."""
    partitions: int
    source: str = ""
    """A topic that is copied; empty: there are no copiers."""
    writers: int = 3
    has_java: bool = False
    pause_s: float = 0.0
    """Between two transactions of a writer."""
    security: Mapping[str, str | int | float] = field(default_factory=dict)
    """Settings of a client of librdkafka, beside the address."""

    def named(self, suffix: str) -> str:
        """Return the name of a topic or group of this load."""
        return f"{self.topic}-{suffix}"

    @property
    def topics(self) -> list[str]:
        """All topics that the clients write to."""
        copies = [self.named(COPIES)] * bool(self.source) + [
            self.named(JAVA_COPIES)
        ] * self.has_java
        return [self.topic, *copies]


class TransactionClients:
    """All of these clients, from `start` to `finish`."""

    def __init__(self, load: TransactionLoad, history: TransactionHistory, seed: int) -> None:
        self._load = load
        self._history = history
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._names = [load.named(f"writer{n}") for n in range(load.writers)]
        self._workers = [Worker(name, seed, self._write) for name in self._names]
        self._position = {name: dict.fromkeys(range(load.partitions), 0) for name in self._names}
        """The next offset of each writer in each partition, through all its lives."""
        if load.source:
            copiers = [load.named(f"copier{n}") for n in range(2)]
            self._names += copiers
            self._workers += [Worker(name, seed, self._copy) for name in copiers]
            members = [load.named(f"{AUTO_COMMIT}{n}") for n in range(2)]
            self._workers += [Worker(name, seed, self._read_with_auto_commit) for name in members]
        if load.has_java:
            self._names.append(load.named("java-copier"))
            self._workers.append(Worker(self._names[-1], seed, self._copy_by_java))

    @property
    def errors(self) -> list[str]:
        """Errors that ended a client: no anomaly by themselves."""
        return [error for worker in self._workers for error in worker.errors]

    def start(self) -> None:
        """Begin."""
        for worker in self._workers:
            worker.start()

    def finish(self, within_s: float) -> list[str]:
        """End all; return those that hang. All transactions are ended then."""
        for worker in self._workers:
            worker.stop()
        hanging = join_all(self._workers, within_s)
        for name in self._names:
            retried(self._producer(name).init_transactions, LIMIT_S, lambda: False)
        return hanging

    def committed(self, suffix: str) -> dict[int, int]:
        """Return the positions that a group of this load has committed in the source."""
        load = self._load
        config = {
            **load.security,
            "group.id": load.named(suffix),
            "isolation.level": READ_COMMITTED,
        }
        consumer = new_consumer(load.bootstrap, config)
        try:
            places = [TopicPartition(load.source, p) for p in range(load.partitions)]
            found = consumer.committed(places, timeout=LIMIT_S)
            return {place.partition: max(place.offset, 0) for place in found}
        finally:
            consumer.close()

    def read(self, topic: str) -> CommittedLog:
        """Return all committed records of a topic."""
        load = self._load
        return read_committed(load.bootstrap, topic, load.partitions, load.security)

    # Writers.

    def _write(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        identity = name.rpartition("-")[0]
        producer = self._producer(identity)
        retried(producer.init_transactions, LIMIT_S, is_last)
        position = self._position[identity]
        consumer = self._reader(self._load.topic, position)
        try:
            while not is_over():
                self._transaction(name, producer, consumer, position)
                time.sleep(self._load.pause_s)
            if not is_last() and self._rng.random() < 1 / 2:
                self._leave_open(name, producer)
        finally:
            consumer.close()

    def _leave_open(self, name: str, producer: Producer) -> None:
        """Write in a transaction and leave it so, as a client does that crashes."""
        transaction = self._history.begin(f"{name}.{next(self._numbers)}")
        producer.begin_transaction()
        for partition in range(self._load.partitions):
            value = f"{transaction.name}:{partition:03}"
            transaction.writes[value] = partition
            producer.produce(self._load.topic, value.encode(), partition=partition)
        producer.flush(1.0)

    def _transaction(
        self, name: str, producer: Producer, consumer: Consumer, position: dict[int, int]
    ) -> None:
        history, rng = self._history, self._rng
        transaction = history.begin(f"{name}.{next(self._numbers)}")
        producer.begin_transaction()
        records = _records(consumer.consume(BATCH, 0.02))
        transaction.reads += history.record_seen(name, records)
        position.update((partition, offset + 1) for partition, offset, _ in records)
        for number in range(rng.randrange(1, 2 * self._load.partitions)):
            partition = rng.randrange(self._load.partitions)
            value = f"{transaction.name}:{number:03}"
            transaction.writes[value] = partition
            producer.produce(self._load.topic, value.encode(), partition=partition)
        self._end(producer, transaction, commits=rng.random() < 3 / 4)

    def _end(self, producer: Producer, transaction: Transaction, *, commits: bool) -> None:
        """End a transaction. Raises KafkaException if the client cannot go on."""
        if commits:
            self._history.request_commit(transaction)
            try:
                retried(producer.commit_transaction, LIMIT_S, lambda: False)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
            else:
                transaction.fate = Fate.COMMITTED
                return
        else:
            producer.flush(LIMIT_S)
        retried(producer.abort_transaction, LIMIT_S, lambda: False)
        transaction.fate = Fate.ABORTED

    def _producer(self, identity: str) -> Producer:
        config: dict[str, str | int | float] = {
            **QUICK_RECONNECT,
            "bootstrap.servers": self._load.bootstrap,
            "transactional.id": identity,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 2,
            **self._load.security,
        }
        return Producer(config)

    def _reader(self, topic: str, position: Mapping[int, int]) -> Consumer:
        config = {**self._load.security, "isolation.level": READ_COMMITTED, "fetch.wait.max.ms": 50}
        consumer = new_consumer(self._load.bootstrap, config)
        consumer.assign([TopicPartition(topic, p, o) for p, o in position.items()])
        return consumer

    # Copiers.

    def _copy(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        load, identity = self._load, name.rpartition("-")[0]
        producer = self._producer(identity)
        retried(producer.init_transactions, LIMIT_S, is_last)
        consumer = self._member(COPIES, {"isolation.level": READ_COMMITTED})
        consumer.subscribe([load.source])
        try:
            while not is_over():
                messages = [m for m in consumer.consume(BATCH, 0.1) if m.error() is None]
                if messages and not self._copy_batch(producer, consumer, messages):
                    return  # it reads again from what is committed
        finally:
            consumer.close()

    def _copy_batch(
        self, producer: Producer, consumer: Consumer, messages: Sequence[Message]
    ) -> bool:
        """Copy records in one transaction. False: it was aborted."""
        load = self._load
        producer.begin_transaction()
        positions: dict[int, int] = {}
        for partition, offset, value in map(place_of, messages):
            producer.produce(load.named(COPIES), value, partition=partition)
            positions[partition] = offset + 1
        places = [TopicPartition(load.source, p, o) for p, o in positions.items()]
        try:
            metadata = consumer.consumer_group_metadata()
            retried(
                lambda limit_s: producer.send_offsets_to_transaction(places, metadata, limit_s),
                LIMIT_S,
                lambda: False,
            )
            if self._rng.random() < 7 / 8:
                retried(producer.commit_transaction, LIMIT_S, lambda: False)
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        retried(producer.abort_transaction, LIMIT_S, lambda: False)
        return False

    def _member(self, suffix: str, more: Mapping[str, str | int | float]) -> Consumer:
        config: dict[str, str | int | float] = {
            "group.id": self._load.named(suffix),
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "fetch.wait.max.ms": 50,
            **more,
            **self._load.security,
        }
        return new_consumer(self._load.bootstrap, config)

    def _copy_by_java(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        load = self._load
        command = tools.command(
            "kafka-transactional-message-copier",
            *("--broker-list", load.bootstrap, "--group-mode", "--use-group-metadata"),
            *("--input-topic", load.source, "--output-topic", load.named(JAVA_COPIES)),
            *("--input-partition", "-1", "--consumer-group", load.named(JAVA_COPIES)),
            *("--transactional-id", name.rpartition("-")[0], "--transaction-size", str(BATCH)),
            *("--transaction-timeout", str(TIMEOUT_MS), "--enable-random-aborts"),
        )
        rest_until = time.monotonic() + JAVA_REST_S
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while not is_over() and process.poll() is None:
                time.sleep(0.1)
            if self._rng.random() < 1 / 4:
                process.kill()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S / 2)
            process.kill()
        while not is_over() and time.monotonic() < rest_until:  # it ended at the source's end
            time.sleep(0.1)

    def _read_with_auto_commit(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        commits: dict[str, str | int | float] = {
            "enable.auto.commit": "true",
            "auto.commit.interval.ms": 500,
        }
        consumer = self._member(AUTO_COMMIT, commits)
        consumer.subscribe([self._load.source])
        try:
            while not is_over():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    partition, offset, _ = place_of(message)
                    self._history.record_delivered([(partition, offset)])
        finally:
            consumer.close()


READ_COMMITTED = "read_committed"


def has_java() -> bool:
    """Return true if Kafka's own tools can be run."""
    try:
        return "usage" in tools.run("kafka-transactional-message-copier", "--help").stdout
    except (MissingTool, OSError, subprocess.TimeoutExpired):
        return False


def read_committed(
    bootstrap: str,
    topic: str,
    partitions: int,
    security: Mapping[str, str | int | float] = NO_SECURITY,
) -> dict[int, list[tuple[int, str]]]:
    """Return (offset, value) of all committed records of a topic, by partition."""
    config = {**security, "isolation.level": READ_COMMITTED, "enable.partition.eof": "true"}
    consumer = new_consumer(bootstrap, config)
    log: dict[int, list[tuple[int, str]]] = {p: [] for p in range(partitions)}
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in log])
    ends, deadline = set[int | None](), time.monotonic() + LIMIT_S
    try:
        while len(ends) < partitions:
            assert time.monotonic() < deadline, (
                f"{topic}: no end in {LIMIT_S} s of {set(log) - ends}"
            )
            messages = consumer.consume(1000, 0.2)
            ends.update(message.partition() for message in messages if message.error())
            for partition, offset, value in _records(messages):
                log[partition].append((offset, value))
    finally:
        consumer.close()
    return log


def retried(call: Callable[[float], object], limit_s: float, is_over: Callable[[], bool]) -> None:
    """Call with a time limit until it is done, or cannot be. Raises KafkaException."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            call(1.0)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline or is_over():
                raise
            threading.Event().wait(0.05)
        else:
            return


def _records(messages: Sequence[Message]) -> list[tuple[int, int, str]]:
    places = (place_of(message) for message in messages if message.error() is None)
    return [(partition, offset, value.decode()) for partition, offset, value in places]
