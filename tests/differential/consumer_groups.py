"""Requests about consumer groups of KIP-848, to Apache Kafka and to a node, and their responses
compared: `python -m tests.differential.consumer_groups --seed 1 --groups 20`.

A seeded stream: members join, send heartbeats, give partitions back, leave and commit, of both
protocols, and are often a little off; transactional producers commit for them. Each server chooses
the partitions of a member, so assignments are compared by their sizes, of stable groups. The first
difference of a group ends it.

Since Kafka 4.3 assignments wait for `consumer.assignment.interval.ms`. Groups have 0 or the longest
that there is, in turns, so that no response depends on how fast a request is. Kafka 4.2 does not
know the config (`KAFKA_VERSION=4.2.0`): there the interval is 0, here too.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from bench.apache_kafka.jars import KAFKA_VERSION
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.differential.group_servers import group_servers
from tests.integration.test_consumer_group_requests import WireGroup, subscription
from tests.support.node_client import Client

TOPICS = {"t": 12, "u": 12}
"""As many partitions as any number of members shares out evenly."""
MEMBERS, CLASSIC, LENGTH, SHOWN = 4, 2, 60, 8
READY_S = 60.0
_PAUSE_S = 0.02
_INTERVAL = "consumer.assignment.interval.ms"
_HAS_INTERVALS = not KAFKA_VERSION.startswith("4.2.")
_OF_TRANSACTIONS = 1
_OF_GROUPS = 32
"""The type of resource that configs of groups are of."""
_WEIGHTS = {
    "heartbeat": 20,
    "join": 8,
    "leave": 3,
    "commit": 6,
    "transactional_commit": 4,
    "end_transaction": 2,
    "interval": 2,
    "fetch": 3,
    "describe": 3,
    "list": 1,
    "delete": 1,
    "classic_join": 5,
    "classic_heartbeat": 4,
    "classic_leave": 2,
}

Request = tuple[str, int, Mapping[str, Any]]
"""The kind, the number of the member, and what else was drawn."""


class Side:
    """One server, and what its members know. All of a group is asked on one connection."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.topic_ids: dict[str, UUID] = {}
        self.client: Client | None = None

    async def begin(self, group: str) -> None:
        """Begin with a group that there is not."""
        if self.client is None:
            self.client = await Client.connect_to(self.port)
        self.group = WireGroup(self.client, group)
        self.epochs = [0] * MEMBERS
        self.ids = [f"m{number}" for number in range(MEMBERS)]
        self.count = itertools.count(MEMBERS)
        self.owned: list[dict[UUID, list[int]]] = [{} for _ in range(MEMBERS)]
        self.told: list[dict[UUID, list[int]]] = [{} for _ in range(MEMBERS)]
        self.classic_ids = [""] * CLASSIC
        self.generations = [-1] * CLASSIC
        if _HAS_INTERVALS:
            await self._interval(0, {"interval_ms": 0})
        while True:
            given = {"transactional_id": group, "transaction_timeout": 60_000}
            self.producer = await self._asked(22, 4, "InitProducerIdRequest", **given)
            if self.producer.error_code is ErrorCode.none:
                break
            names = {"key_type": _OF_TRANSACTIONS, "coordinator_keys": (group,)}
            await self._asked(10, 6, "FindCoordinatorRequest", **names)
            await asyncio.sleep(_PAUSE_S)

    async def ask(self, request: Request) -> Any:
        """Send a request, and return what is compared of its response."""
        kind, number, drawn = request
        handler: Callable[[int, Mapping[str, Any]], Awaitable[Any]] = getattr(self, f"_{kind}")
        return await handler(number, drawn)

    async def _heartbeat(self, number: int, drawn: Mapping[str, Any]) -> Any:
        if drawn["adopts"]:
            self.owned[number] = self.told[number]
        fields: dict[str, Any] = {}
        if drawn["says_owned"]:
            fields["owned"] = self.owned[number]
        if drawn["topics"] is not None:
            fields["subscribed_topic_names"] = drawn["topics"]
        epoch = self.epochs[number] + drawn["off"]
        return await self._sent(number, epoch, drawn, fields)

    async def _join(self, number: int, drawn: Mapping[str, Any]) -> Any:
        if drawn["renews"]:
            self.ids[number] = f"m{next(self.count)}"
        self.owned[number] = {}
        fields = {
            "rebalance_timeout": 60_000,
            "owned": {},
            "subscribed_topic_names": drawn["topics"] or ("t",),
            "server_assignor": drawn["assignor"],
        }
        return await self._sent(number, 0, drawn, fields)

    async def _leave(self, number: int, drawn: Mapping[str, Any]) -> Any:
        self.owned[number] = {}
        return await self._sent(number, drawn["epoch"], drawn, {})

    async def _sent(
        self, number: int, epoch: int, drawn: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Any:
        response = await self.group.heartbeat(
            self.ids[number], epoch, instance_id=drawn["instance"], **fields
        )
        if response.error_code is ErrorCode.none:
            self.epochs[number] = max(response.member_epoch, 0)
            if response.assignment is not None:
                self.told[number] = {
                    topic.topic_id: sorted(topic.partitions)
                    for topic in response.assignment.topic_partitions
                }
        elif response.error_code in {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}:
            self.epochs[number], self.owned[number], self.told[number] = 0, {}, {}
        return response.error_code.name, response.error_message, response.member_epoch

    async def _commit(self, number: int, drawn: Mapping[str, Any]) -> Any:
        member_id, epoch = self._committer(number, drawn)
        code = await self.group.commit(member_id, epoch, version=drawn["version"], topic="t")
        return code.name

    async def _transactional_commit(self, number: int, drawn: Mapping[str, Any]) -> Any:
        """Commit by a producer in the name of a member, or of none."""
        member_id, epoch = self._committer(number, drawn)
        module = schema(28, drawn["transactional_version"]).request_module
        partition = entity(
            module,
            "TxnOffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=5,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topic = entity(module, "TxnOffsetCommitRequestTopic", name="t", partitions=(partition,))
        while True:
            answer = await self._asked(
                *(28, drawn["transactional_version"], "TxnOffsetCommitRequest"),
                transactional_id=self.group.name,
                group_id=self.group.name,
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.producer_epoch,
                generation_id=epoch,
                member_id=member_id,
                group_instance_id=drawn["instance"] if drawn["says_instance"] else None,
                topics=(topic,),
            )
            code = answer.topics[0].partitions[0].error_code
            if code is not ErrorCode.concurrent_transactions:  # the one before is ending
                return code.name
            await asyncio.sleep(_PAUSE_S)

    async def _end_transaction(self, number: int, drawn: Mapping[str, Any]) -> Any:
        while True:
            answer = await self._asked(
                *(26, 5, "EndTxnRequest"),
                transactional_id=self.group.name,
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.producer_epoch,
                committed=drawn["is_commit"],
            )
            if answer.error_code is not ErrorCode.concurrent_transactions:
                break
            await asyncio.sleep(_PAUSE_S)
        if answer.error_code is ErrorCode.none:
            self.producer = answer
        return answer.error_code.name

    async def _interval(self, number: int, drawn: Mapping[str, Any]) -> Any:
        """Set the group's interval between assignments; return when the coordinator has it."""
        value = str(drawn["interval_ms"])
        module = schema(44, 1).request_module
        config = entity(module, "AlterableConfig", name=_INTERVAL, config_operation=0, value=value)
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=_OF_GROUPS,
            resource_name=self.group.name,
            configs=(config,),
        )
        changed = await self._asked(
            *(44, 1, "IncrementalAlterConfigsRequest"), resources=(resource,), validate_only=False
        )
        module = schema(32, 4).request_module
        wanted = entity(
            module,
            "DescribeConfigsResource",
            resource_type=_OF_GROUPS,
            resource_name=self.group.name,
            configuration_keys=(_INTERVAL,),
        )
        shown = ""
        while shown != value:
            answer = await self._asked(32, 4, "DescribeConfigsRequest", resources=(wanted,))
            shown = answer.results[0].configs[0].value
        return changed.responses[0].error_code.name

    async def _asked(self, key: int, version: int, name: str, **fields: Any) -> Any:
        return await self.group.ask(key, version, lambda module: entity(module, name, **fields))

    def _committer(self, number: int, drawn: Mapping[str, Any]) -> tuple[str, int]:
        if drawn["is_nobody"]:
            return "", -1
        if drawn["is_classic"]:
            number %= CLASSIC
            return self.classic_ids[number], self.generations[number] + drawn["off"]
        return self.ids[number], self.epochs[number] + drawn["off"]

    async def _fetch(self, number: int, drawn: Mapping[str, Any]) -> Any:
        member_id, epoch = self._committer(number, drawn)
        return (await self.group.fetch(member_id or None, epoch)).name

    async def _describe(self, number: int, drawn: Mapping[str, Any]) -> Any:
        group = await self.group.described()
        subscriptions = {tuple(sorted(member.subscribed_topic_names)) for member in group.members}
        is_even = group.group_state == "Stable" and len(subscriptions) == 1
        members = sorted(
            (
                "classic" if member.member_id in self.classic_ids else member.member_id,
                member.instance_id,
                member.member_epoch,
                sorted(member.subscribed_topic_names),
                is_even
                and sum(len(topic.partitions) for topic in member.assignment.topic_partitions),
                member.member_type,
            )
            for member in group.members
        )
        return (
            *(group.error_code.name, group.error_message, group.group_state),
            *(group.group_epoch, group.assignment_epoch, group.assignor_name, members),
        )

    async def _list(self, number: int, drawn: Mapping[str, Any]) -> Any:
        return await self.group.listed()

    async def _delete(self, number: int, drawn: Mapping[str, Any]) -> Any:
        return (await self.group.delete()).name

    async def _classic_join(self, number: int, drawn: Mapping[str, Any]) -> Any:
        """Join, and get the assignment: as the leader of a classic group, too."""
        number %= CLASSIC
        joined = await self.group.classic_join(self.classic_ids[number], metadata=subscription("t"))
        if joined.error_code is ErrorCode.member_id_required:
            joined = await self.group.classic_join(joined.member_id, metadata=subscription("t"))
        if joined.error_code is not ErrorCode.none:
            self.classic_ids[number] = ""
            return joined.error_code.name
        self.classic_ids[number] = joined.member_id
        self.generations[number] = joined.generation_id
        assignments = {member.member_id: b"" for member in joined.members}
        synced = await self.group.sync(joined.member_id, joined.generation_id, assignments)
        return joined.generation_id, bool(joined.leader), synced.error_code.name

    async def _classic_heartbeat(self, number: int, drawn: Mapping[str, Any]) -> Any:
        number %= CLASSIC
        code = await self.group.classic_heartbeat(
            self.classic_ids[number], self.generations[number] + drawn["off"]
        )
        return code.name

    async def _classic_leave(self, number: int, drawn: Mapping[str, Any]) -> Any:
        number %= CLASSIC
        member_id, self.classic_ids[number] = self.classic_ids[number], ""
        return (await self.group.classic_leave(member_id)).name

    async def prepare(self) -> None:
        """Make the topics, and return when the coordinator knows them."""
        await self.begin("first")
        for name, count in TOPICS.items():
            module = schema(19, 5).request_module
            topic = entity(
                module,
                "CreatableTopic",
                name=name,
                num_partitions=count,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            assert self.client is not None
            await self.client.ask(
                *(19, 5), entity(module, "CreateTopicsRequest", topics=(topic,), timeout=30_000)
            )

        def find(module: Any) -> Any:
            return entity(module, "FindCoordinatorRequest", key_type=0, coordinator_keys=("first",))

        async with asyncio.timeout(READY_S):
            for number in itertools.count():
                await self.group.ask(10, 6, find)
                await self.begin(f"first-{number}")
                wanted = ("t", "u")
                answer = await self.group.join("m", subscribed_topic_names=wanted)
                if answer.assignment is not None and len(answer.assignment.topic_partitions) == 2:
                    return
                await asyncio.sleep(0.2)


class Draw:
    """Draws the requests about one group."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._instances = [f"i{n}" if rng.random() < 0.3 else None for n in range(MEMBERS)]
        self._weights = dict(_WEIGHTS)
        if not _HAS_INTERVALS:
            self._weights["interval"] = 0
        self._has_classic = rng.random() < 0.5
        if not self._has_classic:
            self._weights |= {"classic_join": 0, "classic_heartbeat": 0, "classic_leave": 0}

    def draw(self) -> Request:
        rng = self._rng
        kind = rng.choices(list(self._weights), list(self._weights.values()))[0]
        number = rng.randrange(MEMBERS)
        instance = self._instances[number]
        leaving = self._mostly(-1, -2) if instance is None else rng.choice([-1, -2, -2])
        return (
            kind,
            number,
            {
                "adopts": self._mostly(True, False, rarity=0.2),
                "says_owned": self._mostly(True, False, rarity=0.3),
                "topics": self._mostly(None, ("t",), ("t", "u"), ("t", "none"), rarity=0.06),
                "off": self._mostly(0, 1, -1),
                "instance": self._mostly(instance, "i0", None, rarity=0.03),
                "renews": instance is not None or rng.random() < 0.1,
                "assignor": self._mostly(None, "range", "uniform", "none", rarity=0.2),
                "epoch": self._mostly(leaving, -3, rarity=0.03),
                "version": self._mostly(9, 8, rarity=0.1),
                "is_nobody": self._mostly(False, True, rarity=0.15),
                "is_classic": self._has_classic and rng.random() < 0.3,
                "transactional_version": self._mostly(5, 3, 4, rarity=0.1),
                "says_instance": rng.random() < 0.3,
                "is_commit": rng.random() < 0.5,
                "interval_ms": rng.choice([0, 15_000]),
            },
        )

    def _mostly(self, usual: Any, *rare: Any, rarity: float = 0.06) -> Any:
        return self._rng.choice(rare) if self._rng.random() < rarity else usual


def main() -> None:
    """Run as the arguments say; status 1 if a response differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=20, help="groups to ask about")
    given = parser.parse_args()
    sys.exit(asyncio.run(_run(given.seed, given.groups)))


async def _run(seed: int, groups: int) -> bool:
    delay = {"group.initial.rebalance.delay.ms": "0"}
    here = {} if _HAS_INTERVALS else {"group_consumer_assignment_interval_ms": 0}
    async with group_servers(seed, delay, **here) as (theirs, ours):
        sides = [Side("Kafka", theirs), Side("Lakehead", ours)]
        for side in sides:
            await side.prepare()
        return await _compare(sides, seed, groups)


async def _compare(sides: Sequence[Side], seed: int, groups: int) -> bool:
    asked = different = known = 0
    began = time.monotonic()
    for number in range(groups):
        for side in sides:
            await side.begin(f"g{seed}-{number}")
        draw = Draw(random.Random(f"{seed}-{number}"))
        trail: list[tuple[Request, Any]] = []
        for _ in range(LENGTH):
            request = draw.draw()
            theirs, ours = [await side.ask(request) for side in sides]
            asked += 1
            trail.append((request, theirs))
            if theirs != ours and _is_by_choice(request, theirs, ours):
                known += 1
                break
            if theirs != ours:
                different += 1
                print(f"group {number}:")
                for one, answer in trail[-SHOWN:]:
                    print(f"  {one}\n    {answer}")
                print(f"  here {ours}", flush=True)
                break
    spent = time.monotonic() - began
    compared = f"{asked} requests about {groups} groups in {spent:.0f} s"
    print(f"{compared}: {different} differ, {known} by choice")
    return different > 0


def _is_by_choice(request: Request, theirs: Any, ours: Any) -> bool:
    """Return true if only member epochs differ: a member that has partitions to give back stays in
    its epoch until then, and each server chooses which ones those are. Kafka fails inside on an
    OffsetFetch with an epoch and no member.
    """
    if request[0] == "fetch":
        return bool(theirs == "unknown_server_error" and ours == "unknown_member_id")
    if request[0] == "classic_join":
        return isinstance(theirs, tuple) and isinstance(ours, tuple) and theirs[1:] == ours[1:]
    if request[0] in {"heartbeat", "join"}:
        return bool(theirs[:2] == ours[:2] and theirs[0] == "none")
    if request[0] != "describe":
        return False
    told = [(m[:2], m[3], m[5:]) for m in theirs[6]]
    return bool(theirs[:2] == ours[:2] and told == [(m[:2], m[3], m[5:]) for m in ours[6]])


if __name__ == "__main__":
    main()
