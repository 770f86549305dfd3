"""Shares of a pool of memory: a client that gives nothing back leaves room for all others."""

import asyncio
from collections.abc import Callable

from lakehead.broker.network.memory_shares import Holding, MemoryShares
from lakehead.storage.memory_pool import MemoryPool

CAPACITY = 1200


class Shares:
    """Clients that hold what they are let in for."""

    def __init__(self) -> None:
        self.pool = MemoryPool(CAPACITY)
        self.shares = MemoryShares(self.pool)
        self.order: list[str] = []

    def client(self, name: str) -> Holding:
        return Holding(self.shares, lambda: (name, "10.0.0.1"))

    def fill(self, client: Holding, size: int) -> None:
        """Take this much for a client again and again, until it waits."""
        while self.shares.admit(client, size, lambda: None) is None:
            pass

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.order.append(name)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_client_has_half_and_two_have_a_third_each() -> None:
    shares = Shares()
    first, second = shares.client("a"), shares.client("b")
    shares.fill(first, 10)
    assert first.share.held == CAPACITY // 2
    shares.fill(second, 10)
    assert second.share.held == CAPACITY // 4
    first.give_back(600)
    await turns(100)
    assert shares.shares.waiting == 0
    shares.fill(first, 10)
    shares.fill(second, 10)
    assert CAPACITY // 3 <= first.share.held <= CAPACITY // 2
    assert first.share.held + second.share.held < CAPACITY


async def test_each_client_leaves_something_free_and_all_together_keep_within_the_memory() -> None:
    shares = Shares()
    for number in range(100):
        free = CAPACITY - shares.pool.used
        shares.fill(shares.client(str(number)), 1)
        assert shares.pool.used - (CAPACITY - free) <= (free + 1) // 2
    assert shares.pool.used <= CAPACITY


async def test_clients_take_turns_and_each_waits_in_its_own_order() -> None:
    shares = Shares()
    hog = shares.client("hog")
    hog.take(CAPACITY)
    for name in ("a1", "a2", "a3", "b1", "b2"):
        assert shares.shares.admit(shares.client(name[0]), 1, shares.note(name))
    await turns()
    assert shares.order == []
    hog.give_back(CAPACITY)
    await turns(20)
    assert shares.order == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_request_that_leaves_gets_no_turn() -> None:
    shares = Shares()
    hog = shares.client("hog")
    hog.take(CAPACITY)
    client = shares.client("a")
    waits = [shares.shares.admit(client, 1, shares.note(str(number))) for number in range(3)]
    for wait in waits[:2]:
        assert wait is not None
        shares.shares.leave(wait)
    hog.give_back(CAPACITY)
    await turns()
    assert shares.order == ["2"]
    assert shares.shares.waiting == 0


async def test_memory_that_others_give_back_lets_requests_in() -> None:
    shares = Shares()
    shares.pool.take(CAPACITY)
    assert shares.shares.admit(shares.client("a"), 1, shares.note("a"))
    shares.pool.give_back(CAPACITY)
    await turns()
    assert shares.order == ["a"]


async def test_a_client_that_lets_go_of_what_others_hold_too_gets_its_turn() -> None:
    """Responses have views of one buffer, which is charged until the last client has taken it."""
    shares = Shares()
    shares.pool.take(CAPACITY // 2)
    slow, other = shares.client("a"), shares.client("a")
    slow.note(CAPACITY // 2)
    assert shares.shares.admit(other, 0, shares.note("a"))
    slow.note(-CAPACITY // 2)
    await turns()
    assert shares.order == ["a"]


async def test_requests_that_may_use_a_part_of_the_pool_hold_up_no_others_of_their_client() -> None:
    shares = Shares()
    client = shares.client("a")
    client.take(CAPACITY // 2)
    assert shares.shares.admit(client, 10, shares.note("long"), 0.75)
    assert shares.shares.admit(shares.client("b"), 10, shares.note("other"), 0.75) is None
    client.give_back(100)
    await turns()
    assert shares.order == []
    assert shares.shares.admit(client, 10, shares.note("short")) is None
    client.give_back(CAPACITY // 2 - 100)
    await turns()
    assert shares.order == ["long"]


async def test_a_connection_gives_back_to_the_share_that_it_took_from() -> None:
    shares = Shares()
    names = ["ANONYMOUS"]
    client = Holding(shares.shares, lambda: (names[-1], "10.0.0.1"))
    client.take(100)
    names.append("ann")
    client.take(100)
    assert shares.client("ANONYMOUS").share.held == 200
    client.give_back(200)
    client.take(50)
    assert shares.client("ann").share.held == 50
    assert shares.pool.used == 50
