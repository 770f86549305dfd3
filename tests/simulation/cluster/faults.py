"""What befalls the nodes of a simulated cluster, their network and their store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING

from lakehead.storage.object_store.faulty import FaultProfile
from tests.simulation.world import CALM, HOUR_MS

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld, Machine
    from tests.simulation.cluster.member import Member

GONE = FaultProfile(unavailable=1.0, latency_s_max=0.1)
ROUGH = FaultProfile(unavailable=0.1, lost_request=0.03, lost_response=0.05, latency_s_max=0.1)


class Faults:
    """All faults of a world; each method of the shape `of_…` is a task."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._rng = world.rng

    def heal(self) -> None:
        """Nothing fails any more, and the frozen wake."""
        self._world.network.heal()
        for machine in self._world.machines:
            machine.weather.faults, machine.weather.held = CALM, 0.0
            for member in machine.members:
                member.life.spare()
                self._thaw(member)

    async def of_node(self, machine: Machine) -> None:
        """Start a node again and again, and let each life end in one of many ways."""
        rng = self._rng
        for _ in range(rng.choice([1, 2, 3])):
            dies_at = int(10 ** rng.uniform(2.0, 4.5)) if rng.random() < 0.3 else None
            member = self._world.begin(machine, dies_at=dies_at)
            await self._wait_dead(member, rng.uniform(2.0, 30.0))
            if not member.life.is_dead:
                await self._end(machine, member)
            if rng.random() < 0.3:
                machine.clock.skew_ms += rng.choice([-2, -1, 1]) * HOUR_MS
            await asyncio.sleep(rng.choice([0.1, 1.0, 5.0, 15.0]) * rng.random())

    async def _end(self, machine: Machine, member: Member) -> None:
        rng = self._rng
        match rng.choice(["kill", "stop", "pause", "zombie", "twin", "cut off"]):
            case "stop" if member.is_serving:
                self._note(member, "is told to stop")
                member.begin(member.stop(), "stop")
                await self._wait_dead(member, 90.0)
            case "pause":
                self._note(member, "is frozen")
                member.life.freeze()
                await asyncio.sleep(rng.uniform(0.1, 15.0))
                self._thaw(member)
                await self._wait_dead(member, rng.uniform(0.1, 10.0))
            case "zombie":
                self._note(member, "is frozen, to come back")
                member.life.freeze()
                asyncio.get_running_loop().call_later(rng.uniform(0.5, 30.0), self._thaw, member)
                return
            case "twin":
                self._note(member, "gets a successor while it runs")
                return
            case "cut off":
                self._isolate(machine)
                await self._wait_dead(member, rng.uniform(1.0, 20.0))
                self._world.network.heal()
                await self._wait_dead(member, rng.uniform(0.1, 10.0))
            case _:
                pass
        if not member.life.is_dead:
            self._note(member, "is killed")
            member.life.kill()

    def _isolate(self, machine: Machine) -> None:
        """Let no other node hear from a node, or it from them; the store hears it."""
        self._world.trace.add("world", f"node {machine.node_id} is cut off")
        here = f"host-{machine.node_id}"
        directions = self._rng.choice(["both", "in", "out"])
        for other in self._world.machines:
            there = f"host-{other.node_id}"
            if there != here and directions != "in":
                self._world.network.cut(here, there)
            if there != here and directions != "out":
                self._world.network.cut(there, here)

    def _note(self, member: Member, what: str) -> None:
        self._world.trace.add(member.name, what)

    def _thaw(self, member: Member) -> None:
        if member.life.is_frozen:
            self._note(member, "thaws")
            member.life.thaw()

    async def _wait_dead(self, member: Member, most_s: float) -> None:
        if member.life.is_dead:
            return
        died = asyncio.Event()
        member.life.on_death.append(died.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await died.wait()

    async def of_network(self) -> None:
        """Now and then some lines are cut, or lose much."""
        rng, world = self._rng, self._world
        if rng.random() < 0.5:
            return
        hosts = [f"host-{machine.node_id}" for machine in world.machines]
        while True:
            await asyncio.sleep(rng.expovariate(0.1))
            if rng.random() < 0.3:
                world.network.loss = rng.uniform(0.1, 0.6)
            for source, target in permutations(hosts, 2):
                if rng.random() < 0.4:
                    world.network.cut(source, target)
            world.trace.add("world", "lines are cut")
            await asyncio.sleep(rng.uniform(0.5, 15.0))
            world.trace.add("world", "lines are whole")
            world.network.heal()

    async def of_store(self) -> None:
        """Now and then some nodes do not reach the store, or with trouble, or late."""
        rng, world = self._rng, self._world
        if rng.random() < 0.4:
            return
        while True:
            await asyncio.sleep(rng.expovariate(0.1))
            cut = [machine for machine in world.machines if rng.random() < 0.5]
            for machine in cut:
                machine.weather.faults = rng.choice([GONE, ROUGH])
                machine.weather.held, machine.weather.held_s_max = rng.choice(
                    [(0.0, 0.0), (0.1, 20.0)]
                )
            names = [machine.node_id for machine in cut]
            world.trace.add("world", f"nodes {names} have trouble with the store")
            await asyncio.sleep(rng.uniform(0.2, 12.0))
            world.trace.add("world", "the store is well")
            for machine in cut:
                machine.weather.faults, machine.weather.held = CALM, 0.0
