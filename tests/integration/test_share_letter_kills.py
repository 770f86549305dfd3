"""Dead letters by librdkafka's share consumer, over a broker that is killed between two states: the
first kill comes when the state of the records is stored and nothing is written yet, the second when
the letters are written and that is not stored. Each rejected record has its letter in the end, and
one that was accepted has none.
"""

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.storage.failpoints import KILLED
from tests.integration.test_share_consumers import DEADLINE_S, FLAGS, produce
from tests.support.broker_process import BrokerProcess
from tests.support.share_group_configs import EARLIEST, set_group_configs
from tests.support.traffic import QUICK_RECONNECT, create_topic
from tests.support.waiting import wait_until

TOPIC, GROUP, LETTERS = "source", "rejecting", "dlq.rejecting"
COUNT = 30


def set_up(bootstrap: str) -> None:
    create_topic(bootstrap, TOPIC, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"errors.deadletterqueue.group.enable": "true"}
    topic = NewTopic(LETTERS, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([topic])[LETTERS].result(DEADLINE_S)
    set_group_configs(
        bootstrap,
        GROUP,
        {
            **EARLIEST,
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
        },
    )


class Rejecting:
    """A share consumer that rejects records of odd numbers, and accepts the others."""

    def __init__(self, bootstrap: str) -> None:
        self.numbers: set[int] = set()
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                **QUICK_RECONNECT,
            }
        )
        self._consumer.subscribe([TOPIC])

    def step(self) -> None:
        """Take what there is; acknowledgements of a broker that dies are lost."""
        try:
            for message in self._consumer.poll(0.2) or ():
                if message.error() is None:
                    number = int(message.value() or b"")
                    self.numbers.add(number)
                    kind = AcknowledgeType.REJECT if number % 2 else AcknowledgeType.ACCEPT
                    self._consumer.acknowledge(message, kind)
        except KafkaException:
            pass

    def close(self) -> None:
        self._consumer.close()


def letters(bootstrap: str) -> list[Message]:
    """Every dead letter there is."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        place = TopicPartition(LETTERS, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
        consumer.assign([place])
        found: list[Message] = []
        while len(found) < end:
            found += [one for one in consumer.consume(end, 1.0) if one.error() is None]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("failpoint", ["dead_letters_begun", "dead_letters_written"])
def test_no_dead_letter_is_lost_with_the_broker(tmp_path: Path, failpoint: str) -> None:
    broker = BrokerProcess(tmp_path, FLAGS)
    broker.start()
    try:
        set_up(broker.bootstrap)
        broker.kill()
        broker.start(failpoint=failpoint)
        produce(broker.bootstrap, TOPIC, range(COUNT))
        consumer = Rejecting(broker.bootstrap)

        def is_killed() -> bool:
            consumer.step()
            return broker.exit_status is not None

        assert wait_until(is_killed, DEADLINE_S)
        assert broker.exit_status == KILLED
        broker.start()
        rejected = {str(number).encode() for number in range(1, COUNT, 2)}

        def has_all() -> bool:
            consumer.step()
            return {one.value() for one in letters(broker.bootstrap)} >= rejected

        assert wait_until(has_all, DEADLINE_S)
        assert consumer.numbers == set(range(COUNT))
        consumer.close()
        found = letters(broker.bootstrap)
        assert {one.value() for one in found} == rejected
        for one in found:
            headers = dict(one.headers() or ())
            assert headers["__dlq.errors.offset"] == one.value()
            assert headers["__dlq.errors.message"] == b"Offset rejected by client."
        assert max(Counter(one.value() for one in found).values()) <= 2
    finally:
        broker.kill()
