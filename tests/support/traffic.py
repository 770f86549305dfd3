"""Producers and consumers of confluent-kafka that note in a History what they did and were told."""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.checker.history import History, Sent, value_of
from tests.support.waiting import wait_until

QUICK_RECONNECT: Mapping[str, str | int | float] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
IDEMPOTENT: Mapping[str, str | int | float] = {
    **QUICK_RECONNECT,
    "enable.idempotence": True,
    "message.timeout.ms": 120_000,
    "linger.ms": 2,
}
PLAIN: Mapping[str, str | int | float] = {
    # no retries: what was in flight at a crash counts as refused, and nothing is there twice
    **QUICK_RECONNECT,
    "enable.idempotence": False,
    "acks": "all",
    "retries": 0,
    "message.timeout.ms": 30_000,
    "linger.ms": 2,
}


NO_SECURITY: Mapping[str, str | int | float] = {}


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    security: Mapping[str, str | int | float] = NO_SECURITY,
) -> None:
    """Create a topic and wait until each of its partitions answers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK_RECONNECT, **security})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    admin.create_topics([new])[topic].result(60)
    consumer = new_consumer(bootstrap, security)
    try:
        for index in range(partitions):
            ask = functools.partial(_answers, consumer, TopicPartition(topic, index))
            assert wait_until(ask, 60), f"partition {index} of {topic} does not answer"
    finally:
        consumer.close()


def _answers(consumer: Consumer, place: TopicPartition) -> bool:
    try:
        consumer.get_watermark_offsets(place, timeout=5)
    except KafkaException:
        return False
    return True


DEFINITE_REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Answers after which a record is not there, and never will be. Any other may be either."""


class ProducerThread:
    """A producer that sends until it is told to stop: at a rate, or as fast as its queue lets it.

    Records go round the partitions, so each partition gets an increasing sequence of its numbers.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        history: History,
        config: Mapping[str, str | int | float],
        value_bytes: int = 200,
        queued_max: int = 200,
        records_per_s: float = math.inf,
    ) -> None:
        self.name = name
        self.acknowledged = 0
        self._topic = topic
        self._partitions = partitions
        self._history = history
        self._value_bytes = value_bytes
        self._queued_max = queued_max
        self._records_per_s = records_per_s
        self._producer = Producer({"bootstrap.servers": bootstrap, **config})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, deadline_s: float = 60.0) -> int:
        """Stop sending, wait for the answers; how many records are still without one."""
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive(), f"producer {self.name} does not stop"
        remaining: int = self._producer.flush(deadline_s)
        return remaining

    def drop(self) -> None:
        """Stop as a crashed client does: what has no answer yet gets none, there or not."""
        self._stop.set()
        self._thread.join(10)
        self._producer.purge()
        self._producer.flush(5)

    def _run(self) -> None:
        try:
            self._send_until_stopped()
        except KafkaException as error:  # fatal: the broker contradicted itself
            self._history.contradictions.append(f"producer {self.name}: {error}")

    def _send_until_stopped(self) -> None:
        number, began = 0, time.monotonic()
        while not self._stop.is_set():
            due = (time.monotonic() - began) * self._records_per_s
            if len(self._producer) >= self._queued_max or number >= due:
                self._producer.poll(0.01)
                continue
            sent = Sent(self.name, number)
            partition = number % self._partitions
            self._history.record_sent(sent, partition)
            self._producer.produce(
                self._topic,
                value=value_of(sent, self._value_bytes),
                partition=partition,
                on_delivery=self._on_delivery(sent),
            )
            number += 1
            self._producer.poll(0)

    def _on_delivery(self, sent: Sent) -> Callable[[KafkaError | None, Message], None]:
        def answered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                definite = error.code() in DEFINITE_REFUSALS
                note = self._history.record_failed if definite else self._history.record_unclear
                note(sent, str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self._history.record_acknowledged(sent, partition, offset)
            self.acknowledged += 1

        return answered


class TailThread:
    """A consumer that follows all partitions of a topic from 0 and notes whatever it sees."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, history: History) -> None:
        self._history = history
        self._consumer = new_consumer(bootstrap, {"fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        history.record_assign("tail", dict.fromkeys(range(partitions), 0))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the consumer does not stop"
        # librdkafka's threads may wait for each other's locks for ever: one forgets a leader while
        # another one handles a response of OffsetForLeaderEpoch.
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive(), "the consumer does not close"

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = self._history.clock()
            messages = self._consumer.consume(500, 0.05)
            records = [place_of(message) for message in messages if message.error() is None]
            self._history.record_poll("tail", records, begun)


def read_log(
    bootstrap: str,
    topic: str,
    partitions: int,
    *,
    deadline_s: float = 60.0,
    security: Mapping[str, str | int | float] = NO_SECURITY,
) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of a topic by partition: (offset, value), read by a fresh consumer from 0.

    Fails if a partition's end, as asked for at the start, is not reached in time.
    """
    consumer = new_consumer(bootstrap, {"enable.partition.eof": False, **security})
    log: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(partitions)}
    try:
        ends = {index: _end(consumer, TopicPartition(topic, index)) for index in log}
        consumer.assign([TopicPartition(topic, index, 0) for index in log])
        deadline = time.monotonic() + deadline_s
        while any(_next_offset(log[index]) < end for index, end in ends.items()):
            assert time.monotonic() < deadline, f"ends {ends} not reached: {_reached(log)}"
            for message in consumer.consume(1000, 0.5):
                if message.error() is None:
                    partition, offset, value = place_of(message)
                    log[partition].append((offset, value))
    finally:
        consumer.close()
    return log


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Where a partition ends. One without a leader at the moment is asked again, for 20 s."""
    deadline = time.monotonic() + 20
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, timeout=20)[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return end


def new_consumer(
    bootstrap: str,
    config: Mapping[str, str | int | float],
    stats_cb: Callable[[str], None] | None = None,
) -> Consumer:
    """A consumer that decides nothing by itself: no commits, no start but the one it is given."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            **QUICK_RECONNECT,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **config,
            **({} if stats_cb is None else {"stats_cb": stats_cb}),
        }
    )


def place_of(message: Message) -> tuple[int, int, bytes]:
    """Partition, offset and value of a message that is no error."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return partition, offset, value


def _next_offset(records: list[tuple[int, bytes]]) -> int:
    return records[-1][0] + 1 if records else 0


def _reached(log: Mapping[int, list[tuple[int, bytes]]]) -> dict[int, int]:
    return {index: _next_offset(records) for index, records in log.items()}
