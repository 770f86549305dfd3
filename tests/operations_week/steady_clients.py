"""Clients that live as long as a run and keep every error that their library shows them."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from tests.checker.history import History
from tests.support.secure_cluster import User
from tests.support.traffic import IDEMPOTENT, QUICK_RECONNECT, ProducerThread

EXPECTED = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
    }
)
"""librdkafka reports these while it connects again, as after the restart of a broker."""


class Errors:
    """Errors of all clients: those that are a client's own retries are counted, others kept."""

    def __init__(self) -> None:
        self.expected: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def note(self, client: str, error: KafkaError) -> None:
        if error.code() in EXPECTED and not error.fatal():
            self.expected[error.name()] += 1
        else:
            self.unexpected.append(f"{client}: {error.name()}: {error.str()}")


def producer(
    name: str,
    bootstrap: str,
    topic: str,
    partitions: int,
    history: History,
    user: User,
    records_per_s: float,
    errors: Errors,
) -> ProducerThread:
    """Return an idempotent producer, not started."""
    config: dict[str, Any] = {
        **IDEMPOTENT,
        **user.librdkafka,
        "message.timeout.ms": 300_000,
        "error_cb": lambda error: errors.note(name, error),
    }
    return ProducerThread(
        name,
        bootstrap,
        topic,
        partitions=partitions,
        history=history,
        config=config,
        records_per_s=records_per_s,
        queued_max=100_000,
    )


class GroupReader:
    """A member of a group that commits what it has read, after each poll."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, config: Mapping[str, Any], errors: Errors
    ) -> None:
        self.name = name
        self.seen: set[tuple[int, int]] = set()
        """Partition and offset of each record that it was given."""
        self._errors = errors
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "error_cb": lambda error: errors.note(name, error),
                **QUICK_RECONNECT,
                **config,
            }
        )
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} does not stop"

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                found = [self._place(message) for message in self._consumer.consume(500, 0.2)]
                places = [place for place in found if place is not None]
                if places:
                    self.seen.update(places)
                    self._commit()
        except KafkaException as error:
            self._errors.note(self.name, error.args[0])
        finally:
            self._consumer.close()

    def _place(self, message: Message) -> tuple[int, int] | None:
        error = message.error()
        if error is not None:
            self._errors.note(self.name, error)
            return None
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        return partition, offset

    def _commit(self) -> None:
        """Commit the positions. A member whose partitions have just moved commits none of them."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.code() not in _MOVED and not failure.retriable():
                self._errors.note(self.name, failure)


_MOVED = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._NO_OFFSET,
    }
)
