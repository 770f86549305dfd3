"""One timer for all who wait equally long: who is late is told so, in time, and nobody else."""

import asyncio

from lakehead.broker.coordinator.log import SharedTimeout
from tests.simulation.loop import SimulationLoop


class TooLate(Exception):
    """The error of this test."""


def run(seed: int) -> list[tuple[float, bool]]:
    """Return when each of 20 futures ended, and whether it was told that it is late."""
    ended: dict[int, tuple[float, bool]] = {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        patience = SharedTimeout(5.0, TooLate)
        for number in range(20):
            future: asyncio.Future[int] = loop.create_future()

            def note(done: asyncio.Future[int], number: int = number) -> None:
                ended[number] = loop.time(), isinstance(done.exception(), TooLate)

            future.add_done_callback(note)
            patience.watch(future)
            if number % 3 == 0:
                loop.call_later(2.0, future.set_result, 1)
            await asyncio.sleep(1.0 if number % 2 else 0.0)
        await asyncio.sleep(20)

    loop = SimulationLoop(seed)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return [ended[number] for number in range(20)]


def test_each_waits_as_long_as_it_may_and_no_longer() -> None:
    found = run(1)
    began = [number // 2 for number in range(20)]
    first = found[0][0] - 2.0
    for number, (when, is_late) in enumerate(found):
        assert is_late == (number % 3 != 0)
        assert abs(when - first - began[number] - (5.0 if is_late else 2.0)) < 0.01
