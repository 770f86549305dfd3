"""The checks that APIs declare are those of Kafka's documentation, or differ for a known reason."""

from pathlib import Path

from docs.authorization_table import operation_word, resource_word
from lakehead.broker import api

FIXTURE = Path(__file__).parents[1] / "fixtures" / "kafka" / "operations-and-resources.txt"
Row = tuple[int, str, str]

NOT_DOCUMENTED: dict[Row, str] = {
    (19, "DescribeConfigs", "Topic"): "ControllerApis.handleCreateTopics: configs in the response",
    (20, "Delete", "Cluster"): "ControllerApis.handleDeleteTopics: all topics at once",
    (20, "Describe", "Topic"): "ControllerApis.deleteTopics: existence stays hidden",
    (22, "Write", "Topic"): "KafkaApis.handleInitProducerIdRequest: authorizeByResourceType",
    (22, "TwoPhaseCommit", "TransactionalId"): "KIP-939",
    (24, "ClusterAction", "Cluster"): "KafkaApis.handleAddPartitionsToTxnRequest: version 4",
    (3, "Describe", "Cluster"): "KafkaApis.handleTopicMetadataRequest: operations (KIP-430)",
    (32, "DescribeConfigs", "Group"): "ConfigHelper: configs of groups",
    (76, "Describe", "Topic"): "KafkaApis.handleShareGroupHeartbeat",
    (77, "Describe", "Topic"): "KafkaApis.handleShareGroupDescribe",
    (90, "Describe", "Group"): "KafkaApis.handleDescribeShareGroupOffsetsRequest",
    (90, "Describe", "Topic"): "KafkaApis.handleDescribeShareGroupOffsetsRequest",
    (91, "Read", "Group"): "KafkaApis.handleAlterShareGroupOffsetsRequest",
    (91, "Read", "Topic"): "KafkaApis.handleAlterShareGroupOffsetsRequest",
    (92, "Delete", "Group"): "KafkaApis.handleDeleteShareGroupOffsetsRequest",
    (92, "Read", "Topic"): "KafkaApis.handleDeleteShareGroupOffsetsRequest",
    (10, "ClusterAction", "Cluster"): "KafkaApis.getCoordinator: of key type SHARE",
    (33, "AlterConfigs", "Group"): "ControllerApis.authorizeAlterResource",
    (44, "AlterConfigs", "Group"): "ControllerApis.authorizeAlterResource",
    (43, "Alter", "Cluster"): "ControllerApis.handleElectLeaders; the table has ClusterAction",
    (68, "Describe", "Topic"): "KafkaApis.handleConsumerGroupHeartbeat: subscribed topics",
    (69, "Describe", "Group"): "KafkaApis.handleConsumerGroupDescribe; the table has Read",
    (69, "Describe", "Topic"): "KafkaApis.handleConsumerGroupDescribe: topics of the group",
    (65, "Describe", "Topic"): "KafkaApis.handleDescribeTransactionsRequest: topics are left out",
}
"""Checks of Kafka's code that its table does not have, and where they are."""
NOT_CHECKED: dict[Row, str] = {
    (0, "IdempotentWrite", "Cluster"): "KIP-679: Kafka's code does not check it since 3.0",
    (1, "ClusterAction", "Cluster"): "followers fetch nothing here",
    (43, "ClusterAction", "Cluster"): "Kafka's code checks Alter",
    (69, "Read", "Group"): "Kafka's code checks Describe",
}
"""Rows of Kafka's table that no handler checks."""


def documented() -> set[Row]:
    lines = FIXTURE.read_text().splitlines()
    rows = [line.split(" ") for line in lines if not line.startswith("#")]
    return {(int(key), operation, resource) for key, _, operation, resource in rows}


def test_an_api_checks_what_kafka_documents() -> None:
    served = api.registry().apis()
    keys = {one.key for one in served}
    declared = {
        (one.key, operation_word(access.operation), resource_word(access.resource_type))
        for one in served
        for access in one.access
    }
    wanted = {row for row in documented() if row[0] in keys and row[1] != "-"}
    assert len(wanted) > 60
    assert declared - wanted - NOT_DOCUMENTED.keys() == set()
    assert wanted - declared - NOT_CHECKED.keys() == set()


def test_no_difference_is_listed_in_vain() -> None:
    wanted = documented()
    assert {row for row in NOT_DOCUMENTED if row in wanted} == set()
    assert set(NOT_CHECKED) <= wanted
    declared = {
        (one.key, operation_word(access.operation), resource_word(access.resource_type))
        for one in api.registry().apis()
        for access in one.access
    }
    assert set(NOT_DOCUMENTED) <= declared
    assert not set(NOT_CHECKED) & declared


def test_apis_without_checks_have_none_in_kafka() -> None:
    free = {key for key, operation, _ in documented() if operation == "-"}
    assert {one.key for one in api.registry().apis() if not one.access} <= free
