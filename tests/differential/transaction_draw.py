"""Draws requests of transactional producers, in and out of turn."""

from typing import Any

from tests.differential.brokers import ProducerEpoch, ProducerId, Request
from tests.differential.chances import Chances


def _who(c: Chances, name: str) -> dict[str, Any]:
    other = c.producers[0]
    return {
        "producer_id": c.mostly(ProducerId(name), ProducerId(other), ProducerId(name, 1000), -1),
        "producer_epoch": c.mostly(
            ProducerEpoch(name), ProducerEpoch(name, -1), ProducerEpoch(name, 1), -1
        ),
    }


def _transactional(c: Chances) -> tuple[str, str]:
    """A producer and the id that it gives."""
    name = c.rng.choice(c.transactional)
    return name, c.mostly(name, "nobody", "", rarity=0.05)


def init_producer_id(c: Chances) -> Request:
    name = c.rng.choice(c.producers)
    given: str | None = name if c.is_transactional(name) else None
    who = {"producer_id": -1, "producer_epoch": -1}
    if c.rng.random() < 0.3:
        who = _who(c, name)
    return c.request(
        22,
        {
            "transactional_id": c.mostly(given, "", rarity=0.03),
            "transaction_timeout": c.mostly(60_000, 0, -1, 900_001, rarity=0.08),
            "enable2_pc": c.mostly(False, True, rarity=0.03),
            "keep_prepared_txn": c.mostly(False, True, rarity=0.03),
            **who,
        },
        about=name,
    )


def add_partitions(c: Chances) -> Request:
    name, given = _transactional(c)
    version = min(c.version(24), 3)  # later ones are for brokers
    who = _who(c, name)
    topics = [{"name": topic, "partitions": c.partitions(topic)} for topic in c.topics()]
    tree = {
        "v3_and_below_transactional_id": given,
        "v3_and_below_producer_id": who["producer_id"],
        "v3_and_below_producer_epoch": who["producer_epoch"],
        "v3_and_below_topics": topics,
    }
    return Request(key=24, version=version, tree=tree)


def add_partitions_for_nodes(c: Chances) -> Request:
    """As nodes ask: for several transactions, perhaps only whether they have the partitions."""
    transactions = []
    for name in c.some(c.transactional, 2):
        topics = [{"name": topic, "partitions": c.partitions(topic)} for topic in c.topics()]
        transactions.append(
            {
                "transactional_id": c.mostly(name, "nobody", "", rarity=0.1),
                **_who(c, name),
                "verify_only": c.mostly(True, False, rarity=0.4),
                "topics": topics,
            }
        )
    return Request(key=24, version=c.version(24, least=4), tree={"transactions": transactions})


def write_markers(c: Chances) -> Request:
    """As transaction coordinators end transactions in partitions, mostly out of turn."""
    markers = []
    for name in c.some(c.producers, 2):
        topics = [{"name": t, "partition_indexes": c.partitions(t)} for t in c.topics()]
        epoch = c.mostly(
            *(ProducerEpoch(name, 1), ProducerEpoch(name), ProducerEpoch(name, -1), -1), rarity=0.4
        )
        markers.append(
            {
                "producer_id": c.mostly(ProducerId(name), ProducerId(name, 1000), -1),
                "producer_epoch": epoch,
                "transaction_result": c.rng.random() < 0.5,
                "topics": topics,
                "coordinator_epoch": c.mostly(0, -1),
                "transaction_version": c.mostly(2, 0, 1, rarity=0.3),
            }
        )
    return c.request(27, {"markers": markers})


def list_transactions(c: Chances) -> Request:
    states = (
        *("Ongoing", "Empty", "CompleteCommit", "CompleteAbort", "PrepareCommit"),
        *("Dead", "nope", "", "ongoing"),
    )
    patterns = (f"{c.prefix}x", f"{c.prefix}.*", ".*y", "x", "", "(", "[a-", "nobody|.*x")
    name = c.rng.choice(c.transactional)
    return c.request(
        66,
        {
            "state_filters": c.mostly([], c.some(states), rarity=0.5),
            "producer_id_filters": c.mostly(
                [], [ProducerId(name)], [ProducerId(name), -1], [77], rarity=0.4
            ),
            "duration_filter": c.mostly(-1, 0, 3_600_000, -2, rarity=0.3),
            "transactional_id_pattern": c.mostly(None, *patterns, rarity=0.5),
        },
    )


def add_offsets(c: Chances) -> Request:
    name, given = _transactional(c)
    group = c.mostly(c.group, "", rarity=0.05)
    return c.request(25, {"transactional_id": given, "group_id": group, **_who(c, name)})


def commit_offsets(c: Chances) -> Request:
    name, given = _transactional(c)
    topics = [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": c.mostly(c.rng.randrange(9), -1, -2),
                    "committed_leader_epoch": -1,
                    "committed_metadata": c.mostly("m", None, "x" * 5000),
                }
                for index in c.partitions(topic)
            ],
        }
        for topic in c.topics()
    ]
    tree = {
        "transactional_id": given,
        "group_id": c.group,
        "generation_id": c.mostly(-1, 0, 3),
        "member_id": c.mostly("", "nobody"),
        "group_instance_id": None,
        "topics": topics,
        **_who(c, name),
    }
    return c.request(28, tree)


def end_transaction(c: Chances) -> Request:
    name, given = _transactional(c)
    is_commit = c.rng.random() < 0.5
    tree = {"transactional_id": given, "committed": is_commit, **_who(c, name)}
    return c.request(26, tree, about=name)


def describe_transactions(c: Chances) -> Request:
    names = c.mostly(c.transactional, ["nobody"], [""], [], rarity=0.2)
    return c.request(65, {"transactional_ids": names})


def fetch_offsets(c: Chances) -> Request:
    groups = [{"group_id": c.group, "topics": None}]
    tree = {"groups": groups, "require_stable": c.mostly(False, True, rarity=0.5)}
    return Request(key=9, version=8, tree=tree)


DRAWS = (
    *(init_producer_id, init_producer_id, add_partitions, add_partitions, add_offsets),
    *(commit_offsets, end_transaction, end_transaction, describe_transactions, fetch_offsets),
    *(add_partitions_for_nodes, write_markers, list_transactions, list_transactions),
)
