"""The APIs of leadership, in every version: a node alone answers them too."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from tests.support.api_client import TOPIC, ApiClient, api_client, versions

LOG_DIRS, ELECT, REASSIGN, LIST_MOVES, DESCRIBE_CLUSTER = 35, 43, 45, 46, 60
NONE = ErrorCode.none


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("version", versions(LOG_DIRS))
async def test_one_directory_holds_what_is_led_here(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        asked = [
            entity(module, "DescribableLogDirTopic", topic=TOPIC, partitions=(1, 9)),
            entity(module, "DescribableLogDirTopic", topic="nowhere", partitions=(0,)),
        ]
        return entity(module, "DescribeLogDirsRequest", topics=asked)

    [directory] = (await client.ask(LOG_DIRS, version, build)).results
    assert directory.error_code is NONE
    assert directory.log_dir == client.node.store.uri
    [topic] = directory.topics
    assert [partition.partition_index for partition in topic.partitions] == [1]

    def build_all(module: ModuleType) -> Any:
        return entity(module, "DescribeLogDirsRequest", topics=None)

    [directory] = (await client.ask(LOG_DIRS, version, build_all)).results
    assert {topic.name for topic in directory.topics} == {TOPIC, "__consumer_offsets"}


@pytest.mark.parametrize("version", versions(ELECT))
async def test_an_election_is_needed_or_not(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        asked = [entity(module, "TopicPartitions", topic=TOPIC, partitions=(0, 7))]
        return entity(
            module, "ElectLeadersRequest", election_type=0, topic_partitions=asked, timeout=1000
        )

    answer = await client.ask(ELECT, version, build)
    [topic] = answer.replica_election_results
    assert {result.partition_id: result.error_code for result in topic.partition_result} == {
        0: ErrorCode.election_not_needed,
        7: ErrorCode.unknown_topic_or_partition,
    }

    def build_all(module: ModuleType) -> Any:
        return entity(
            module, "ElectLeadersRequest", election_type=0, topic_partitions=None, timeout=1000
        )

    assert (await client.ask(ELECT, version, build_all)).replica_election_results == ()


@pytest.mark.parametrize("version", versions(ELECT)[1:])
async def test_an_unknown_kind_of_election_is_refused(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        return entity(
            module, "ElectLeadersRequest", election_type=7, topic_partitions=None, timeout=1000
        )

    assert (await client.ask(ELECT, version, build)).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(REASSIGN))
async def test_a_partition_may_be_given_to_who_has_it(client: ApiClient, version: int) -> None:
    own = client.node.node_id

    def build(module: ModuleType) -> Any:
        places: tuple[tuple[int, tuple[int, ...] | None], ...] = (
            (0, (own,)),
            (1, (99,)),
            (2, None),
        )
        partitions = [
            entity(module, "ReassignablePartition", partition_index=index, replicas=replicas)
            for index, replicas in places
        ]
        topic = entity(module, "ReassignableTopic", name=TOPIC, partitions=partitions)
        return entity(module, "AlterPartitionReassignmentsRequest", topics=[topic])

    answer = await client.ask(REASSIGN, version, build)
    assert answer.error_code is NONE
    [topic] = answer.responses
    assert [partition.error_code for partition in topic.partitions] == [
        NONE,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.unknown_topic_or_partition,
    ]

    def build_list(module: ModuleType) -> Any:
        return entity(module, "ListPartitionReassignmentsRequest", topics=None)

    listed = await client.ask(LIST_MOVES, 0, build_list)
    assert (listed.error_code, listed.topics) == (NONE, ())


@pytest.mark.parametrize("version", versions(DESCRIBE_CLUSTER))
async def test_a_node_alone_is_the_cluster(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        return entity(
            module,
            "DescribeClusterRequest",
            include_cluster_authorized_operations=False,
            include_fenced_brokers=False,
        )

    answer = await client.ask(DESCRIBE_CLUSTER, version, build)
    assert answer.controller_id == client.node.node_id
    assert [broker.broker_id for broker in answer.brokers] == [client.node.node_id]
