"""Of two things that are wrong with a request, the first in Kafka's order is told."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.node import start_node
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.settings import Settings
from tests.differential.brokers import Broker, Request
from tests.support.node_client import close_clients


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(
        data=str(tmp_path),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
    )
    node = await start_node(settings, rng=random.Random(3))
    try:
        proof = NodeProof(secret=node.state.node_secret, to_node=node.node_id)
        broker = await Broker.connect("Lakehead", node.advertised_port, proof)
        await broker.wait_coordinated()
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        await broker.ask(Request(key=19, version=7, tree={"topics": topics, "timeout": 9000}))
        yield broker
    finally:
        await close_clients()
        await node.close()


async def ask(broker: Broker, key: int, version: int, tree: dict[str, Any]) -> Any:
    return await broker.ask(Request(key=key, version=version, tree=tree))


@pytest.mark.parametrize(
    ("name", "timestamp", "code"),
    [
        ("nowhere", -6, "unsupported_version"),
        ("nowhere", -7, "unsupported_version"),
        ("nowhere", -1, "unknown_topic_or_partition"),
        ("t", -6, "unsupported_version"),
    ],
)
async def test_a_time_that_cannot_be_asked_for_comes_before_the_partition(
    broker: Broker, name: str, timestamp: int, code: str
) -> None:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": name, "partitions": [part]}]
    answer = await ask(broker, 2, 10, {"replica_id": -1, "topics": topics})
    assert answer["topics"][0]["partitions"][0]["error_code"] == code


@pytest.mark.parametrize(
    ("name", "config", "operation", "code"),
    [
        ("nowhere", "retention.ms", 2, "invalid_config"),
        ("", "retention.ms", 2, "invalid_config"),
        ("", "retention.ms", 0, "invalid_request"),
        ("..", "no.such", 0, "invalid_topic_exception"),
        ("nowhere", "no.such", 0, "invalid_config"),
        ("nowhere", "preallocate", 0, "invalid_config"),
        ("nowhere", "file.delete.delay.ms", 0, "unknown_topic_or_partition"),
    ],
)
async def test_that_there_is_no_such_topic_comes_after_its_configs(
    broker: Broker, name: str, config: str, operation: int, code: str
) -> None:
    configs = [{"name": config, "config_operation": operation, "value": "7"}]
    resources = [{"resource_type": 2, "resource_name": name, "configs": configs}]
    answer = await ask(broker, 44, 1, {"resources": resources, "validate_only": False})
    assert answer["responses"][0]["error_code"] == code


async def test_a_value_that_is_missing_comes_before_values_that_are_wrong(broker: Broker) -> None:
    configs = [
        {"name": "retention.ms", "config_operation": 2, "value": "7"},
        {"name": "max.message.bytes", "config_operation": 0, "value": None},
    ]
    resources = [{"resource_type": 2, "resource_name": "t", "configs": configs}]
    answer = await ask(broker, 44, 1, {"resources": resources, "validate_only": False})
    assert answer["responses"][0]["error_code"] == "invalid_request"


async def test_nothing_is_not_appended_to_a_list(broker: Broker) -> None:
    configs = [{"name": "cleanup.policy", "config_operation": 2, "value": ""}]
    resources = [{"resource_type": 2, "resource_name": "t", "configs": configs}]
    answer = await ask(broker, 44, 1, {"resources": resources, "validate_only": False})
    assert answer["responses"][0]["error_code"] == "invalid_config"


async def commit_in_transaction(broker: Broker, producer_id: int, metadata: list[str]) -> list[str]:
    parts = [
        {
            "partition_index": index,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": one,
        }
        for index, one in enumerate(metadata)
    ]
    tree = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": producer_id,
        "producer_epoch": 0,
        "generation_id": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": parts}],
    }
    answer = await ask(broker, 28, 5, tree)
    return [part["error_code"] for part in answer["topics"][0]["partitions"]]


async def test_metadata_that_is_too_long_comes_after_the_transaction(broker: Broker) -> None:
    long = "x" * 5000
    wrong = "invalid_producer_id_mapping"
    assert await commit_in_transaction(broker, 77, [long]) == [wrong]
    asked = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1}
    await broker.ask(Request(key=22, version=5, tree={**asked, "producer_epoch": -1}, about="x"))
    known = broker.producers["x"][0]
    assert await commit_in_transaction(broker, known, [long]) == ["offset_metadata_too_large"]
    told = await ask(broker, 65, 0, {"transactional_ids": ["x"]})
    assert told["transaction_states"][0]["transaction_state"] == "Ongoing"
    groups: list[dict[str, Any]] = [{"group_id": "g", "topics": None}]
    stable = {"groups": groups, "require_stable": True}
    nowhere = "unknown_topic_or_partition"
    assert await commit_in_transaction(broker, known, ["short", long]) == ["none", nowhere]
    found = (await ask(broker, 9, 8, stable))["groups"]
    assert found[0]["topics"] == [], "of all that there are, nothing is committed yet"
    groups[0]["topics"] = [{"name": "t", "partition_indexes": [0]}]
    found = (await ask(broker, 9, 8, stable))["groups"]
    assert found[0]["topics"][0]["partitions"][0]["error_code"] == "unstable_offset_commit"


@pytest.mark.parametrize(("pattern", "unknown"), [("[a-", []), ("a", ["nope"])])
async def test_a_pattern_that_is_wrong_comes_before_unknown_states(
    broker: Broker, pattern: str, unknown: list[str]
) -> None:
    filters = {"state_filters": ["nope"], "duration_filter": -1}
    answer = await ask(broker, 66, 2, {**filters, "transactional_id_pattern": pattern})
    assert answer["unknown_state_filters"] == unknown


@pytest.mark.parametrize(("epoch", "end_offset"), [(-1, -1), (-2, 0)])
async def test_an_epoch_before_the_first_ends_where_that_begins(
    broker: Broker, epoch: int, end_offset: int
) -> None:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    topics = [{"topic": "t", "partitions": [part]}]
    answer = await ask(broker, 23, 4, {"replica_id": -1, "topics": topics})
    found = answer["topics"][0]["partitions"][0]
    assert (found["error_code"], found["end_offset"]) == ("none", end_offset)


@pytest.mark.parametrize("version", [4, 5])
async def test_nodes_are_told_that_a_partition_is_not_in_its_transaction(
    broker: Broker, version: int
) -> None:
    tree = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1}
    await broker.ask(Request(key=22, version=5, tree={**tree, "producer_epoch": -1}, about="x"))
    producer_id, epoch = broker.producers["x"]
    asked = {
        "transactional_id": "x",
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": True,
        "topics": [{"name": "t", "partitions": [0]}],
    }
    answer = await ask(broker, 24, version, {"transactions": [asked]})
    told = answer["results_by_transaction"][0]["topic_results"][0]["results_by_partition"]
    assert [one["partition_error_code"] for one in told] == ["transaction_abortable"]
