"""A rebalance of 100 members: from the leader's request until all have their assignment.

All take part at once; real members learn of it by their next heartbeat, which costs up to their
interval more, with any broker.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from bench.coordination._members import coordinated, members
from bench.coordination.heartbeats import DELAY
from bench.figures import Figure
from bench.lakehead_server import lakehead_server

PART = "rebalances"
SIZE = 100
TIMES = 10
LONGEST_S = 3.0


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure the longest of several rebalances."""
    taken = []
    with lakehead_server(folder, *DELAY) as server:
        await coordinated(server.port)
        everyone = await members(server.port, 1, SIZE)
        for _ in range(2 if quick else TIMES):
            began = time.monotonic()
            await asyncio.gather(*(member.rebalance() for member in everyone))
            taken.append(time.monotonic() - began)
        assert len({member.generation for member in everyone}) == 1
        for member in everyone:
            member.line.close()
    return [
        Figure(
            part=PART,
            name=f"{SIZE} members, the longest of {len(taken)}",
            value=max(taken),
            unit="s",
            goal=LONGEST_S,
            more_is_better=False,
        )
    ]
