"""What may be asked of topics, and which error says no."""

import time
from typing import Any

import pytest
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import (
    TopicRequest,
    are_too_many,
    check_collision,
    check_more_partitions,
    check_new_topic,
)
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.storage.metadata.state import MetadataImage, NodeState, TopicState, topic_maps

SETTINGS = Settings(num_partitions=6)
NODE = NodeState(node_id=0, epoch=0, incarnation="i", host="h", port=1, rack=None)
STATE = MetadataImage(
    nodes=Map({0: NODE}),
    **topic_maps([TopicState(name="a.b", topic_id="0" * 31 + "1", partitions=(1, 2))]),
)


def ask(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "name": "new",
        "partitions": -1,
        "replicas": -1,
        "assignments": (),
        "configs": {},
    }
    return check_new_topic(
        TopicRequest(**(fields | changes)), STATE, SETTINGS, TablePlaces(SETTINGS)
    )


def test_defaults_and_configs_are_filled_in() -> None:
    new = ask(configs={"retention.ms": "5"})
    assert (new.partitions, new.configs) == (6, {"retention.ms": "5"})
    assert ask(partitions=3, replicas=3).partitions == 3
    assert ask(assignments=[(1, (0,)), (0, (0,))]).partitions == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "a.b"}, ErrorCode.topic_already_exists),
        ({"name": "a_b"}, ErrorCode.invalid_topic_exception),
        ({"name": ""}, ErrorCode.invalid_topic_exception),
        ({"name": ".."}, ErrorCode.invalid_topic_exception),
        ({"name": "x" * 250}, ErrorCode.invalid_topic_exception),
        ({"name": "sp ace"}, ErrorCode.invalid_topic_exception),
        ({"partitions": 0}, ErrorCode.invalid_partitions),
        ({"partitions": -2}, ErrorCode.invalid_partitions),
        ({"partitions": 10_001}, ErrorCode.policy_violation),
        ({"replicas": 0}, ErrorCode.invalid_replication_factor),
        ({"replicas": 4}, ErrorCode.invalid_replication_factor),
        ({"assignments": [(0, (0,))], "partitions": 1}, ErrorCode.invalid_request),
        ({"assignments": [(1, (0,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (0,)), (0, (0,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (7,))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, (0, 0))]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [(0, ())]}, ErrorCode.invalid_replica_assignment),
        ({"configs": {"no.such": "1"}}, ErrorCode.invalid_config),
        ({"configs": {"retention.ms": "x"}}, ErrorCode.invalid_config),
    ],
)
def test_new_topics_are_refused_with_kafkas_codes(changes: Any, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        ask(**changes)
    assert refused.value.code is code


def test_of_things_that_are_wrong_the_name_comes_first_and_numbers_come_last() -> None:
    wrong: dict[str, Any] = {"name": "a.b", "configs": {"retention.ms": "x"}}
    wrong |= {"replicas": 0, "partitions": 0}
    told = []
    for name, right in (("name", "new"), ("configs", {}), ("replicas", 1), ("partitions", 1)):
        with pytest.raises(KafkaError) as refused:
            ask(**wrong)
        told.append(refused.value.code)
        wrong[name] = right
    assert told == [
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_config,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_partitions,
    ]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("nowhere", 3, None, ErrorCode.unknown_topic_or_partition),
        ("a.b", 2, None, ErrorCode.invalid_partitions),
        ("a.b", 1, None, ErrorCode.invalid_partitions),
        ("a.b", 20_000, None, ErrorCode.policy_violation),
        ("a.b", 4, [(0,)], ErrorCode.invalid_replica_assignment),
        ("a.b", 3, [(5,)], ErrorCode.invalid_replica_assignment),
    ],
)
def test_more_partitions_are_refused_with_kafkas_codes(
    name: str, count: int, assignments: Any, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        check_more_partitions(name, count, assignments, STATE)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("counts", "is_refused"),
    [
        ([10_000], False),
        ([5_000, 5_000], False),
        ([5_000, 5_001], True),
        ([1] * 10_001, True),
        ([10_001, 10_000, -5, 0], False),  # the first alone is refused by itself
    ],
)
def test_partitions_of_one_request_share_the_limit(counts: list[int], is_refused: bool) -> None:
    assert are_too_many(counts) is is_refused


def test_names_that_collide_are_found_without_a_look_at_each_topic() -> None:
    made = [TopicState(name=f"x{n}.y_{n}", topic_id=f"{n:032x}") for n in range(50_000)]
    state = MetadataImage(**topic_maps(made))
    names = [f"x{n}_y.{n}" for n in range(2_000)]
    began = time.thread_time()
    for name in names:
        with pytest.raises(KafkaError, match=r"collides with existing topic: x\d+\.y_\d+"):
            check_collision(name, state)
    check_collision("x1.y_1", state)  # itself
    check_collision("plain", state)
    assert time.thread_time() - began < 1  # a look at each is 100 million looks


def test_more_partitions_are_taken() -> None:
    check_more_partitions("a.b", 3, [(0,)], STATE)
    check_more_partitions("a.b", 10, None, STATE)
