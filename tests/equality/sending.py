"""A workload done to a server by real clients, so that every server has the same offsets.

Each write is flushed before the next, and the markers of a transaction are waited for, as brokers
write them after they have answered.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import ServerProcess
from tests.equality.steps import PARTITIONS, STAMPED, Finish, Restart, Sent, Step, Write

DEADLINE_S = 60.0
Delivered = Callable[[object, Message], None] | None


class UnequalTraffic(Exception):
    """The server did not take what it was given, or at other offsets than any server would."""


class Traffic:
    """The producers of a workload, connected to one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        """The offset after the last of each partition, markers included."""
        self._server = server
        self._producers: dict[str, Producer] = {}
        self._touched: dict[str, dict[tuple[str, int], int]] = {}
        """Of each open transaction: where it begins in its partitions."""
        # Ends are asked for with markers, and beyond transactions that are open.
        self._watcher = Consumer(
            {**self._client, "group.id": "equality", "isolation.level": "read_uncommitted"}
        )

    @property
    def _client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self._server.bootstrap, "log_level": 0}

    @property
    def decided(self) -> dict[tuple[str, int], int]:
        """How far each partition is, for who reads committed records: to the first transaction
        that is open. Spark's Kafka source takes an end beyond for lost data.
        """
        opened = [firsts.items() for firsts in self._touched.values()]
        return {
            place: min([end, *(first for firsts in opened for at, first in firsts if at == place)])
            for place, end in self.ends.items()
        }

    def create_topics(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Create the topics of `PARTITIONS`, with these configs more."""
        always = {STAMPED: {"message.timestamp.type": "LogAppendTime"}}
        new = [
            NewTopic(
                name,
                num_partitions=count,
                replication_factor=1,
                config={**always.get(name, {}), **configs.get(name, {})},
            )
            for name, count in PARTITIONS.items()
        ]
        admin = AdminClient(self._client)
        for made in admin.create_topics(new).values():
            made.result(DEADLINE_S)
        self.ends = {(name, n): 0 for name, count in PARTITIONS.items() for n in range(count)}

    def perform(self, steps: Iterable[Step]) -> None:
        """Do the steps. Raises UnequalTraffic."""
        for step in steps:
            match step:
                case Write():
                    self._write(step)
                case Finish():
                    self._finish(step)
                case Restart():
                    self._server.stop()
                    self._server.start()

    def _producer(self, step: Write) -> Producer:
        if step.producer not in self._producers:
            settings = {**self._client, "compression.type": step.codec, "linger.ms": 20}
            if step.is_transactional:
                settings |= {
                    "transactional.id": step.producer,
                    "transaction.timeout.ms": 900_000,
                }
            else:
                settings |= {"enable.idempotence": "true"}
            made = self._producers[step.producer] = Producer(settings)
            if step.is_transactional:
                made.init_transactions(DEADLINE_S)
        return self._producers[step.producer]

    def _write(self, step: Write) -> None:
        producer = self._producer(step)
        place = (step.topic, step.partition)
        if step.is_transactional:
            if step.producer not in self._touched:
                producer.begin_transaction()
            self._touched.setdefault(step.producer, {}).setdefault(place, self.ends[place])
        start = self.ends[place]
        end = self.ends[place] = start + len(step.records)
        offsets: list[object] = []

        def delivered(error: object, message: Message) -> None:
            offsets.append(error or message.offset())

        # In one order, or not at all: where the last one is, the others are before it.
        for record in step.records[:-1]:
            self._produce(producer, step, record, None)
        self._produce(producer, step, step.records[-1], delivered)
        producer.flush(DEADLINE_S)
        if offsets != [end - 1]:
            raise UnequalTraffic(f"{self._server.name} {place}: {offsets}, not up to {end}")

    @staticmethod
    def _produce(producer: Producer, step: Write, record: Sent, delivered: Delivered) -> None:
        while True:
            try:
                producer.produce(
                    step.topic,
                    partition=step.partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp=step.since_ms + record.timestamp,
                    on_delivery=delivered,
                )
            except BufferError:  # as much waits as the client holds
                producer.poll(DEADLINE_S)
            else:
                return

    def _finish(self, step: Finish) -> None:
        producer = self._producers[step.producer]
        end = producer.commit_transaction if step.commits else producer.abort_transaction
        end(DEADLINE_S)
        for place in self._touched.pop(step.producer):
            self.ends[place] += 1  # the marker
            self._wait_end(place)

    def _wait_end(self, place: tuple[str, int]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        end = -1
        while end != self.ends[place]:
            if time.monotonic() > deadline:
                raise UnequalTraffic(f"{self._server.name} {place} ends at {end}")
            _, end = self._watcher.get_watermark_offsets(TopicPartition(*place), DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watcher.close()
