"""Clients of two families that write, read and commit, and note in a History all that they see.

Every client is dropped now and then and replaced by a new one, as if it had crashed. Of a dropped
producer's records, those without an answer are info. Producers are idempotent, with acks=all.
"""

import contextlib
import functools
import json
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.checker.history import History, Sent, value_of
from tests.support.secure_cluster import User
from tests.support.traffic import (
    IDEMPOTENT,
    ProducerThread,
    new_consumer,
    place_of,
)

GROUP = "checked"
CONSUMER_GROUP = "checked-consumers"
"""A group of KIP-848: its members are assigned by the broker."""
LIFE_S = 30.0
VALUE_BYTES = 200
BACK_MAX = 500
"""Offsets that a consumer goes back at most."""
_CALLS_SHOWN = 3
_OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
IsOver = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Where clients go, and how much they do."""

    bootstrap: str
    topic: str
    partitions: int
    records_per_s: float
    """Of each producer."""
    user: User | None = None
    """None: clients do not authenticate."""
    zones: tuple[str, ...] = ()
    """The racks of the nodes."""
    reads_ahead: bool = False
    """True if nodes show a leader's records to consumers of their zone from its log, where the
    leader itself may not know yet that they are durable.
    """

    @property
    def librdkafka(self) -> Mapping[str, str | int | float]:
        """Settings of clients of librdkafka, beside the address."""
        return {} if self.user is None else self.user.librdkafka

    @property
    def kafka_python(self) -> Mapping[str, str]:
        """The same for kafka-python."""
        return {} if self.user is None else self.user.kafka_python


class Worker:
    """A thread that lives one client's life after the other, until it is told to stop."""

    def __init__(self, name: str, seed: int, life: Callable[[str, IsOver, IsOver], None]) -> None:
        self.name = name
        self.errors: list[str] = []
        self._rng = random.Random(f"{seed}-{name}")
        self._life = life
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `join` waits for it."""
        self._stop.set()

    def join(self, within_s: float) -> bool:
        """Return true if it ended in time."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def place(self) -> str:
        """Return the calls that the client is in, the innermost one last."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = [] if frame is None else traceback.extract_stack(frame)
        return " > ".join(f"{call.name}:{call.lineno}" for call in calls[-_CALLS_SHOWN:])

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            ends = time.monotonic() + LIFE_S * self._rng.uniform(0.3, 1.7)
            try:
                is_over = functools.partial(self._is_over, ends)
                self._life(f"{self.name}-{number}", is_over, self._stop.is_set)
            except Exception as error:
                self.errors.append(f"{self.name}-{number}: {error!r}")
                self._stop.wait(0.2)
            number += 1

    def _is_over(self, ends: float) -> bool:
        return self._stop.is_set() or time.monotonic() > ends


def join_all(workers: Sequence[Worker], within_s: float) -> list[str]:
    """Wait for the ends of all; return the names of those that hang, with the calls they are in."""
    deadline = time.monotonic() + within_s
    hanging = [one for one in workers if not one.join(max(deadline - time.monotonic(), 0))]
    return [f"{one.name} in {one.place()}" for one in hanging]


class Clients:
    """All clients of a run."""

    def __init__(self, load: Load, history: History, seed: int) -> None:
        self._load = load
        self._history = history
        self._rng = random.Random(seed)
        self._position = dict.fromkeys(range(load.partitions), 0)
        """Where the consumer that assigns itself partitions is, through all its lives."""
        self.in_zone: Counter[bool] = Counter()
        """How often a partition that a consumer of a zone reads was read from its leader (false),
        or from another node (true): once a second for each.
        """
        self._producers = [
            Worker("librdkafka1", seed, self._produce_librdkafka),
            Worker("librdkafka2", seed, self._produce_librdkafka),
            Worker("kafkapython", seed, self._produce_kafka_python),
        ]
        self._readers = [
            Worker("assigned", seed, self._read_assigned),
            Worker("assignedpython", seed, self._read_kafka_python),
            Worker("member1", seed, self._read_as_member),
            Worker("member2", seed, self._read_as_member),
            Worker("consumer1", seed, self._read_as_consumer),
            Worker("consumer2", seed, self._read_as_consumer),
            Worker("zone1", seed, self._read_in_zone),
            Worker("zone2", seed, self._read_in_zone),
            Worker("ends", seed, self._ask_ends),
        ]

    @property
    def errors(self) -> list[str]:
        """What clients' libraries raised: no anomaly by itself."""
        return [error for worker in (*self._producers, *self._readers) for error in worker.errors]

    def start(self) -> None:
        for worker in (*self._producers, *self._readers):
            worker.start()

    def finish(self, within_s: float) -> list[str]:
        """Stop all, producers with the responses they wait for; return those that hang."""
        workers = (*self._producers, *self._readers)
        for worker in workers:
            worker.stop()
        return join_all(workers, within_s)

    def _produce_librdkafka(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        producer = ProducerThread(
            name,
            self._load.bootstrap,
            self._load.topic,
            partitions=self._load.partitions,
            history=self._history,
            config={**IDEMPOTENT, **self._load.librdkafka},
            value_bytes=VALUE_BYTES,
            records_per_s=self._load.records_per_s,
        )
        producer.start()
        while not is_over():
            time.sleep(0.05)
        if is_last():
            producer.finish()
        else:
            producer.drop()

    def _produce_kafka_python(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaTimeoutError

        producer = KafkaProducer(
            bootstrap_servers=self._load.bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            linger_ms=2,
            max_block_ms=5000,
            request_timeout_ms=10_000,
            delivery_timeout_ms=120_000,
            retry_backoff_ms=50,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            **self._load.kafka_python,
        )
        number, began = 0, time.monotonic()
        try:
            while not is_over():
                if number >= (time.monotonic() - began) * self._load.records_per_s:
                    time.sleep(0.01)
                    continue
                sent, partition = Sent(name, number), number % self._load.partitions
                number += 1
                self._history.record_sent(sent, partition)
                try:
                    future = producer.send(
                        self._load.topic, value_of(sent, VALUE_BYTES), partition=partition
                    )
                except Exception as error:
                    self._history.record_unclear(sent, repr(error))
                    continue
                future.add_callback(functools.partial(self._acknowledged, sent))
                future.add_errback(functools.partial(self._refused, sent))
        finally:
            with contextlib.suppress(KafkaTimeoutError):
                producer.close(timeout=60 if is_last() else 0)
            if not producer._closed:  # it flushes first, and does not close where that fails
                producer._sender.force_close()
                producer._closed = True

    def _acknowledged(self, sent: Sent, metadata: Any) -> None:
        self._history.record_acknowledged(sent, metadata.partition, metadata.offset)

    def _refused(self, sent: Sent, error: BaseException) -> None:
        self._history.record_unclear(sent, repr(error))

    def _read_assigned(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        """Read all partitions from somewhere; now and then begin anew further back."""
        consumer = new_consumer(
            self._load.bootstrap, {"fetch.wait.max.ms": 50, **self._load.librdkafka}
        )
        self._read_all(name, consumer, self._position, is_over)

    def _read_in_zone(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        """Read all partitions from nodes of one zone, of which some lie in objects at first."""
        zone: dict[str, str | int | float] = {
            "client.rack": self._rng.choice(self._load.zones),
            "fetch.wait.max.ms": 50,
            "statistics.interval.ms": 1000,
        }
        consumer = new_consumer(
            self._load.bootstrap, {**zone, **self._load.librdkafka}, self._note_sources
        )
        if self._load.reads_ahead:
            self._history.readers_ahead.add(name)
        position = {p: max(0, offset - BACK_MAX) for p, offset in self._position.items()}
        self._read_all(name, consumer, position, is_over)

    def _note_sources(self, statistics: str) -> None:
        """Note from where librdkafka reads partitions now."""
        for topic in json.loads(statistics)["topics"].values():
            for partition in topic["partitions"].values():
                leader, source = partition["leader"], partition["broker"]
                if partition["fetch_state"] == "active" and min(leader, source) >= 0:
                    self.in_zone[source != leader] += 1

    def _read_all(
        self, name: str, consumer: Consumer, position: dict[int, int], is_over: IsOver
    ) -> None:
        try:
            self._assign(name, consumer, position)
            while not is_over():
                self._poll(name, consumer, position)
                if self._rng.random() < 1 / 64:
                    back = self._rng.randrange(BACK_MAX)
                    position |= {p: max(0, offset - back) for p, offset in position.items()}
                    self._assign(name, consumer, position)
        finally:
            consumer.close()

    def _assign(self, name: str, consumer: Consumer, position: dict[int, int]) -> None:
        consumer.assign([TopicPartition(self._load.topic, p, o) for p, o in position.items()])
        self._history.record_assign(name, position)

    def _poll(self, name: str, consumer: Consumer, position: dict[int, int]) -> None:
        begun = self._history.clock()
        records = self._records(name, consumer.consume(500, 0.05))
        self._history.record_poll(name, records, begun)
        position.update((partition, offset + 1) for partition, offset, _ in records)

    def _records(self, name: str, messages: list[Message]) -> list[tuple[int, int, bytes]]:
        for message in messages:
            error = message.error()
            if error is not None and error.code() in _OUT_OF_RANGE:
                self._history.contradictions.append(f"out of range: {name}: {error}")
        return [place_of(message) for message in messages if message.error() is None]

    def _read_kafka_python(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        from kafka import KafkaConsumer
        from kafka import TopicPartition as Place

        consumer = KafkaConsumer(
            bootstrap_servers=self._load.bootstrap.split(","),
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # that it never comes to this is checked: no way back
            fetch_max_wait_ms=50,
            request_timeout_ms=10_000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            retry_backoff_ms=50,
            **self._load.kafka_python,
        )
        try:
            position = {p: max(0, o - BACK_MAX) for p, o in self._position.items()}
            places = {Place(self._load.topic, p): offset for p, offset in position.items()}
            consumer.assign(list(places))
            for place, offset in places.items():
                consumer.seek(place, offset)
            self._history.record_assign(name, position)
            while not is_over():
                begun = self._history.clock()
                found = consumer.poll(timeout_ms=100, max_records=500)
                records = [
                    (place.partition, record.offset, record.value)
                    for place, batch in found.items()
                    for record in batch
                ]
                self._history.record_poll(name, records, begun)
        finally:
            consumer.close()

    def _read_as_member(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        """Read as a member of a classic group."""
        config = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
        self._read_in_group(name, GROUP, is_over, config)

    def _read_as_consumer(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        """Read as a member of a consumer group."""
        self._read_in_group(name, CONSUMER_GROUP, is_over, {"group.protocol": "consumer"})

    def _read_in_group(
        self, name: str, group: str, is_over: IsOver, protocol: Mapping[str, str | int]
    ) -> None:
        """Read as a member of a group, and commit what was read."""
        config: dict[str, str | int | float] = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            **protocol,
            **self._load.librdkafka,
        }
        consumer = new_consumer(self._load.bootstrap, config)
        read: list[tuple[int, int, bytes]] = []
        position: dict[int, int | None] = {}
        """Of the partitions that the member has; None where its group decides."""

        def note_read() -> dict[int, int]:
            noted = self._note_read(name, read)
            position.update(noted)
            return noted

        def assigned(_: Consumer, places: list[TopicPartition]) -> None:
            note_read()
            position.update(dict.fromkeys(place.partition for place in places))
            self._history.record_assign(name, position)

        def revoked(_: Consumer, places: list[TopicPartition]) -> None:
            """A classic member gives all back, one of a consumer group what others are to have."""
            note_read()
            for place in places:
                position.pop(place.partition, None)
            self._history.record_assign(name, position)

        consumer.subscribe([self._load.topic], on_assign=assigned, on_revoke=revoked)
        try:
            while not is_over():
                deadline = time.monotonic() + 0.2
                while len(read) < 500 and time.monotonic() < deadline:
                    message = consumer.poll(0.05)  # one by one: a rebalance lies between two
                    if message is not None:
                        read += self._records(name, [message])
                self._commit(consumer, group, note_read())
        finally:
            consumer.close()

    def _note_read(self, name: str, read: list[tuple[int, int, bytes]]) -> dict[int, int]:
        position = {partition: offset + 1 for partition, offset, _ in read}
        self._history.record_poll(name, read)
        read.clear()
        return position

    def _commit(self, consumer: Consumer, group: str, position: dict[int, int]) -> None:
        """Commit, and ask now and then what is committed. A refusal is nothing: others will."""
        if not position:
            return
        topic, begun = self._load.topic, self._history.clock()
        places = [TopicPartition(topic, p, o) for p, o in position.items()]
        try:
            for place in consumer.commit(offsets=places, asynchronous=False):
                if place.error is None:
                    self._history.record_commit(group, place.partition, place.offset, begun)
            if self._rng.random() < 0.2:
                begun = self._history.clock()
                for place in consumer.committed(places, timeout=5):
                    if place.error is None:
                        offset = max(place.offset, 0)
                        self._history.record_commit_asked(group, place.partition, offset, begun)
        except KafkaException:
            return

    def _ask_ends(self, name: str, is_over: IsOver, is_last: IsOver) -> None:
        """Ask leaders where partitions end."""
        consumer = new_consumer(self._load.bootstrap, self._load.librdkafka)
        try:
            while not is_over():
                partition = self._rng.randrange(self._load.partitions)
                begun = self._history.clock()
                try:
                    place = TopicPartition(self._load.topic, partition)
                    _, end = consumer.get_watermark_offsets(place, timeout=3)
                except KafkaException:
                    continue
                self._history.record_end(partition, end, begun)
                time.sleep(0.05)
        finally:
            consumer.close()
