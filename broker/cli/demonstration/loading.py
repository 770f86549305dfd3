"""The demo's producer: confluent-kafka, idempotent, zstd, every record acknowledged."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lakehead.storage.errors import LakeheadError

_REPORT_EVERY = 2_000
_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The load of a topic: acknowledged records, bytes of keys and values, seconds."""

    topic: str
    records: int
    size: int
    seconds: float


def load(
    address: str,
    topic: str,
    messages: Iterable[tuple[bytes, bytes]],
    on_progress: Callable[[int], None],
) -> Loaded:
    """Produce every message and wait for its acknowledgement.

    `on_progress` gets the number of acknowledged records now and then. Raises LakeheadError for a
    record that was not acknowledged.
    """
    from confluent_kafka import Producer

    from lakehead.broker.cli.kafka_admin import silent_logger

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 200_000,
        },
        logger=silent_logger(),
    )
    tally = _Tally()
    began = time.perf_counter()
    sent = size = 0
    for key, value in messages:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=tally.settle)
                break
            except BufferError:
                producer.poll(0.05)
        sent += 1
        size += len(key) + len(value)
        if sent % _REPORT_EVERY == 0:
            producer.poll(0)
            on_progress(tally.acknowledged)
    while producer.flush(0.1) and time.perf_counter() - began < _FLUSH_S:
        on_progress(tally.acknowledged)
    on_progress(tally.acknowledged)
    if tally.error is not None or tally.acknowledged != sent:
        reason = tally.error or "no response in time"
        raise LakeheadError(f"{sent - tally.acknowledged} records of {topic} failed: {reason}")
    seconds = time.perf_counter() - began
    return Loaded(topic=topic, records=sent, size=size, seconds=seconds)


class _Tally:
    """Counts delivery reports; keeps the first error."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.error: Any = None

    def settle(self, error: Any, _message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        elif self.error is None:
            self.error = error
