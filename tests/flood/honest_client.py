"""An honest client: it produces a record now and then, reads it back, and notes both times."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

VALUE_BYTES = 500
LIMIT_S = 30.0


@dataclass(slots=True)
class Latencies:
    """Seconds, by operation."""

    produce: list[float] = field(default_factory=list)
    """From the call until the record is acknowledged."""
    fetch: list[float] = field(default_factory=list)
    """From the call of the producer until the consumer has the record."""
    connect: list[float] = field(default_factory=list)
    """Until a new client has authenticated and got metadata."""
    failed: int = 0


class HonestClient:
    """A producer and a consumer that stay connected, and one client after another that is new. Each
    works in a thread of its own.
    """

    def __init__(
        self,
        config: Mapping[str, str | int | float | bool],
        topic: str,
        partitions: Sequence[int],
        *,
        pause_s: float,
    ) -> None:
        self._config: dict[str, str | int | float | bool] = dict(config)
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._latencies = Latencies()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=run.__name__, daemon=True)
            for run in (self._produce, self._consume, self._connect)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """End all threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def taken(self) -> Latencies:
        """Return what was measured since the last call."""
        found, self._latencies = self._latencies, Latencies()
        return found

    def _produce(self) -> None:
        producer = Producer({**self._config, "linger.ms": 0, "acks": "all"})
        number = 0
        while not self._stop.is_set():
            began = time.monotonic()
            value = f"{began!r} ".encode().ljust(VALUE_BYTES, b".")

            def acknowledged(error: object, _: Message, began: float = began) -> None:
                if error is None:
                    self._latencies.produce.append(time.monotonic() - began)
                else:
                    self._latencies.failed += 1

            partition = self._partitions[number % len(self._partitions)]
            producer.produce(self._topic, value, partition=partition, on_delivery=acknowledged)
            number += 1
            while (left := began + self._pause_s - time.monotonic()) > 0:
                producer.poll(left)
        producer.flush(LIMIT_S)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                **self._config,
                "group.id": "honest",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 500,
            }
        )
        consumer.assign([TopicPartition(self._topic, one) for one in self._partitions])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                sent = float((message.value() or b"").split()[0])
                self._latencies.fetch.append(time.monotonic() - sent)
        consumer.close()

    def _connect(self) -> None:
        while not self._stop.wait(10 * self._pause_s):
            began = time.monotonic()
            try:
                AdminClient(self._config).list_topics(self._topic, timeout=LIMIT_S)
            except Exception:
                self._latencies.failed += 1
            else:
                self._latencies.connect.append(time.monotonic() - began)


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed; 0 of none."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
