"""Draws requests that make, change and describe topics."""

from typing import Any

from tests.differential.brokers import Request, TopicId
from tests.differential.chances import Chances

_TOPIC, _BROKER = 2, 4
_CONFIGS = (
    *(("retention.ms", "1000"), ("retention.ms", "-1"), ("retention.ms", "-2")),
    *(("retention.ms", "x"), ("retention.ms", ""), ("retention.bytes", "99999999")),
    *(("cleanup.policy", "compact"), ("cleanup.policy", "delete"), ("cleanup.policy", "")),
    *(("cleanup.policy", "compact,delete"), ("cleanup.policy", "shred")),
    *(("max.message.bytes", "100"), ("max.message.bytes", "-1"), ("max.message.bytes", None)),
    *(("compression.type", "zstd"), ("compression.type", "rar"), ("segment.bytes", "1")),
    *(("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "Never")),
    *(("min.insync.replicas", "1"), ("min.insync.replicas", "0"), ("no.such.config", "1")),
    *(("min.cleanable.dirty.ratio", "0.1"), ("min.cleanable.dirty.ratio", "2")),
    *(("unclean.leader.election.enable", "true"), ("preallocate", "maybe")),
    *(("segment.ms", "9223372036854775808"), ("delete.retention.ms", " 7 ")),
    # Spellings that Java and Python read differently.
    *(("retention.ms", "1_000"), ("retention.ms", "+5"), ("segment.ms", "\u00a05")),
    *(("cleanup.policy", "compact,"), ("cleanup.policy", " delete\t, compact ")),
    *(("cleanup.policy", "compact,compact"), ("preallocate", "TRUE")),
    *(("min.cleanable.dirty.ratio", "5e-1"), ("min.cleanable.dirty.ratio", "0.0005d")),
    *(("remote.storage.enable", "true"), ("remote.storage.enable", " False")),
)
_KEYS = sorted({name for name, _ in _CONFIGS})


def create_topics(c: Chances) -> Request:
    topics = []
    names = [c.mostly(name, "..", "", "a b", "x" * 250, rarity=0.1) for name in c.some(c.names)]
    if c.rng.random() < 0.05:
        names.append(names[0])
    for name in names:
        count = c.mostly(c.rng.choice([1, 2, 3]), -1, 0, -2)
        factor = c.mostly(1, -1, 0, -2, rarity=0.2)
        assignments: list[Any] = []
        if c.rng.random() < 0.15:
            count, factor = c.mostly((-1, -1), (1, 1))
            assignments = c.rng.choice(
                [
                    [(0, [1])],
                    [(0, [1]), (1, [1])],
                    [(0, [1]), (2, [1])],
                    [(0, [1]), (0, [1])],
                    [(0, [9])],
                    [(0, [])],
                    [(0, [1, 1])],
                ]
            )
        topics.append(
            {
                "name": name,
                "num_partitions": count,
                "replication_factor": factor,
                "assignments": [{"partition_index": i, "broker_ids": b} for i, b in assignments],
                "configs": [
                    {"name": n, "value": v} for n, v in c.mostly([], c.some(_CONFIGS), rarity=0.3)
                ],
            }
        )
    only = c.mostly(False, True)
    return c.request(19, {"topics": topics, "timeout": 9000, "validate_only": only})


def delete_topics(c: Chances) -> Request:
    version, names = c.version(20), c.topics()[:1]
    topics: list[Any] = [
        c.mostly({"name": n, "topic_id": None}, {"name": None, "topic_id": TopicId(n)}, rarity=0.4)
        for n in names
    ]
    if c.rng.random() < 0.1:
        both = [{"name": n, "topic_id": TopicId(n)} for n in names]
        topics += c.rng.choice([topics, both, [{"name": None, "topic_id": None}]])
    tree = {"topics": topics, "topic_names": names, "timeout": 9000}
    return Request(key=20, version=version, tree=tree)


def create_partitions(c: Chances) -> Request:
    topics = [
        {
            "name": name,
            "count": c.rng.choice([1, 2, 3, 4, 4, 5, 0, -1]),
            "assignments": c.mostly(
                *(None, [], [{"broker_ids": [1]}], [{"broker_ids": [9]}], [{"broker_ids": []}]),
                rarity=0.2,
            ),
        }
        for name in c.topics()
    ]
    only = c.mostly(False, True, rarity=0.3)
    return c.request(37, {"topics": topics, "timeout": 9000, "validate_only": only})


def _resource(c: Chances) -> dict[str, Any]:
    name = c.topic()
    usual = {"resource_type": _TOPIC, "resource_name": name}
    odd = [(_BROKER, "77"), (_BROKER, "x"), (0, "x"), (99, "x"), (_TOPIC, "nowhere")]
    kind, name = c.mostly((usual["resource_type"], usual["resource_name"]), *odd)
    return {"resource_type": kind, "resource_name": name}


def describe_configs(c: Chances) -> Request:
    keys = [*c.some(_KEYS), *c.mostly([], ["no.such.config"], rarity=0.2)]
    resource = _resource(c)
    if resource["resource_type"] == _TOPIC:
        keys = c.mostly(keys, None, [], rarity=0.2)
    synonyms = c.mostly(False, True, rarity=0.4)
    return c.request(
        32,
        {
            "resources": [resource | {"configuration_keys": keys}],
            "include_synonyms": synonyms,
            "include_documentation": False,
        },
    )


def alter_configs(c: Chances) -> Request:
    configs = [{"name": name, "value": value} for name, value in c.some(_CONFIGS)]
    only = c.mostly(False, True, rarity=0.3)
    resources = [_resource(c) | {"configs": configs}]
    return c.request(33, {"resources": resources, "validate_only": only})


def change_configs(c: Chances) -> Request:
    configs = [
        {
            "name": name,
            "config_operation": c.mostly(0, 1, 2, 3, 4, -1, rarity=0.4),
            "value": value,
        }
        for name, value in c.some(_CONFIGS)
    ]
    only = c.mostly(False, True, rarity=0.3)
    resources = [_resource(c) | {"configs": configs}]
    if c.rng.random() < 0.05:
        resources += resources
    return c.request(44, {"resources": resources, "validate_only": only})


def metadata(c: Chances) -> Request:
    version, names = c.version(3), c.topics()
    topics: list[Any] = [{"name": name, "topic_id": None} for name in names]
    if version >= 10 and c.rng.random() < 0.3:
        topics = [{"name": None, "topic_id": TopicId(name)} for name in names]
    operations = c.mostly(False, True)
    tree = {
        "topics": topics,
        "allow_auto_topic_creation": c.mostly(False, True, rarity=0.05),
        "include_topic_authorized_operations": operations,
        "include_cluster_authorized_operations": operations,
    }
    return Request(key=3, version=version, tree=tree)


def describe_cluster(c: Chances) -> Request:
    return c.request(
        60,
        {
            "include_cluster_authorized_operations": c.mostly(False, True, rarity=0.5),
            "endpoint_type": c.mostly(1, 2, 0, 3, -1, rarity=0.3),
            "include_fenced_brokers": c.mostly(False, True),
        },
    )


def describe_topic_partitions(c: Chances) -> Request:
    names = c.topics()
    cursor = None
    if c.rng.random() < 0.4:
        cursor = {"topic_name": c.topic(), "partition_index": c.mostly(0, 1, 9, -1, rarity=0.5)}
    return c.request(
        75,
        {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": c.mostly(2000, 1, 2, 0, -1, rarity=0.5),
            "cursor": cursor,
        },
    )


def elect_leaders(c: Chances) -> Request:
    some = [{"topic": name, "partitions": c.partitions(name)} for name in c.topics()]
    return c.request(
        43,
        {
            "election_type": c.mostly(0, 1, 2, -1, rarity=0.3),
            "topic_partitions": some,
            "timeout": 3000,
        },
    )


def reassign(c: Chances) -> Request:
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "replicas": c.mostly([1], None, [], [9], [1, 1], [-1], rarity=0.6),
                }
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    tree = {"timeout": 3000, "topics": topics, "allow_replication_factor_change": True}
    return c.request(45, tree)


def list_reassignments(c: Chances) -> Request:
    topics = [{"name": name, "partition_indexes": c.partitions(name)} for name in c.topics()]
    return c.request(46, {"timeout": 3000, "topics": c.mostly(topics, [], None, rarity=0.2)})


CHANGES = (create_topics, create_topics, delete_topics, create_partitions)
CONFIG_CHANGES = (alter_configs, change_configs, change_configs)
INQUIRIES = (
    *(describe_configs, describe_configs, metadata, metadata, describe_cluster),
    *(describe_topic_partitions, elect_leaders, reassign, list_reassignments),
)
