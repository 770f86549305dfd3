"""Draws the lives of topics: made, deleted and made again under the name, while fetch sessions,
committed offsets and transactions remember them.
"""

from tests.differential import record_draw, session_draw, topic_draw, transaction_draw
from tests.differential.brokers import Request, TopicId
from tests.differential.chances import Chances

_GROUPS_SINCE = 8


def commit_offsets(c: Chances) -> Request:
    topics = [
        {
            "name": name,
            "topic_id": TopicId(name),
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": c.rng.randrange(9),
                    "committed_leader_epoch": -1,
                    "committed_metadata": "m",
                }
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    tree = {
        "group_id": c.group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": topics,
    }
    return c.request(8, tree)


def fetch_offsets(c: Chances) -> Request:
    some = [
        {"name": name, "topic_id": TopicId(name), "partition_indexes": c.partitions(name)}
        for name in c.topics()
    ]
    group = {
        "group_id": c.group,
        "topics": c.mostly(some, None, rarity=0.4),
        "member_id": None,
        "member_epoch": -1,
    }
    tree = {"groups": [group], "require_stable": c.mostly(False, True, rarity=0.4)}
    return Request(key=9, version=c.version(9, least=_GROUPS_SINCE), tree=tree)


def delete_offsets(c: Chances) -> Request:
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": index} for index in c.partitions(name)],
        }
        for name in c.topics()
    ]
    return c.request(47, {"group_id": c.group, "topics": topics})


def delete_group(c: Chances) -> Request:
    return c.request(42, {"groups_names": [c.group]})


def describe_group(c: Chances) -> Request:
    return c.request(15, {"groups": [c.group], "include_authorized_operations": False})


DRAWS = (
    *(topic_draw.create_topics,) * 3,
    *(topic_draw.delete_topics,) * 4,
    *(topic_draw.create_partitions, topic_draw.metadata),
    *session_draw.DRAWS * 2,
    *(record_draw.produce,) * 4,
    *(record_draw.list_offsets, record_draw.leader_epochs, record_draw.describe_producers),
    *(commit_offsets,) * 4,
    *(fetch_offsets,) * 4,
    *(delete_offsets, delete_group, describe_group),
    *(transaction_draw.init_producer_id, transaction_draw.add_offsets),
    *(transaction_draw.commit_offsets, transaction_draw.commit_offsets),
    transaction_draw.end_transaction,
)
