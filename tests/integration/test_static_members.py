"""Static members by a client that is not ours (KIP-345), and groups as administrators see them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support.broker_process import server_under_test
from tests.support.traffic import create_topic
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
TOPIC = "shared"
EVERY = [0, 1, 2, 3]
"""The topic's partitions."""


class Member:
    """A consumer that notes how often it was given partitions."""

    def __init__(self, bootstrap: str, group: str, instance_id: str | None) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
        if instance_id is not None:
            config["group.instance.id"] = instance_id
        self.assignments: list[list[int]] = []
        self.fatal: KafkaError | None = None
        self._consumer = Consumer(config)
        self._consumer.subscribe([TOPIC], on_assign=self._assigned)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments.append(sorted(one.partition for one in partitions))

    def poll(self) -> None:
        message = self._consumer.poll(0.02)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._FATAL:
            self.fatal = error

    @property
    def partitions(self) -> list[int]:
        return self.assignments[-1] if self.assignments else []

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_under_test(tmp_path_factory.mktemp("static")) as server:
        create_topic(server.bootstrap, TOPIC, len(EVERY))
        yield server.bootstrap


def until(condition: Callable[[], bool], *members: Member) -> bool:
    def polled() -> bool:
        for member in members:
            member.poll()
        return condition()

    return wait_until(polled, DEADLINE_S)


def shared(*members: Member) -> bool:
    """Return true if these members have all partitions among them, each some."""
    given = [one for member in members for one in member.partitions]
    return all(member.partitions for member in members) and sorted(given) == EVERY


def test_a_static_member_comes_back_to_its_partitions_and_nobody_rebalances(broker: str) -> None:
    first, second = Member(broker, "static", "a"), Member(broker, "static", "b")
    assert until(lambda: shared(first, second), first, second)
    before = first.partitions, list(second.assignments)
    first.close()
    again = Member(broker, "static", "a")
    assert until(lambda: bool(again.partitions), again, second)
    assert (again.partitions, second.assignments) == before
    again.close()
    second.close()


def test_of_two_with_one_instance_id_the_first_is_fenced(broker: str) -> None:
    first = Member(broker, "doubled", "same")
    assert until(lambda: bool(first.partitions), first)
    second = Member(broker, "doubled", "same")
    assert until(lambda: first.fatal is not None and bool(second.partitions), first, second)
    assert "fenced" in str(first.fatal)
    assert second.fatal is None
    assert second.partitions == EVERY
    second.close()
    first.close()


def test_groups_as_administrators_see_them(broker: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    member = Member(broker, "watched", None)
    assert until(lambda: bool(member.partitions), member)
    stable = {ConsumerGroupState.STABLE}
    listed = admin.list_consumer_groups(states=stable).result(DEADLINE_S)
    assert "watched" in {group.group_id for group in listed.valid}
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(DEADLINE_S)
    assert "watched" not in {group.group_id for group in listed.valid}
    asked = admin.describe_consumer_groups(["watched"], include_authorized_operations=True)
    described = asked["watched"].result(DEADLINE_S)
    assert described.state is ConsumerGroupState.STABLE
    assert "DELETE" in {one.name for one in described.authorized_operations}
    given = described.members[0].assignment.topic_partitions
    assert sorted(one.partition for one in given) == EVERY
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups(["watched"])["watched"].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    wanted = ConsumerGroupTopicPartitions("watched", [TopicPartition(TOPIC, 2, 41)])
    admin.alter_consumer_group_offsets([wanted])["watched"].result(DEADLINE_S)
    every = ConsumerGroupTopicPartitions("watched")
    found = admin.list_consumer_group_offsets([every])["watched"].result(DEADLINE_S)
    assert [(one.partition, one.offset) for one in found.topic_partitions] == [(2, 41)]
    admin.delete_consumer_groups(["watched"])["watched"].result(DEADLINE_S)
    with pytest.raises(KafkaException) as missing:
        admin.delete_consumer_groups(["watched"])["watched"].result(DEADLINE_S)
    assert missing.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
