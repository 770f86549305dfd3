"""Consumer groups of KIP-848 by a client that is not ours: over a killed coordinator, and while the
group changes its protocol under them.
"""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import QUICK_RECONNECT, create_topic
from tests.support.waiting import wait_until

PARTITIONS = 6
DEADLINE_S = 90.0
FLAGS = (
    *HASTY,
    *("--group.consumer.heartbeat.interval.ms", "500"),
    *("--group.consumer.session.timeout.ms", "30000"),
    *("--group.consumer.assignment.interval.ms", "0"),
)


class Member:
    """A consumer in a thread, which reads and commits until it is closed."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: str) -> None:
        self.values: list[int] = []
        self.partitions: list[int] = []
        self.changes = 0
        """How often its partitions changed."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                **QUICK_RECONNECT,
                **config,
            }
        )
        self._stop = threading.Event()
        self._consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += 1
        given = [one.partition for one in partitions]
        self.partitions = sorted({*self.partitions, *given})

    def _taken(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += 1
        taken = {one.partition for one in partitions}
        self.partitions = [one for one in self.partitions if one not in taken]

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(int(message.value() or b""))
        self._consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def by_broker(bootstrap: str, group: str, topic: str, **config: str) -> Member:
    return Member(bootstrap, group, topic, **{"group.protocol": "consumer", **config})


def by_clients(bootstrap: str, group: str, topic: str) -> Member:
    # With "cooperative-sticky" it keeps data of its own in assignments: no upgrade, as in Kafka.
    strategy = {"partition.assignment.strategy": "range"}
    return Member(bootstrap, group, topic, **{"heartbeat.interval.ms": "200", **strategy})


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **QUICK_RECONNECT})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def are_shared(*members: Member) -> bool:
    owned = [one for member in members for one in member.partitions]
    return sorted(owned) == list(range(PARTITIONS)) and all(m.partitions for m in members)


def have_read(numbers: range, *members: Member) -> bool:
    return set(numbers) <= {value for member in members for value in member.values}


def type_of(bootstrap: str, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK_RECONNECT})
    listed = admin.list_consumer_groups(request_timeout=30).result().valid
    return next((str(one.type.name) for one in listed if one.group_id == group), "")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), FLAGS)
    process.start()
    yield process
    process.kill()


def test_members_continue_after_their_coordinator_was_killed(broker: BrokerProcess) -> None:
    topic = "killed"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    members = [
        by_broker(broker.bootstrap, "killed", topic),
        by_broker(broker.bootstrap, "killed", topic, **{"group.instance.id": "static"}),
    ]
    assert wait_until(lambda: are_shared(*members), DEADLINE_S)
    produce(broker.bootstrap, topic, range(60))
    assert wait_until(lambda: have_read(range(60), *members), DEADLINE_S)
    changes = [member.changes for member in members]
    broker.kill()
    broker.start()
    produce(broker.bootstrap, topic, range(60, 120))
    assert wait_until(lambda: have_read(range(120), *members), DEADLINE_S)
    assert [member.changes for member in members] == changes, "no member had to join again"
    third = by_broker(broker.bootstrap, "killed", topic)
    assert wait_until(lambda: are_shared(*members, third), DEADLINE_S), "and the group goes on"
    for member in (*members, third):
        member.close()


def test_a_static_member_has_its_partitions_again(broker: BrokerProcess) -> None:
    topic = "static"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    instance = {"group.instance.id": "one"}
    first = by_broker(broker.bootstrap, "static", topic, **instance)
    other = by_broker(broker.bootstrap, "static", topic, **{"group.instance.id": "two"})
    assert wait_until(lambda: are_shared(first, other), DEADLINE_S)
    had, changes = first.partitions, other.changes
    first.close()
    again = by_broker(broker.bootstrap, "static", topic, **instance)
    assert wait_until(lambda: are_shared(again, other), DEADLINE_S)
    assert (again.partitions, other.changes) == (had, changes)
    again.close()
    other.close()


def test_a_group_is_upgraded_and_downgraded_under_its_members(broker: BrokerProcess) -> None:
    topic = group = "moved"
    bootstrap = broker.bootstrap
    create_topic(bootstrap, topic, PARTITIONS)
    old = [by_clients(bootstrap, group, topic) for _ in range(2)]
    assert wait_until(lambda: are_shared(*old), DEADLINE_S)
    produce(bootstrap, topic, range(60))
    assert wait_until(lambda: have_read(range(60), *old), DEADLINE_S)
    assert type_of(bootstrap, group) == "CLASSIC"
    new = [by_broker(bootstrap, group, topic)]
    assert wait_until(lambda: are_shared(*old, *new), DEADLINE_S)
    assert type_of(bootstrap, group) == "CONSUMER"
    produce(bootstrap, topic, range(60, 120))
    assert wait_until(lambda: have_read(range(120), *old, *new), DEADLINE_S)
    for member in old:
        member.close()
    new.append(by_broker(bootstrap, group, topic))
    assert wait_until(lambda: are_shared(*new), DEADLINE_S)
    back = [by_clients(bootstrap, group, topic) for _ in range(2)]
    assert wait_until(lambda: are_shared(*new, *back), DEADLINE_S)
    for member in new:
        member.close()
    assert wait_until(lambda: are_shared(*back), DEADLINE_S)
    assert type_of(bootstrap, group) == "CLASSIC"
    produce(bootstrap, topic, range(120, 180))
    everyone = (*old, *new, *back)
    assert wait_until(lambda: have_read(range(180), *everyone), DEADLINE_S)
    for member in back:
        member.close()


def test_topics_are_found_by_a_regular_expression(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "orders-a", PARTITIONS)
    member = by_broker(broker.bootstrap, "regex", "^orders-.*")
    assert wait_until(lambda: member.partitions == list(range(PARTITIONS)), DEADLINE_S)
    produce(broker.bootstrap, "orders-a", range(10))
    assert wait_until(lambda: have_read(range(10), member), DEADLINE_S)
    create_topic(broker.bootstrap, "orders-b", PARTITIONS)
    produce(broker.bootstrap, "orders-b", range(10, 20))
    assert wait_until(lambda: have_read(range(20), member), DEADLINE_S)
    member.close()
