"""Heartbeats of 500 groups of 4 members on one node, each member every 3 s: the node's CPU."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from bench.coordination._members import Member, coordinated, members
from bench.figures import Figure
from bench.lakehead_server import lakehead_server

PART = "heartbeats"
GROUPS, SIZE = 500, 4
INTERVAL_S = 3.0
WATCHED_S = 30.0
CPU_PERCENT = 25.0
DELAY = ("--group.initial.rebalance.delay.ms", "500")
"""So that members that come together are in one generation."""


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure the CPU of a node whose groups are all stable."""
    watched_s = 6.0 if quick else WATCHED_S
    with lakehead_server(folder, *DELAY) as server:
        await coordinated(server.port)
        everyone = await members(server.port, GROUPS, SIZE)
        idle = server.usage().cpu_seconds
        await asyncio.sleep(watched_s / 3)
        idle = (server.usage().cpu_seconds - idle) / (watched_s / 3)
        used = server.usage().cpu_seconds
        await _beat(everyone, watched_s)
        used = (server.usage().cpu_seconds - used) / watched_s
        for member in everyone:
            member.line.close()
    what = f"{GROUPS} groups of {SIZE}, every {INTERVAL_S:g} s"
    return [
        _figure(f"{what}: CPU of the node", used * 100, CPU_PERCENT),
        _figure("the same members, silent: CPU of the node", idle * 100, None),
    ]


async def _beat(everyone: Sequence[Member], seconds: float) -> None:
    """Every member at its own time of the interval, as real ones come to be."""
    rounds = max(1, round(seconds / INTERVAL_S))

    async def beats(member: Member, delay: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time() + delay
        for number in range(rounds):
            await asyncio.sleep(max(0.0, began + number * INTERVAL_S - loop.time()))
            await member.heartbeat()

    async with asyncio.TaskGroup() as tasks:
        for number, member in enumerate(everyone):
            tasks.create_task(beats(member, number / len(everyone) * INTERVAL_S))


def _figure(name: str, value: float, goal: float | None) -> Figure:
    return Figure(
        part=PART, name=name, value=value, unit="% of a core", goal=goal, more_is_better=False
    )
