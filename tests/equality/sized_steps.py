"""Traffic of gigabytes: the steps of `steps`, with records from a pool that is drawn once.

Steps are made as they are done, so no more than one write is held. Records are a millisecond
apart, give or take five seconds. Their times are of the future: markers have the time of now,
and a search for a time stops at the first that is not before it.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from tests.equality.steps import (
    COMPACTED,
    STAMPED,
    Restart,
    Sent,
    Step,
    Write,
    drawn_headers,
    plain,
    traffic,
)

COUNTS = (1, 40, 1000, 10_000)
FIRST_MS = 4_000_000_000_000
SPREAD_MS = 5000
_POOL = 2 * COUNTS[-1]
_SIZES = (0, 30, 300, 1000, 2500)


class Pool:
    """Records to draw from; values are text that compresses to about half."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"pool {seed}")
        text = rng.randbytes(1 << 20).hex().encode()
        once = tuple(_pooled(rng, text) for _ in range(_POOL))
        self.record_bytes = sum(len(one.key or b"") + len(one.value or b"") for one in once) / _POOL
        """Of keys and values, on average."""
        self._records = once + once[: COUNTS[-1]]

    def draw(self, rng: random.Random, count: int) -> tuple[Sent, ...]:
        """Draw neighbours."""
        first = rng.randrange(_POOL)
        return self._records[first : first + count]


def _pooled(rng: random.Random, text: bytes) -> Sent:
    start = rng.randrange(len(text))
    value = text[start : start + rng.choice(_SIZES)]
    return Sent(
        key=rng.choice((None, b"", b"k%d" % rng.randrange(1000), rng.randbytes(9))),
        value=None if rng.random() < 0.05 else value,
        headers=drawn_headers(rng),
        timestamp=FIRST_MS + rng.randrange(SPREAD_MS),
    )


def sized_workload(seed: int, pool: Pool, records: int) -> Iterator[Step]:
    """Yield steps with so many records to `RECORDS`, an eighth as many to `STAMPED`, and two
    restarts.
    """
    rng = random.Random(seed)
    done, restarts = 0, [records * 2 // 3, records // 3]
    for step in traffic(rng, records, COUNTS, pool.draw, leaves_one=False):
        if not isinstance(step, Write):
            yield step
            continue
        yield replace(step, since_ms=done)
        if not done or rng.random() < 1 / 8:
            yield plain(rng, STAMPED, pool.draw(rng, len(step.records)))
        done += len(step.records)
        if restarts and done >= restarts[-1]:
            restarts.pop()
            yield Restart()


def sized_rounds(seed: int, pool: Pool, records: int) -> Iterator[Write]:
    """Yield writes of so many records to `COMPACTED`, a minute after each other; there are about
    four of each key.
    """
    rng = random.Random(seed)
    count = min(COUNTS[-1], records // 8)
    for number in range(records // count):
        made = [
            replace(one, key=b"k%d" % rng.randrange(records // 4)) for one in pool.draw(rng, count)
        ]
        yield replace(plain(rng, COMPACTED, made), since_ms=number * 60_000)
