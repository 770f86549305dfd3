"""Handshakes of TLS: a flood from some addresses costs clients at others nothing."""

import asyncio
from dataclasses import dataclass, field

from lakehead.broker.network.handshakes import Handshakes


class World:
    """A clock that moves while handshakes are worked on, and the order of steps."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.steps: list[str] = []
        self.handshakes = Handshakes(most, lambda: self.now)

    def one(self, client_host: str) -> "One":
        one = One(self, client_host)
        self.handshakes.begin(one)
        return one


@dataclass(eq=False)
class One:
    """A handshake whose step takes a millisecond."""

    world: World
    client_host: str
    is_closed: bool = field(default=False)

    def take_step(self) -> None:
        self.world.now += 0.001
        self.world.steps.append(self.client_host)

    def abort(self) -> None:
        self.is_closed = True


async def test_addresses_take_turns_in_the_loop() -> None:
    world = World(100)
    flood = [world.one("a") for _ in range(50)]
    for one in flood:
        world.handshakes.step(one)
    honest = world.one("b")
    world.handshakes.step(honest)
    while "b" not in world.steps:
        world.now += 0.003
        await asyncio.sleep(0.001)
    assert len(world.steps) <= 3


async def test_the_address_with_the_most_makes_room() -> None:
    world = World(4)
    honest = world.one("honest")
    world.handshakes.step(honest)
    flood = [world.one("flood") for _ in range(20)]
    assert not honest.is_closed
    assert [one.is_closed for one in flood] == [True] * 17 + [False] * 3
    assert world.handshakes.begun == 4
    assert world.handshakes.evicted_total == 17


async def test_one_that_waits_for_its_client_makes_room_for_one_that_waits_for_the_node() -> None:
    world = World(3)
    first = world.one("a")
    world.handshakes.step(first)  # which takes a step, so that the next ones wait for the loop
    ready = world.one("a")
    world.handshakes.step(ready)
    silent = world.one("a")
    newest = world.one("a")
    assert [one.is_closed for one in (first, ready, silent, newest)] == [True, False, False, False]
    world.one("a")
    assert silent.is_closed
    assert not ready.is_closed


async def test_handshakes_that_end_leave_nothing() -> None:
    world = World(10)
    every = [world.one(f"10.0.0.{number % 3}") for number in range(9)]
    for one in every:
        world.handshakes.step(one)
    for one in every:
        world.handshakes.end(one)
        world.handshakes.end(one)
    assert world.handshakes.begun == 0
    world.now += 1
    await asyncio.sleep(0.01)
    assert len(world.steps) == 1
    last = world.one("x")
    world.handshakes.step(last)
    assert world.steps[1:] == ["x"]
