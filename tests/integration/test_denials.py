"""A client without any grant gets Kafka's denial from every API, and changes nothing."""

import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker import api
from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.broker.security.standard_authorizer import CLASS_NAME
from lakehead.broker.settings import Settings
from tests.differential.trees import message
from tests.support.node_client import Client, close_clients
from tests.support.wire import Batch

TOPIC, GROUP, TRANSACTIONAL_ID, FRESH = "known", "team", "x", "fresh"
_RECORDS = Batch(values=(b"v",)).encode()
_PART = {"partition_index": 0}
_RULE = {
    "resource_type": 2,
    "resource_name": TOPIC,
    "resource_pattern_type": 3,
    "principal": "User:ANONYMOUS",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
_EVERY_RULE = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
_TXN = {"transactional_id": TRANSACTIONAL_ID, "producer_id": 1, "producer_epoch": 0}
_MEMBER = {"group_id": GROUP, "member_id": "", "generation_id": 1}
_NONE, _T, _G, _C, _X = (
    ErrorCode.none,
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
)

_NO_TOKENS = ErrorCode.delegation_token_request_not_allowed
"""Tokens are for clients that proved their names: before any check of rules."""

Tree = Mapping[str, Any]
CASES: dict[str, tuple[Tree, dict[str, Any]]] = {
    "Produce": (
        {
            "acks": -1,
            "transactional_id": None,
            "topic_data": [
                {"name": TOPIC, "partition_data": [{"index": 0, "records": _RECORDS}]},
                {"name": "missing", "partition_data": [{"index": 0, "records": _RECORDS}]},
            ],
        },
        {"responses.partition_responses.error_code": {_T}},
    ),
    "Fetch": (
        {
            "replica_id": -1,
            "max_wait": 0,
            "session_epoch": -1,
            "topics": [
                {"topic": name, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
                for name in (TOPIC, "missing")
            ],
        },
        {"responses.partitions.error_code": {_T}},
    ),
    "ListOffsets": (
        {
            "topics": [
                {"name": name, "partitions": [{**_PART, "timestamp": -1}]}
                for name in (TOPIC, "missing")
            ]
        },
        {"topics.partitions.error_code": {_T}},
    ),
    "Metadata": (
        {
            "topics": [{"name": TOPIC}, {"name": FRESH}],
            "allow_auto_topic_creation": True,
            "include_cluster_authorized_operations": True,
        },
        {
            "topics.error_code": {_T},
            "topics.topic_id": {None},
            "topics.partitions": set(),
        },
    ),
    "OffsetCommit": (
        {**_MEMBER, "topics": [{"name": TOPIC, "partitions": [{**_PART, "committed_offset": 1}]}]},
        {"topics.partitions.error_code": {_G}},
    ),
    "OffsetFetch": (
        {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "groups": [{"group_id": GROUP, "topics": None}],
        },
        {"groups.error_code": {_G}, "groups.topics.partitions.error_code": set()},
    ),
    "FindCoordinator": (
        {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]},
        {"coordinators.error_code": {_G}, "coordinators.node_id": {-1}},
    ),
    "JoinGroup": (
        {
            **_MEMBER,
            "session_timeout": 6000,
            "rebalance_timeout": 6000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        {"error_code": {_G}},
    ),
    "Heartbeat": (_MEMBER, {"error_code": {_G}}),
    "LeaveGroup": ({**_MEMBER, "members": [{"member_id": "m"}]}, {"error_code": {_G}}),
    "SyncGroup": (
        {**_MEMBER, "protocol_type": "consumer", "protocol_name": "range"},
        {"error_code": {_G}},
    ),
    "ConsumerGroupHeartbeat": (
        {
            "group_id": GROUP,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 6000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
        {"error_code": {_G}},
    ),
    "ConsumerGroupDescribe": (
        {"group_ids": [GROUP, "missing"]},
        {"groups.error_code": {_G}},
    ),
    "DescribeGroups": ({"groups": [GROUP, "missing"]}, {"groups.error_code": {_G}}),
    "ListGroups": ({}, {"error_code": {_NONE}, "groups.group_id": set()}),
    "ApiVersions": (
        {"client_software_name": "a", "client_software_version": "1"},
        {"error_code": {_NONE}},
    ),
    "GetTelemetrySubscriptions": ({"client_instance_id": None}, {"error_code": {_NONE}}),
    "PushTelemetry": (
        {"client_instance_id": None, "subscription_id": 0, "metrics": b""},
        {"error_code": {int(ErrorCode.invalid_request)}},
    ),
    "CreateTopics": (
        {"topics": [{"name": FRESH, "num_partitions": 1, "replication_factor": 1}]},
        {"topics.error_code": {_T}},
    ),
    "DeleteTopics": (
        {"topics": [{"name": TOPIC}, {"name": "missing"}], "topic_names": [TOPIC]},
        {"responses.error_code": {_T}, "responses.topic_id": {None}},
    ),
    "DeleteRecords": (
        {"topics": [{"name": TOPIC, "partitions": [{**_PART, "offset": -1}]}]},
        {"topics.partitions.error_code": {_T}},
    ),
    "InitProducerId": ({"transactional_id": None}, {"error_code": {_C}}),
    "OffsetForLeaderEpoch": (
        {
            "replica_id": -1,
            "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 1}]}],
        },
        {"topics.partitions.error_code": {_T}},
    ),
    "AddPartitionsToTxn": ({"transactions": [_TXN]}, {"error_code": {_C}}),
    "AddOffsetsToTxn": ({**_TXN, "group_id": GROUP}, {"error_code": {_X}}),
    "EndTxn": ({**_TXN, "committed": True}, {"error_code": {_X}}),
    "WriteTxnMarkers": (
        {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                }
            ]
        },
        {"markers.topics.partitions.error_code": {_C}},
    ),
    "TxnOffsetCommit": (
        {
            **_TXN,
            **_MEMBER,
            "topics": [{"name": TOPIC, "partitions": [{**_PART, "committed_offset": 1}]}],
        },
        {"topics.partitions.error_code": {_X}},
    ),
    "DescribeAcls": (_EVERY_RULE, {"error_code": {_C}, "resources.acls.host": set()}),
    "CreateAcls": ({"creations": [_RULE]}, {"results.error_code": {_C}}),
    "DeleteAcls": ({"filters": [_EVERY_RULE]}, {"filter_results.error_code": {_C}}),
    "DescribeConfigs": (
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}]},
        {"results.error_code": {_T}, "results.configs.name": set()},
    ),
    "AlterConfigs": (
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configs": [{"name": "retention.ms", "value": "1"}],
                }
            ]
        },
        {"responses.error_code": {_T}},
    ),
    "AlterReplicaLogDirs": (
        {"dirs": [{"path": "/", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        {"results.partitions.error_code": {_C}},
    ),
    "DescribeLogDirs": ({"topics": None}, {"error_code": {_C}, "results.log_dir": set()}),
    "CreatePartitions": (
        {"topics": [{"name": TOPIC, "count": 3, "assignments": None}]},
        {"results.error_code": {_T}},
    ),
    "DeleteGroups": ({"groups_names": [GROUP]}, {"results.error_code": {_G}}),
    "ElectLeaders": ({"topic_partitions": None, "timeout": 1000}, {"error_code": {_C}}),
    "IncrementalAlterConfigs": (
        {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": config, "config_operation": 0, "value": value}],
                }
                for kind, name, config, value in (
                    (4, "0", "log.retention.ms", "1"),
                    (8, "0", "root", "ERROR"),
                )
            ]
        },
        {"responses.error_code": {_C}},
    ),
    "AlterPartitionReassignments": (
        {
            "topics": [{"name": TOPIC, "partitions": [{**_PART, "replicas": [0]}]}],
            "timeout": 1000,
        },
        {"error_code": {_C}, "responses.partitions.error_code": {_C}},
    ),
    "ListPartitionReassignments": ({"topics": None}, {"error_code": {_C}}),
    "OffsetDelete": (
        {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [_PART]}]},
        {"error_code": {_G}},
    ),
    "DescribeClientQuotas": ({"components": []}, {"error_code": {_C}}),
    "AlterClientQuotas": (
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "u"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ]
        },
        {"entries.error_code": {_C}},
    ),
    "DescribeUserScramCredentials": ({"users": None}, {"error_code": {_C}}),
    "DescribeQuorum": (
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [_PART]}]},
        {"error_code": {_C}},
    ),
    "UpdateFeatures": (
        {
            "feature_updates": [
                {"feature": "metadata.version", "max_version_level": 2, "upgrade_type": 1}
            ]
        },
        {"error_code": {_C}},
    ),
    "DescribeCluster": (
        {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        {"error_code": {_NONE}, "cluster_authorized_operations": {0}},
    ),
    "DescribeProducers": (
        {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
        {"topics.partitions.error_code": {_T}},
    ),
    "UnregisterBroker": ({"broker_id": 0}, {"error_code": {_C}}),
    "DescribeTransactions": (
        {"transactional_ids": [TRANSACTIONAL_ID]},
        {"transaction_states.error_code": {_X}},
    ),
    "ListTransactions": ({}, {"error_code": {_NONE}, "transaction_states.producer_id": set()}),
    "SaslHandshake": ({"mechanism": "PLAIN"}, {"error_code": {ErrorCode.illegal_sasl_state}}),
    "SaslAuthenticate": ({"auth_bytes": b""}, {"error_code": {ErrorCode.illegal_sasl_state}}),
    "AlterUserScramCredentials": (
        {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []},
        {"results.error_code": {_C}},
    ),
    "DescribeDelegationToken": (
        {"owners": None},
        {"error_code": {_NO_TOKENS}, "tokens": set()},
    ),
    "ListConfigResources": ({}, {"error_code": {_C}, "config_resources.resource_name": set()}),
    "DescribeTopicPartitions": (
        {"topics": [{"name": TOPIC}, {"name": "missing"}], "response_partition_limit": 9},
        {"topics.error_code": {_T}, "topics.topic_id": {None}},
    ),
    "ShareGroupHeartbeat": (
        {"group_id": GROUP, "member_id": "m", "subscribed_topic_names": [TOPIC]},
        {"error_code": {_G}},
    ),
    "ShareGroupDescribe": ({"group_ids": [GROUP]}, {"groups.error_code": {_G}}),
    "DescribeShareGroupOffsets": (
        {"groups": [{"group_id": GROUP, "topics": None}]},
        {"groups.error_code": {_G}},
    ),
    "AlterShareGroupOffsets": (
        {"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": [_PART]}]},
        {"error_code": {_G}},
    ),
    "DeleteShareGroupOffsets": (
        {"group_id": GROUP, "topics": [{"topic_name": TOPIC}]},
        {"error_code": {_G}},
    ),
    "ShareFetch": (
        {"group_id": GROUP, "member_id": "m", "topics": [{"partitions": [_PART]}]},
        {"error_code": {_G}, "responses.topic_id": set()},
    ),
    "ShareAcknowledge": (
        {"group_id": GROUP, "member_id": "m", "topics": [{"partitions": [_PART]}]},
        {"error_code": {_G}, "responses.topic_id": set()},
    ),
    **{
        f"{verb}ShareGroup{noun}": (
            {"group_id": GROUP, "topics": [{"partitions": [{"partition": 0}]}]},
            {"results.partitions.error_code": {_C}},
        )
        for verb, noun in (
            *(("Initialize", "State"), ("Read", "State"), ("Write", "State")),
            *(("Delete", "State"), ("Read", "StateSummary")),
        )
    },
}
"""By API: a request, and the values in its response at some paths. Of versions that have a place
for them; the newest unless `_VERSIONS` has another.
"""
_VERSIONS = {"Produce": 12, "Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9, "Metadata": 12}
_OF_OTHERS = frozenset(
    {
        *("BrokerHeartbeat", "CreateDelegationToken", "RenewDelegationToken"),
        "ExpireDelegationToken",
    }
)
"""Tested with denials of their own: heartbeats of strangers, and delegation tokens, whose refusals
have times that kio does not read.
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = Settings(
        data=str(tmp_path),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
        authorizer_class_name=CLASS_NAME,
    )
    made = await start_node(settings, rng=random.Random(5))
    try:
        await made.replication_control.create(TOPIC, 1)
        admin = await Client.connect(made)
        admin.proof = NodeProof(secret=made.state.node_secret, to_node=made.node_id)
        for key_type, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
            await _ask(admin, 10, 4, {"key_type": key_type, "coordinator_keys": [key]})
        yield made
    finally:
        await close_clients()
        await made.close()


async def _ask(client: Client, key: int, version: int, tree: Tree) -> Any:
    return await client.ask(key, version, message(schema(key, version).request_class, tree))


def _values(entity: Any, path: str) -> set[Any]:
    found = [entity]
    for name in path.split("."):
        found = [
            value
            for one in found
            for value in (
                getattr(one, name)
                if isinstance(getattr(one, name), tuple)
                else (getattr(one, name),)
            )
        ]
    return set(found)


def _served() -> list[Api]:
    return [one for one in api.registry().apis() if one.name not in _OF_OTHERS]


def _everything(node: Node) -> dict[str, Any]:
    """What requests could change. Writers are left out: nodes write by themselves."""
    state = node.state
    names = ("topics", "acls", "quotas", "broker_configs", "group_configs", "features", "nodes")
    ends = {
        (topic.name, partition.index): partition.log_end_offset
        for topic in node.topics.by_name.values()
        for partition in topic.partitions
        if partition is not None
    }
    return {name: getattr(state, name) for name in (*names, "scram_credentials")} | {"ends": ends}


async def test_without_a_grant_every_api_denies_and_changes_nothing(node: Node) -> None:
    for served in _served():
        tree, wanted = CASES[served.name]
        client = await Client.connect(node)
        before, denied = _everything(node), node.services.audit.denied_total
        producer_id = node.state.next_producer_id
        version = _VERSIONS.get(served.name, served.versions[1])
        answer = await _ask(client, served.key, version, tree)
        for path, values in wanted.items():
            assert _values(answer, path) == values, (served.name, path)
        assert _everything(node) == before, served.name
        assert node.state.next_producer_id == producer_id
        is_silent = all(one.denial is None for one in served.access) or (
            wanted.get("error_code") == {_NO_TOKENS}
        )
        assert (node.services.audit.denied_total == denied) is is_silent, served.name


async def test_no_version_of_an_api_lets_a_client_without_grants_pass(node: Node) -> None:
    before = _everything(node)
    for served in _served():
        tree, _ = CASES[served.name]
        client = await Client.connect(node)
        for version in range(served.versions[0], served.versions[1] + 1):
            await _ask(client, served.key, version, tree)
        assert _everything(node) == before, served.name


def test_an_api_without_checks_says_why() -> None:
    for served in _served():
        assert bool(served.access) != bool(served.open_to_all), served.name
