"""`make differential`: share groups (KIP-932), the same requests to Kafka and to Lakehead.

A seeded stream in rounds, each with a group and two topics of its own: members join, fetch,
acknowledge and leave, with right and wrong epochs, verdicts on records that they do not have, and
batches that overlap; an administrator lists, describes, moves and deletes. Each server's assignor
chooses the partitions of a member: compared are which members have some, and what they have
together. In some rounds locks are short, and a pause is longer than any of them.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.apache_kafka.server import kafka_server
from bench.lakehead_server import lakehead_server
from lakehead.broker.protocol.node_proof import NodeProof
from tests.differential.brokers import CREATE_TOPICS, Broker
from tests.differential.by_design import acquired
from tests.differential.requests import (
    FLAGS,
    KAFKAS_SETTINGS,
    common_versions,
    proof_of,
    settled,
)
from tests.differential.share_draw import (
    ACKNOWLEDGE,
    ALTER_CONFIGS,
    DESCRIBE_OFFSETS,
    FETCH,
    HEARTBEAT,
    LIST_GROUPS,
    SHORT_LOCK_MS,
    ShareDraw,
)
from tests.differential.stream import Report
from tests.differential.trees import Tree
from tests.support.node_client import close_clients

ROUND = 80
"""Requests before both begin anew with another group."""
_SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": str(SHORT_LOCK_MS)}
_PAUSE_S = 1.6 * SHORT_LOCK_MS / 1000
"""Longer than a short lock."""
_RELEASED_S = 0.3
"""Until the records of a session that ended are free: Kafka responds before they are."""
_STATES_S, _STATES_TIMES, _SAME_TIMES = 0.02, 150, 2
_READY_S = 60.0
_LISTED = "groups"


class ShareBroker(Broker):
    """A server; of its responses what the assignor decides is masked, and partitions of which there
    is nothing to report: they may be left out, or not.
    """

    def _tree(self, answer: Any) -> Tree:
        tree = super()._tree(answer)
        if "heartbeat_interval" in tree:
            tree["assignment"] = _masked(tree["assignment"])
        if "acquisition_lock_timeout" in tree:
            tree["responses"] = list(_told(tree["responses"]))
        if "generation_id" in tree and tree["error_code"] == "member_id_required":
            tree["member_id"] = "made up"
        for group in tree.get(_LISTED) or ():
            members = group.get("members") or ()
            given = set()
            for member in members:
                if isinstance(member.get("assignment"), dict):
                    given |= _places(member["assignment"])
                    member["assignment"] = _masked(member["assignment"])
            if members:
                group["given"] = sorted(given)
        return tree


def _told(topics: Sequence[Tree]) -> Iterator[Tree]:
    """Yield the topics of a response to ShareFetch or ShareAcknowledge, with the partitions that it
    says something of.
    """
    for topic in topics:
        parts = [part for part in topic["partitions"] if not _is_empty(part)]
        if parts:
            yield {**topic, "partitions": parts}


def _is_empty(part: Tree) -> bool:
    return "acquired_records" in part and (
        not part["records"] and part["error_code"] == "none" and not part["acknowledge_error_code"]
    )


def _places(assignment: Tree) -> set[tuple[str, int]]:
    return {
        (topic["topic_id"], index)
        for topic in assignment["topic_partitions"]
        for index in topic["partitions"]
    }


def _masked(assignment: Tree) -> str | None:
    if assignment is None:
        return None
    return "some" if _places(assignment) else "none"


def main() -> None:
    """Run as the arguments say; status 1 if a response differs that should not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        folders = Path(name) / "kafka", Path(name) / "lakehead"
        for folder in folders:
            folder.mkdir()
        flags = [
            part for setting, value in _SHORT_LOCKS.items() for part in (f"--{setting}", value)
        ]
        kafkas = kafka_server(folders[0], settings={**KAFKAS_SETTINGS, **_SHORT_LOCKS})
        with kafkas as kafka, lakehead_server(folders[1], *FLAGS, *flags) as lakehead:
            ports = kafka.port, lakehead.port
            proof = proof_of(folders[1])
            report = asyncio.run(_run(ports, proof, given.seed, given.requests))
    report.show()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(bool(report.unknown))


async def _run(ports: tuple[int, int], proof: NodeProof, seed: int, requests: int) -> Report:
    report = Report()
    sides = [
        await ShareBroker.connect("Kafka", ports[0]),
        await ShareBroker.connect("Lakehead", ports[1], proof),
    ]
    try:
        versions = common_versions(*[await side.versions() for side in sides])
        for side in sides:
            await side.wait_coordinated()
            await _wait_assigned(side)
        for number in itertools.count():
            rest = requests - sum(report.asked.values())
            if rest <= 0:
                break
            prefix = f"r{number}-"
            draw = ShareDraw(random.Random(f"{seed}-{number}"), prefix, versions)
            await _round(sides, draw, min(ROUND, rest), report)
    finally:
        await close_clients()
    return report


async def _wait_assigned(side: Broker) -> None:
    """Wait until a group has states, and a member partitions: all topics of coordinators are
    there then.
    """
    topic = {"name": "first", "num_partitions": 1, "replication_factor": 1}
    await side.command(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 9000})
    heartbeat = {
        "group_id": "first",
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": ["first"],
    }
    async with asyncio.timeout(_READY_S):
        while True:
            joined = await side.command(HEARTBEAT, 1, heartbeat)
            if joined.assignment is not None and joined.assignment.topic_partitions:
                return
            await asyncio.sleep(_STATES_S)


async def _round(sides: Sequence[Broker], draw: ShareDraw, count: int, report: Report) -> None:
    """Send both the same until something differs."""
    report.trail.clear()
    topics = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1}
        for name, partitions in draw.partitions.items()
    ]
    change = draw.first_change()
    for side in sides:
        side.prefix = draw.prefix
        await side.command(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000})
        await side.ask(change)
    await settled(sides, draw.prefix)
    report.trail.append(f"configs: {draw.configs}")
    for _ in range(count):
        if draw.is_reconnection_due():
            for side in sides:
                await side.reconnect()
            await asyncio.sleep(_RELEASED_S)
            report.trail.append("other connections")
        if draw.is_pause_due():
            await asyncio.sleep(_PAUSE_S)
            report.trail.append("a pause")
        request = draw.draw()
        theirs, ours = await asyncio.gather(*(side.ask(request) for side in sides))
        if request.key == HEARTBEAT:
            await _initialized(sides, draw.group)
        elif request.key == ALTER_CONFIGS:
            await settled(sides, draw.prefix)
        elif request.key in (FETCH, ACKNOWLEDGE) and request.tree["share_session_epoch"] <= 0:
            await asyncio.sleep(_RELEASED_S)
        draw.follow(request, theirs)
        if request.key == LIST_GROUPS:
            for one in (theirs, ours):
                one[_LISTED] = [it for it in one[_LISTED] if it["group_id"] == draw.group]
        before = sum(report.unknown.values())
        is_over = report.compare(request, theirs, ours) or sum(report.unknown.values()) > before
        if is_over or (request.key == FETCH and acquired(theirs) != acquired(ours)):
            return  # what comes after may differ, too


async def _initialized(sides: Sequence[Broker], group: str) -> None:
    """Wait until both have made the same states of the group, or when they never will."""
    same, before = 0, ""
    for _ in range(_STATES_TIMES):
        tree = {"groups": [{"group_id": group, "topics": None}]}
        shown = []
        for side in sides:
            response = await side.command(DESCRIBE_OFFSETS, 0, tree)
            if isinstance(response, str):  # none came in time
                print(f"--- {side.name} to DescribeShareGroupOffsets of {group}: {response}")
                return
            shown.append(
                repr(
                    sorted(
                        (topic.topic_name, partition.partition_index)
                        for one in response.groups
                        for topic in one.topics
                        for partition in topic.partitions
                    )
                )
            )
        same = same + 1 if before == shown[0] == shown[1] else 0
        before = shown[0]
        if same == _SAME_TIMES:
            return
        await asyncio.sleep(_STATES_S)


if __name__ == "__main__":
    main()
