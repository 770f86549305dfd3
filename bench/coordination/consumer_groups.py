"""A consumer group of KIP-848 with 1,000 members: until it is stable after a change, and the CPU of
a heartbeat.

Members behave as real ones: a heartbeat every second, and another at once when they have given
partitions back. The changes: all join one by one within two seconds; ten leave at once.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from bench.coordination._members import Line, coordinated
from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity

PART = "consumer_groups"
SIZE, PARTITIONS = 1_000, 2_000
LEAVING = 10
INTERVAL_S, ARRIVAL_S = 1.0, 2.0
WATCHED_S = 15.0
STABLE_S, HEARTBEAT_US = 5.0, 1_000.0
LIMIT_S = 120.0
TOPIC, GROUP = "watched", "watchers"
_CREATE, _HEARTBEAT = (19, 5), (68, 1)
FLAGS = ("--group.consumer.heartbeat.interval.ms", str(int(INTERVAL_S * 1000)))


@dataclass(slots=True)
class ConsumerMember:
    """A member of a consumer group."""

    line: Line
    member_id: str
    epoch: int = 0
    owned: dict[Any, tuple[int, ...]] = field(default_factory=dict)

    async def heartbeat(self, *, says_all: bool = False) -> None:
        """Send a heartbeat; if it takes partitions away, another without them."""
        answer = await self._sent(says_all=says_all)
        assert answer.error_code is ErrorCode.none, answer
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return
        before = sum(map(len, self.owned.values()))
        topics = answer.assignment.topic_partitions
        self.owned = {topic.topic_id: topic.partitions for topic in topics}
        if sum(map(len, self.owned.values())) < before:
            await self.heartbeat(says_all=True)

    async def leave(self) -> None:
        """Leave the group."""
        self.epoch = -1
        await self._sent(says_all=False)

    async def _sent(self, *, says_all: bool) -> Any:
        module = schema(*_HEARTBEAT).request_module
        is_joining = self.epoch == 0
        owned = [
            entity(module, "TopicPartitions", topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in self.owned.items()
        ]
        request = entity(
            module,
            "ConsumerGroupHeartbeatRequest",
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout=60_000 if is_joining else -1,
            subscribed_topic_names=(TOPIC,) if is_joining else None,
            topic_partitions=owned if is_joining or says_all else None,
        )
        frame = await self.line.ask(encode_request(*_HEARTBEAT, 1, request))
        return entity_reader(schema(*_HEARTBEAT).response_class)(frame, 5)[0]


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure a group of many members."""
    size = SIZE // 10 if quick else SIZE
    with lakehead_server(folder, *FLAGS) as server:
        await coordinated(server.port)
        await _create_topic(server.port)
        everyone = [
            ConsumerMember(await Line.to(server.port), f"m{number}") for number in range(size)
        ]
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, member in enumerate(everyone):
                tasks.create_task(_join(member, number / size * ARRIVAL_S))
        joined = await _until_stable(everyone, began)
        used = server.usage().cpu_seconds
        count = await _beat(everyone, WATCHED_S / 3 if quick else WATCHED_S)
        cpu_us = (server.usage().cpu_seconds - used) / count * 1e6
        leaving, staying = everyone[:LEAVING], everyone[LEAVING:]
        began = time.monotonic()
        await asyncio.gather(*(member.leave() for member in leaving))
        left = await _until_stable(staying, began)
        for member in everyone:
            member.line.close()
    what = f"{size} members, {PARTITIONS} partitions"
    return [
        _figure(f"{what}: stable after all joined within {ARRIVAL_S:g} s", joined, "s", STABLE_S),
        _figure(f"{what}: stable after {LEAVING} left", left, "s", STABLE_S),
        _figure(f"{what}: CPU of a heartbeat", cpu_us, "us", HEARTBEAT_US),
    ]


async def _create_topic(port: int) -> None:
    module = schema(*_CREATE).request_module
    topic = entity(
        module,
        "CreatableTopic",
        name=TOPIC,
        num_partitions=PARTITIONS,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    request = entity(module, "CreateTopicsRequest", topics=(topic,), timeout=60_000)
    line = await Line.to(port)
    answer = await line.ask_for(_CREATE, request)
    assert answer.topics[0].error_code is ErrorCode.none, answer
    line.close()


async def _join(member: ConsumerMember, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    await member.heartbeat()


async def _until_stable(everyone: Sequence[ConsumerMember], began: float) -> float:
    """Have every member send heartbeats; return the seconds until all partitions are given out, and
    all members are in one epoch.
    """
    loops = [
        asyncio.ensure_future(_beats(member, number / len(everyone) * INTERVAL_S))
        for number, member in enumerate(everyone)
    ]
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                await asyncio.sleep(0.02)
                owned = sum(len(p) for member in everyone for p in member.owned.values())
                if owned == PARTITIONS and len({member.epoch for member in everyone}) == 1:
                    return time.monotonic() - began
                for loop in loops:
                    if loop.done():
                        loop.result()
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def _beats(member: ConsumerMember, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    while True:
        await asyncio.shield(member.heartbeat())
        await asyncio.sleep(INTERVAL_S)


async def _beat(everyone: Sequence[ConsumerMember], seconds: float) -> int:
    """Send heartbeats of a stable group; return how many."""
    rounds = max(1, round(seconds / INTERVAL_S))

    async def beats(member: ConsumerMember, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for _ in range(rounds):
            await member.heartbeat()
            await asyncio.sleep(INTERVAL_S)

    async with asyncio.TaskGroup() as tasks:
        for number, member in enumerate(everyone):
            tasks.create_task(beats(member, number / len(everyone) * INTERVAL_S))
    return rounds * len(everyone)


def _figure(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=False)
