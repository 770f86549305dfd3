"""A producer of transactions, by librdkafka, that goes on whatever happens; and its readers."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.waiting import wait_until

LIMIT_S = 60.0


def settle(bootstrap: str, transactional_id: str) -> None:
    """Wait until the last transaction of an id, which was ended, is so in every partition: its
    producer is told before that. Whoever is the producer now is fenced.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(LIMIT_S)


def read_all(
    bootstrap: str, topic: str, partitions: int, level: str = "read_committed"
) -> list[str]:
    """Return every value up to the end, sorted, as this isolation level sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    values, ends, deadline = list[str](), set[int | None](), time.monotonic() + LIMIT_S
    while len(ends) < partitions:
        assert time.monotonic() < deadline, f"{len(values)} values, and no end in {LIMIT_S} s"
        for message in consumer.consume(100, 0.2):
            if message.error():
                ends.add(message.partition())
            else:
                values.append((message.value() or b"").decode())
    consumer.close()
    return sorted(values)


@dataclass
class Outcomes:
    """What became of transactions, by number. Of the unknown ones all was committed or nothing."""

    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)


class TransactionThread(threading.Thread):
    """Writes transactions of one value for each partition, twice, until `finish`. Every fourth is
    aborted; one that librdkafka has to give up is counted for what it is. Between two of them it
    rests for `pause_s`. A call that does not get through in `patience_s` ends it.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        pause_s: float = 0.0,
        patience_s: float = LIMIT_S,
    ) -> None:
        super().__init__(name="transactions", daemon=True)
        self.outcomes = Outcomes()
        self.error: BaseException | None = None
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._is_stopping = threading.Event()

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # shown by `finish`
            self.error = error

    def wait_committed(self, count: int) -> bool:
        """Return true if so many transactions are committed soon."""
        wait_until(lambda: len(self.outcomes.committed) >= count or self.error is not None, LIMIT_S)
        return len(self.outcomes.committed) >= count

    def finish(self) -> Outcomes:
        """End after the transaction at work; return what became of all."""
        self._is_stopping.set()
        self.join(3 * self._patience_s)
        assert not self.is_alive(), "a transaction does not end"
        if self.error is not None:
            raise self.error
        return self.outcomes

    def values(self, number: int) -> list[str]:
        """The values of a transaction."""
        return [f"{number:05}-{record}" for record in range(2 * self._partitions)]

    def _write(self) -> None:
        producer, number = self._producer(), 0
        while not self._is_stopping.wait(self._pause_s):
            number += 1
            try:
                self._transaction(producer, number)
            except KafkaException as error:
                if not error.args[0].fatal():
                    raise
                self.outcomes.unknown.add(number)
                producer = self._producer()
        self._producer()  # which waits until the last one is ended everywhere

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self._topic,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._retried(producer.init_transactions)
        return producer

    def _transaction(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for record, value in enumerate(self.values(number)):
            producer.produce(self._topic, value.encode(), partition=record % self._partitions)
        if number % 4:
            try:
                self._retried(producer.commit_transaction)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
            else:
                self.outcomes.committed.add(number)
                return
        else:
            producer.flush(LIMIT_S)
        self._retried(producer.abort_transaction)
        self.outcomes.aborted.add(number)

    def _retried(self, call: Callable[[float], object]) -> None:
        """Call until it is done, or cannot be."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                call(1.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
