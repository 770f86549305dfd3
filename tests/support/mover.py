"""A client that moves records from one topic to another in transactions, and is hard to stop: what
fails is aborted and done again, from the offsets that were committed with the last transaction.
"""

import random
import threading

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.traffic import QUICK_RECONNECT

_CALL_S = 10.0
_HANG_S = 1.5 * _CALL_S
"""A call that has not returned by then never will."""
_BATCH = 20
_ABORTS = 0.15
"""Share of transactions that are aborted for no reason."""


class Mover(threading.Thread):
    """Moves every record of `source`, partition by partition, to the same one of `target`."""

    def __init__(
        self, name: str, bootstrap: str, source: str, target: str, partitions: int, seed: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.moved = 0
        """Records of transactions that were committed, as far as this client knows."""
        self.ended: list[str] = []
        """What ended its producers and consumers."""
        self._server = bootstrap
        self._source, self._target, self._partitions = source, target, partitions
        self._rng = random.Random(seed)
        self._stop_asked = threading.Event()

    def finish(self, within_s: float) -> bool:
        """Ask it to end; whether it did in time."""
        self._stop_asked.set()
        self.join(within_s)
        return not self.is_alive()

    def run(self) -> None:
        """Live one client's life after the other."""
        while not self._stop_asked.is_set():
            try:
                self._live()
            except KafkaException as error:
                self.ended.append(str(error))
                self._stop_asked.wait(0.05)

    def _live(self) -> None:
        # A client that gives up its brokers when none is there asks the old one for ever (2.11).
        plain: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._server,
            "metadata.recovery.strategy": "none",
            **QUICK_RECONNECT,
        }
        producer = Producer({**plain, "transactional.id": self.name, "linger.ms": 1})
        producer.init_transactions(3 * _CALL_S)
        reading: dict[str, str | int | float | bool] = {
            "group.id": self.name,
            "enable.auto.commit": False,
        }
        consumer = Consumer({**plain, **reading, "auto.offset.reset": "earliest"})
        try:
            self._rewind(consumer)
            while not self._stop_asked.is_set():
                self._move(producer, consumer)
        finally:
            consumer.close()

    def _rewind(self, consumer: Consumer) -> None:
        places = [TopicPartition(self._source, index) for index in range(self._partitions)]
        committed = consumer.committed(places, timeout=_CALL_S)
        for place in committed:
            if place.error is not None:
                raise KafkaException(place.error)
            place.offset = max(place.offset, 0)
        consumer.assign(committed)

    def _move(self, producer: Producer, consumer: Consumer) -> None:
        messages = [m for m in consumer.consume(_BATCH, 0.1) if m.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        try:
            for message in messages:
                index = message.partition()
                assert index is not None
                producer.produce(self._target, message.value(), partition=index)
            _send_offsets(producer, consumer)
            if self._rng.random() < _ABORTS:
                self._abort(producer, consumer)
                return
            self._commit(producer)
            self.moved += len(messages)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.ended.append(str(error))
            self._abort(producer, consumer)

    def _commit(self, producer: Producer) -> None:
        """Commit; an answer that did not come is asked for again."""
        while True:
            try:
                producer.commit_transaction(_CALL_S)
            except KafkaException as error:
                if not error.args[0].retriable() or self._stop_asked.is_set():
                    raise
            else:
                return

    def _abort(self, producer: Producer, consumer: Consumer) -> None:
        producer.abort_transaction(_CALL_S)
        self._rewind(consumer)


def _send_offsets(producer: Producer, consumer: Consumer) -> None:
    """Add the consumer's positions to the transaction; a call that hangs is left behind.

    Since librdkafka 2.10 it goes on waiting, whatever its timeout, for a group coordinator that
    was not in the cluster's metadata for a moment (its issues 5511 and 5456, open in 2.16).
    """
    positions = [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]
    group = consumer.consumer_group_metadata()
    failures: list[KafkaException] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction(positions, group, _CALL_S)
        except KafkaException as error:
            failures.append(error)

    call = threading.Thread(target=send, name="offsets", daemon=True)
    call.start()
    call.join(_HANG_S)
    if call.is_alive():
        # Raised as no error of the transaction: only another producer gets further.
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client hangs"))
    if failures:
        raise failures[0]
