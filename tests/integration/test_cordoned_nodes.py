"""A cordoned node keeps its partitions and gets no new ones (KIP-1066), as in Kafka 4.3."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.api.config_changes import BROKER
from lakehead.broker.cluster.cordons import CORDONED_LOG_DIRS, is_cordoned
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from tests.support.api_client import ApiClient
from tests.support.node_cluster import NodeCluster, node_cluster

SET, DELETE, APPEND = 0, 1, 2
INVALID = ErrorCode.invalid_request


async def alter(client: ApiClient, node_id: str, value: str | None, how: int = SET) -> ErrorCode:
    def build(module: ModuleType) -> Any:
        change = entity(
            module,
            "AlterableConfig",
            name=CORDONED_LOG_DIRS,
            config_operation=DELETE if value is None else how,
            value=value,
        )
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=BROKER,
            resource_name=node_id,
            configs=[change],
        )
        return entity(
            module, "IncrementalAlterConfigsRequest", resources=[resource], validate_only=False
        )

    code: ErrorCode = (await client.ask(44, 1, build)).responses[0].error_code
    return code


async def cordon(cluster: NodeCluster, nodes: Sequence[int]) -> None:
    for node_id in nodes:
        assert await alter(cluster.client(1), str(node_id), "*") is ErrorCode.none
    await cluster.until(
        lambda: all(
            is_cordoned(one.state, node_id) for one in cluster.nodes.values() for node_id in nodes
        )
    )


async def test_new_partitions_go_to_other_nodes() -> None:
    async with node_cluster() as cluster:
        control = cluster.nodes[1].replication_control
        await control.create("before", 6)
        await cluster.until(lambda: set(cluster.leaders("before")) == {1, 2, 3})
        led = cluster.leaders("before")
        await cordon(cluster, [2])
        await control.create("after", 6)
        await control.add_partitions("before", 12)
        await cluster.until(lambda: -1 not in cluster.leaders("after") + cluster.leaders("before"))
        assert set(cluster.leaders("after")) == {1, 3}
        assert cluster.leaders("before")[:6] == led
        assert set(cluster.leaders("before")[6:]) == {1, 3}

        await control.create("placed", 1, replicas=[(2,)])
        await cluster.until(lambda: cluster.leaders("placed") == [2])

        assert await alter(cluster.client(1), "2", None) is ErrorCode.none
        await cluster.until(lambda: not is_cordoned(cluster.nodes[1].state, 2))
        await control.create("later", 6)
        await cluster.until(lambda: set(cluster.leaders("later")) == {1, 2, 3})


async def test_a_topic_is_refused_when_every_node_is_cordoned() -> None:
    async with node_cluster(2) as cluster:
        await cordon(cluster, [1, 2])
        with pytest.raises(KafkaError) as caught:
            await cluster.nodes[1].replication_control.create("t", 1)
        assert caught.value.code is ErrorCode.invalid_replication_factor
        assert "t" not in cluster.nodes[1].topics.by_name


async def test_what_a_leaving_node_led_goes_to_a_cordoned_one_only_if_there_is_no_other() -> None:
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 9)
        await cluster.until(lambda: set(cluster.leaders("t")) == {1, 2, 3})
        led = cluster.leaders("t")
        await cordon(cluster, [2])
        await cluster.stop(3)
        await cluster.until(lambda: {-1, 3}.isdisjoint(cluster.leaders("t")))
        assert cluster.leaders("t") == [2 if leader == 2 else 1 for leader in led]
        await cluster.stop(1)
        await cluster.until(lambda: set(cluster.leaders("t")) == {2})


async def test_balance_gives_a_cordoned_node_nothing_and_takes_nothing() -> None:
    flags: dict[str, object] = {
        "auto_leader_rebalance_enable": True,
        "leader_imbalance_check_interval_seconds": 1,
    }
    async with node_cluster(2, **flags) as cluster:
        await cluster.nodes[1].replication_control.create("t", 12, replicas=[(1,)] * 12)
        await cordon(cluster, [2])
        await cluster.start(3, **flags)
        await cluster.until(lambda: cluster.leaders("t").count(3) >= 5)
        assert 2 not in cluster.leaders("t")


@pytest.mark.parametrize(
    ("node_id", "value", "how", "code"),
    [
        ("1", "*", SET, ErrorCode.none),
        ("1", "*,x", SET, INVALID),
        ("1", "x", SET, INVALID),
        ("1", "x", APPEND, INVALID),
        ("1", "", SET, ErrorCode.none),
        ("", "*", SET, INVALID),
        ("7", "*", SET, INVALID),
    ],
)
async def test_only_the_directory_of_one_broker_is_cordoned(
    node_id: str, value: str, how: int, code: ErrorCode
) -> None:
    async with node_cluster(1) as cluster:
        assert await alter(cluster.client(1), node_id, value, how) is code
        is_expected = code is ErrorCode.none and value == "*"
        assert is_cordoned(cluster.nodes[1].state, 1) == is_expected


async def test_the_directory_is_named_and_shown() -> None:
    async with node_cluster(1) as cluster:
        client = cluster.client(1)

        async def directory() -> Any:
            def build(module: ModuleType) -> Any:
                return entity(module, "DescribeLogDirsRequest", topics=None)

            return (await client.ask(35, 5, build)).results[0]

        found = await directory()
        assert not found.is_cordoned
        assert await alter(client, "1", found.log_dir) is ErrorCode.none
        assert (await directory()).is_cordoned
        assert is_cordoned(cluster.nodes[1].state, 1)
