"""Each version of each topic and config API answers a right request with what it asks for."""

from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.metadata.records import BrokerConfig
from lakehead.storage.metadata.state import INTERNAL_TOPICS
from tests.support.api_client import TOPIC, ApiClient, api_client, versions

NONE = ErrorCode.none
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path_factory.mktemp("versions")) as asking:
        yield asking


@pytest.mark.parametrize("version", versions(19))
async def test_create_grow_and_delete_topics(client: ApiClient, version: int) -> None:
    name = f"made-{version}"

    def creating(module: ModuleType, *, only_check: bool) -> Any:
        config = entity(module, "CreatableTopicConfig", name="retention.ms", value="1000")
        topic = entity(
            module,
            "CreatableTopic",
            name=name,
            num_partitions=2,
            replication_factor=3,
            assignments=(),
            configs=(config,),
        )
        return entity(
            module,
            "CreateTopicsRequest",
            topics=(topic,),
            timeout=1000,
            validate_only=only_check,
        )

    checked = await client.ask(19, version, lambda m: creating(m, only_check=True))
    assert checked.topics[0].error_code is NONE
    assert client.node.topics.find(name) is None
    made = await client.ask(19, version, lambda m: creating(m, only_check=False))
    assert made.topics[0].error_code is NONE
    if version >= 5:
        assert {c.name: c.value for c in made.topics[0].configs}["retention.ms"] == "1000"
    again = await client.ask(19, version, lambda m: creating(m, only_check=False))
    assert again.topics[0].error_code is ErrorCode.topic_already_exists

    def growing(module: ModuleType) -> Any:
        topic = entity(module, "CreatePartitionsTopic", name=name, count=4, assignments=None)
        return entity(
            module, "CreatePartitionsRequest", topics=(topic,), timeout=1000, validate_only=False
        )

    grown = await client.ask(37, min(version - 2, 3), growing)
    assert grown.results[0].error_code is NONE
    topic = client.node.topics.find(name)
    assert topic is not None
    assert [partition is not None for partition in topic.partitions] == [True] * 4

    def deleting(module: ModuleType) -> Any:
        states: tuple[Any, ...] = ()
        if hasattr(module, "DeleteTopicState"):
            states = (entity(module, "DeleteTopicState", name=None, topic_id=topic.uuid),)
        return entity(
            module, "DeleteTopicsRequest", topic_names=(name,), topics=states, timeout=1000
        )

    gone = await client.ask(20, min(version - 1, 6), deleting)
    assert gone.responses[0].error_code is NONE
    assert client.node.topics.find(name) is None


@pytest.mark.parametrize("version", versions(32))
async def test_describe_configs(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        resources = [
            entity(
                module,
                "DescribeConfigsResource",
                resource_type=kind,
                resource_name=name,
                configuration_keys=None,
            )
            for kind, name in ((2, TOPIC), (4, "0"), (4, "9" * 5000), (2, "nowhere"), (99, "x"))
        ]
        return entity(
            module,
            "DescribeConfigsRequest",
            resources=resources,
            include_synonyms=True,
            include_documentation=True,
        )

    answer = await client.ask(32, version, build)
    assert [result.error_code for result in answer.results] == [
        NONE,
        NONE,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
    ]
    assert len(answer.results[0].configs) > 30


@pytest.mark.parametrize(("key", "version"), [(33, 0), (33, 1), (33, 2), (44, 0), (44, 1)])
async def test_alter_configs(client: ApiClient, key: int, version: int) -> None:
    def build(module: ModuleType) -> Any:
        config = entity(
            module, "AlterableConfig", name="cleanup.policy", value="compact", config_operation=2
        )
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=2,
            resource_name=TOPIC,
            configs=(config,),
        )
        name = "AlterConfigsRequest" if key == 33 else "IncrementalAlterConfigsRequest"
        return entity(module, name, resources=(resource,), validate_only=False)

    answer = await client.ask(key, version, build)
    assert answer.responses[0].error_code is NONE
    policy = client.node.state.topics[TOPIC].configs["cleanup.policy"]
    assert policy in {"compact", "delete,compact"}


@pytest.mark.parametrize("version", versions(60))
async def test_describe_cluster(client: ApiClient, version: int) -> None:
    answer = await client.ask(
        60,
        version,
        lambda m: entity(
            m,
            "DescribeClusterRequest",
            include_cluster_authorized_operations=True,
            include_fenced_brokers=True,
        ),
    )
    assert [broker.broker_id for broker in answer.brokers] == [0]
    assert answer.cluster_id == client.node.state.cluster_id


async def test_describe_topic_partitions_page_by_page(client: ApiClient) -> None:
    seen = []
    cursor = None
    for _ in range(20):

        def build(module: ModuleType, cursor: Any = cursor) -> Any:
            start = None
            if cursor is not None:
                start = entity(
                    module,
                    "Cursor",
                    topic_name=cursor.topic_name,
                    partition_index=cursor.partition_index,
                )
            return entity(
                module,
                "DescribeTopicPartitionsRequest",
                topics=(),
                response_partition_limit=1,
                cursor=start,
            )

        page = await client.ask(75, 0, build)
        seen += [(t.name, p.partition_index) for t in page.topics for p in t.partitions]
        cursor = page.next_cursor
        if cursor is None:
            break
    state = client.node.state
    expected = [
        (n, i) for n in sorted(state.topics) for i in range(len(state.topics[n].partitions))
    ]
    assert seen == expected


@pytest.mark.parametrize("version", versions(21))
async def test_delete_records(client: ApiClient, version: int) -> None:
    def build(module: ModuleType) -> Any:
        partitions = [
            entity(module, "DeleteRecordsPartition", partition_index=index, offset=offset)
            for index, offset in ((0, -1), (0, 5), (7, 0))
        ]
        topic = entity(module, "DeleteRecordsTopic", name="emptied", partitions=partitions)
        return entity(module, "DeleteRecordsRequest", topics=(topic,), timeout=1000)

    await client.node.replication_control.ensure("emptied")
    answer = await client.ask(21, version, build)
    assert [p.error_code for p in answer.topics[0].partitions] == [
        NONE,
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_or_partition,
    ]


@pytest.mark.parametrize(
    ("policy", "code"),
    [("", NONE), ("compact,delete", NONE), ("compact", ErrorCode.policy_violation)],
)
async def test_records_are_deleted_unless_the_topic_is_only_compacted(
    client: ApiClient, policy: str, code: ErrorCode
) -> None:
    name = f"kept-{len(policy)}"
    await client.node.replication_control.create(name, 1, {"cleanup.policy": policy})
    answer = await client.ask(21, 2, emptying(name))
    assert answer.topics[0].partitions[0].error_code == code


def emptying(name: str) -> Callable[[ModuleType], Any]:
    def build(module: ModuleType) -> Any:
        partition = entity(module, "DeleteRecordsPartition", partition_index=0, offset=-1)
        topic = entity(module, "DeleteRecordsTopic", name=name, partitions=(partition,))
        return entity(module, "DeleteRecordsRequest", topics=(topic,), timeout=1000)

    return build


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_records_of_internal_topics_are_not_deleted(client: ApiClient, name: str) -> None:
    """Those of __share_group_state would be: it is not compacted."""
    await client.node.replication_control.ensure(name)
    answer = await client.ask(21, 2, emptying(name))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.invalid_topic_exception


async def test_the_brokers_cleanup_policy_counts_for_a_topic_without_one(
    client: ApiClient,
) -> None:
    metadata = client.node.engine.metadata
    await client.node.replication_control.create("by-default", 1)

    async def set_default(policy: str | None) -> None:
        configs = {"log.cleanup.policy": policy}
        await metadata.commit([BrokerConfig(node_id=ALL_BROKERS, configs=configs)])

    await set_default("compact")
    try:
        answer = await client.ask(21, 2, emptying("by-default"))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.policy_violation
    finally:
        await set_default(None)


@pytest.mark.parametrize("version", versions(74))
async def test_list_config_resources(client: ApiClient, version: int) -> None:
    answer = await client.ask(74, version, lambda m: entity(m, "ListConfigResourcesRequest"))
    names = {resource.resource_name for resource in answer.config_resources}
    assert (TOPIC in names) == (version >= 1)
