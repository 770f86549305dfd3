"""Of several loads one goes on in each turn of the event loop, each as often as the others."""

import asyncio
from collections import Counter

from lakehead.broker.coordinator.load_turns import LoadTurns


async def test_one_load_goes_on_in_each_turn_and_none_waits_for_a_cancelled_one() -> None:
    turns, done = LoadTurns(), list[int]()

    async def load(number: int) -> None:
        for _ in range(5):
            await turns.give_way()
            done.append(number)

    loads = [asyncio.create_task(load(number)) for number in range(8)]
    await asyncio.sleep(0)
    loads[3].cancel()
    while not all(one.done() for one in loads):
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) <= before + 1
        counts = Counter(done)
        present = [counts[number] for number in range(8) if number != 3]
        assert max(present) - min(present) <= 1
    assert len(done) == 7 * 5
    await load(9)
    assert done[-1] == 9
