"""A consumer group of KIP-848 with 1,000 members: until it is stable after a change, and the CPU of
a heartbeat.

Members behave as real ones: a heartbeat every second, and another at once when they have given
partitions back. The changes: all join one by one within two seconds; ten leave at once.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from kio.schema.errors import ErrorCode

from bench.coordination._members import ConsumerMember, Line, coordinated
from bench.figures import Figure
from bench.lakehead_server import lakehead_server
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity

PART = "consumer_groups"
SIZE, PARTITIONS = 1_000, 2_000
LEAVING = 10
INTERVAL_S, ARRIVAL_S = 1.0, 2.0
WATCHED_S = 15.0
STABLE_S, HEARTBEAT_US = 5.0, 1_000.0
LIMIT_S = 120.0
TOPIC, GROUP = "watched", "watchers"
_CREATE = (19, 5)
FLAGS = ("--group.consumer.heartbeat.interval.ms", str(int(INTERVAL_S * 1000)))


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure a group of many members."""
    size = SIZE // 10 if quick else SIZE
    with lakehead_server(folder, *FLAGS) as server:
        await coordinated(server.port)
        await _create_topic(server.port)
        everyone = [
            ConsumerMember(await Line.to(server.port), GROUP, f"m{number}", TOPIC)
            for number in range(size)
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
