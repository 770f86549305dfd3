"""Wrong items in requests about topics get Kafka's codes, and their neighbours what they ask."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.protocol.messages import entity
from lakehead.storage.metadata.state import INTERNAL_TOPICS
from tests.support.api_client import TOPIC, ApiClient, api_client

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
UNKNOWN, ASSIGNMENT = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_replica_assignment
CONFIG, NAME = ErrorCode.invalid_config, ErrorCode.invalid_topic_exception
NOBODY = UUID(int=5)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path_factory.mktemp("requests")) as asking:
        yield asking


async def create(client: ApiClient, *asked: tuple[str, dict[str, Any]]) -> list[tuple[str, Any]]:
    def build(module: ModuleType) -> Any:
        topics = [
            entity(
                module,
                "CreatableTopic",
                name=name,
                num_partitions=fields.get("partitions", -1),
                replication_factor=fields.get("replicas", -1),
                assignments=[
                    entity(
                        module,
                        "CreatableReplicaAssignment",
                        partition_index=index,
                        broker_ids=brokers,
                    )
                    for index, brokers in fields.get("assignments", ())
                ],
                configs=[
                    entity(module, "CreatableTopicConfig", name=config, value=value)
                    for config, value in fields.get("configs", ())
                ],
            )
            for name, fields in asked
        ]
        return entity(
            module, "CreateTopicsRequest", topics=topics, timeout=5000, validate_only=False
        )

    answer = await client.ask(19, 7, build)
    return [(topic.name, topic.error_code) for topic in answer.topics]


async def grow(client: ApiClient, *asked: tuple[str, int, Any]) -> list[tuple[str, Any]]:
    def build(module: ModuleType) -> Any:
        topics = [
            entity(
                module,
                "CreatePartitionsTopic",
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [
                    entity(module, "CreatePartitionsAssignment", broker_ids=brokers)
                    for brokers in assignments
                ],
            )
            for name, count, assignments in asked
        ]
        return entity(
            module, "CreatePartitionsRequest", topics=topics, timeout=5000, validate_only=False
        )

    answer = await client.ask(37, 3, build)
    return [(topic.name, topic.error_code) for topic in answer.results]


async def delete(client: ApiClient, *asked: tuple[str | None, UUID | None]) -> list[Any]:
    def build(module: ModuleType) -> Any:
        states = [
            entity(module, "DeleteTopicState", name=name, topic_id=topic_id)
            for name, topic_id in asked
        ]
        return entity(module, "DeleteTopicsRequest", topics=states, timeout=5000)

    answer = await client.ask(20, 6, build)
    return [(topic.name, topic.error_code) for topic in answer.responses]


async def test_each_topic_is_made_or_refused_on_its_own(client: ApiClient) -> None:
    wrong: dict[str, tuple[dict[str, Any], ErrorCode]] = {
        "bad name": ({}, NAME),
        "": ({}, NAME),
        "__cluster_metadata": ({}, INVALID),
        "none": ({"partitions": 0}, ErrorCode.invalid_partitions),
        "less": ({"partitions": -2}, ErrorCode.invalid_partitions),
        "no-replicas": ({"replicas": 0}, ErrorCode.invalid_replication_factor),
        "too-many": ({"replicas": 4}, ErrorCode.invalid_replication_factor),
        "unknown-config": ({"configs": [("nope", "1")]}, CONFIG),
        "null-config": ({"configs": [("retention.ms", None)]}, CONFIG),
        "bad-config": ({"configs": [("retention.ms", "x")]}, CONFIG),
        "both": ({"assignments": [(0, (0,))], "partitions": 1}, INVALID),
        "gap": ({"assignments": [(1, (0,))]}, ASSIGNMENT),
        "twice": ({"assignments": [(0, (0,)), (0, (0,))]}, ASSIGNMENT),
        "no-brokers": ({"assignments": [(0, ())]}, ASSIGNMENT),
        "same-broker": ({"assignments": [(0, (0, 0))]}, ASSIGNMENT),
        "no-such-broker": ({"assignments": [(0, (77,))]}, ASSIGNMENT),
    }
    right: list[tuple[str, dict[str, Any]]] = [
        (f"right-{replicas}", {"replicas": replicas}) for replicas in (-1, 1, 2, 3)
    ]
    asked = [(name, fields) for name, (fields, _) in wrong.items()]
    answered = await create(client, right[0], *asked, *right[1:])
    expected = {name: code for name, (_, code) in wrong.items()}
    assert dict(answered) == expected | {name: NONE for name, _ in right}
    assert {name for name, _ in right} == {n for n in client.node.state.topics if "right" in n}
    assert not set(wrong) & set(client.node.state.topics)


async def test_what_is_named_twice_is_refused_once(client: ApiClient) -> None:
    answered = await create(client, ("double", {}), ("single", {}), ("double", {"partitions": 2}))
    assert sorted(answered) == [("double", INVALID), ("single", NONE)]
    grown = await grow(client, ("single", 2, None), ("single", 3, None), (TOPIC, 3, None))
    assert sorted(grown) == [(TOPIC, NONE), ("single", INVALID)]
    gone = await delete(client, ("single", None), ("single", None), (None, NOBODY), (None, NOBODY))
    assert gone == [("single", INVALID), (None, INVALID)]
    assert "single" in client.node.state.topics


async def test_each_topic_is_grown_or_refused_on_its_own(client: ApiClient) -> None:
    await create(client, *((f"g{number}", {"partitions": 2}) for number in range(6)))
    answered = await grow(
        client,
        ("g0", 3, None),
        ("nowhere", 3, None),
        ("g1", 2, None),
        ("g2", -1, None),
        ("g3", 4, [(0,)]),
        ("g4", 3, [(77,)]),
        ("g5", 3, [(0,)]),
    )
    assert [code for _, code in answered] == [
        NONE,
        UNKNOWN,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_partitions,
        ASSIGNMENT,
        ASSIGNMENT,
        NONE,
    ]
    sizes = [len(client.node.state.topics[f"g{number}"].partitions) for number in range(6)]
    assert sizes == [3, 2, 2, 2, 2, 3]


async def test_each_topic_is_deleted_or_refused_on_its_own(client: ApiClient) -> None:
    await create(client, ("d0", {}), ("d1", {}))
    topic = client.node.topics.find("d1")
    assert topic is not None
    answered = await delete(
        client,
        ("d0", None),
        ("nowhere", None),
        (None, NOBODY),
        (None, None),
        (TOPIC, NOBODY),
        (None, topic.uuid),
    )
    unknown_id = ErrorCode.unknown_topic_id
    assert answered == [
        ("d0", NONE),
        ("nowhere", UNKNOWN),
        (None, unknown_id),
        (None, INVALID),
        (TOPIC, INVALID),
        ("d1", NONE),
    ]
    assert TOPIC in client.node.state.topics


async def list_offsets(
    client: ApiClient, *asked: tuple[int, int], version: int = 11
) -> Sequence[tuple[int, ErrorCode, int]]:
    def build(module: ModuleType) -> Any:
        partitions = [
            entity(module, "ListOffsetsPartition", partition_index=index, timestamp=timestamp)
            for index, timestamp in asked
        ]
        topic = entity(module, "ListOffsetsTopic", name=TOPIC, partitions=partitions)
        return entity(
            module,
            "ListOffsetsRequest",
            replica_id=-1,
            isolation_level=0,
            topics=[topic],
            timeout=1000,
        )

    answer = await client.ask(2, version, build)
    return [
        (one.partition_index, one.error_code, one.offset) for one in answer.topics[0].partitions
    ]


async def test_offsets_of_unknown_kinds_and_of_one_partition_twice(client: ApiClient) -> None:
    refused = ErrorCode.unsupported_version
    for timestamp in (-7, -100, -(2**63)):
        assert await list_offsets(client, (0, timestamp), (1, -1)) == [
            (0, refused, -1),
            (1, NONE, 0),
        ]
    for version, timestamp in ((6, -3), (7, -4), (8, -5), (10, -6)):
        assert await list_offsets(client, (0, timestamp), version=version) == [(0, refused, -1)]
        later = await list_offsets(client, (0, timestamp), version=version + 1)
        assert later[0][1] is NONE
    twice = await list_offsets(client, (0, -1), (0, -2), (1, -1), (99, -1))
    assert twice == [(0, INVALID, -1), (0, INVALID, -1), (1, NONE, 0), (99, UNKNOWN, -1)]


async def test_a_page_begins_where_the_one_before_ended(client: ApiClient) -> None:
    await create(client, ("p0", {"partitions": 3}), ("p1", {"partitions": 3}))

    async def page(
        names: Sequence[str], limit: int, cursor: tuple[str, int] | None = None
    ) -> tuple[list[tuple[str, ErrorCode, list[int]]], tuple[str, int] | None]:
        def build(module: ModuleType) -> Any:
            place = None
            if cursor is not None:
                place = entity(module, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
            topics = [entity(module, "TopicRequest", name=name) for name in names]
            return entity(
                module,
                "DescribeTopicPartitionsRequest",
                topics=topics,
                response_partition_limit=limit,
                cursor=place,
            )

        answer = await client.ask(75, 0, build)
        topics = [
            (topic.name, topic.error_code, [one.partition_index for one in topic.partitions])
            for topic in answer.topics
        ]
        rest = answer.next_cursor
        return topics, None if rest is None else (rest.topic_name, rest.partition_index)

    both = ("p1", "p0")
    assert await page(both, 2) == ([("p0", NONE, [0, 1])], ("p0", 2))
    assert await page(both, 2, ("p0", 2)) == ([("p0", NONE, [2]), ("p1", NONE, [0])], ("p1", 1))
    assert await page(both, 9, ("p1", 1)) == ([("p1", NONE, [1, 2])], None)
    assert await page(("p0", "nowhere", "a b"), 9) == (
        [("a b", NAME, []), ("nowhere", UNKNOWN, []), ("p0", NONE, [0, 1, 2])],
        None,
    )
    for cursor in (("p0", -1), ("elsewhere", 0)):
        assert await page(both, 2, cursor) == ([("p0", INVALID, []), ("p1", INVALID, [])], None)
    # All topics, after one that was deleted meanwhile.
    everything, _ = await page((), 2000, ("ozone", 7))
    names = [name for name, _, _ in everything]
    assert names == sorted(name for name in client.node.state.topics if name > "ozone")
    assert ("p0", NONE, [0, 1, 2]) in everything


@pytest.mark.parametrize("version", range(8, 14))
async def test_what_may_be_done_is_told_to_who_asks(client: ApiClient, version: int) -> None:
    async def ask(*, is_asked: bool) -> Any:
        def build(module: ModuleType) -> Any:
            topic = entity(module, "MetadataRequestTopic", name=TOPIC, topic_id=None)
            return entity(
                module,
                "MetadataRequest",
                topics=[topic],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=is_asked,
                include_topic_authorized_operations=is_asked,
            )

        return await client.ask(3, version, build)

    for is_asked, operations in ((False, -(2**31)), (True, 0b1101_1111_1000)):
        answer = await ask(is_asked=is_asked)
        assert answer.topics[0].topic_authorized_operations == operations
        if version <= 10:
            assert (answer.cluster_authorized_operations > 0) is is_asked


async def test_a_topic_that_would_collide_is_not_made_by_asking_for_it(client: ApiClient) -> None:
    await create(client, ("co.lli.de", {}))

    def build(module: ModuleType) -> Any:
        names = ("co.lli_de", "co_lli_de", "on.its.own")
        topics = [entity(module, "MetadataRequestTopic", name=n, topic_id=None) for n in names]
        return entity(
            module,
            "MetadataRequest",
            topics=topics,
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )

    answer = await client.ask(3, 12, build)
    assert [topic.error_code for topic in answer.topics] == [NAME, NAME, NONE]
    assert "co.lli_de" not in client.node.state.topics


async def test_of_topics_that_collide_and_are_asked_for_at_once_one_is_made(
    client: ApiClient,
) -> None:
    def asked(name: str) -> Callable[[ModuleType], Any]:
        return lambda module: entity(
            module,
            "MetadataRequest",
            topics=[entity(module, "MetadataRequestTopic", name=name, topic_id=None)],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )

    names = ("a.race.of", "a_race.of", "a.race_of", "a_race_of")
    answers = await asyncio.gather(*(client.ask(3, 12, asked(name)) for name in names))
    codes = [answer.topics[0].error_code for answer in answers]
    assert sorted(codes) == sorted([NONE, NAME, NAME, NAME])
    made = [name for name in names if name in client.node.state.topics]
    assert made == [name for name, code in zip(names, codes, strict=True) if code == NONE]


async def test_a_topic_is_described_once_and_by_its_id_rather_than_its_name(
    client: ApiClient,
) -> None:
    async def ask(version: int, *asked: tuple[str | None, UUID | None]) -> list[Any]:
        def build(module: ModuleType) -> Any:
            topics = [
                entity(module, "MetadataRequestTopic", name=name, topic_id=topic_id)
                for name, topic_id in asked
            ]
            return entity(
                module,
                "MetadataRequest",
                topics=topics,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=True,
            )

        answer = await client.ask(3, version, build)
        return [(topic.name, topic.error_code) for topic in answer.topics]

    for version in (4, 9, 13):
        asked = [(TOPIC, None), ("nowhere", None), (TOPIC, None)]
        assert await ask(version, *asked) == [(TOPIC, NONE), ("nowhere", UNKNOWN)]
    unknown_id = ErrorCode.unknown_topic_id
    by_id = client.uuid()
    assert await ask(13, (TOPIC, NOBODY), (None, NOBODY)) == [(None, unknown_id)] * 2
    assert await ask(13, (None, by_id), (None, by_id)) == [(TOPIC, NONE)]
    assert await ask(13, (None, None)) == [(None, unknown_id)]


async def test_topics_of_one_request_share_entries_of_the_metadata_log(client: ApiClient) -> None:
    def delete(module: ModuleType) -> Any:
        topics = [
            entity(module, "DeleteTopicState", name=name, topic_id=None) for name, _ in wanted
        ]
        return entity(module, "DeleteTopicsRequest", topics=topics, timeout=5000)

    wanted: list[tuple[str, dict[str, Any]]] = [
        (f"of-many-{number}", {"partitions": 2}) for number in range(150)
    ]
    wanted.insert(70, ("not/a name", {}))
    before = client.node.engine.metadata.stats.entries_put
    created = await create(client, *wanted)
    assert created == [(name, NAME if name == "not/a name" else NONE) for name, _ in wanted]
    assert all(
        client.node.topics.by_name[name].partitions for name, _ in created if "/" not in name
    )
    deleted = await client.ask(20, 6, delete)
    assert [(one.name, one.error_code) for one in deleted.responses] == [
        (name, UNKNOWN if name == "not/a name" else NONE) for name, _ in wanted
    ]
    assert client.node.engine.metadata.stats.entries_put - before < 30


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_internal_topics_get_no_more_partitions(client: ApiClient, name: str) -> None:
    """Each group is in the partition that its id hashes to: at once all would be elsewhere, and
    without their offsets.
    """
    groups = client.node.groups
    await groups.partition_for("team")
    if name not in client.node.topics.by_name:
        assert await create(client, (name, {"partitions": 5})) == [(name, NONE)]
    await groups.loaded("team")
    await groups.commit("team", {("t", 0): CommittedOffset(offset=7)})
    count = len(client.node.topics.by_name[name].partitions)
    codes = await grow(client, (name, count + 7, None))
    assert (await groups.offsets("team"))["t", 0].offset == 7
    assert codes == [(name, INVALID)]
    assert len(client.node.topics.by_name[name].partitions) == count
