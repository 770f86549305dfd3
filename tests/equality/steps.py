"""Seeded traffic: what is written, by which producers, in which order; the same for every server.

Records have times of the past, none or empty keys and values, and headers that repeat or are null.
Producers of all codecs, with and without transactions, take turns on the same partitions, so that
committed, aborted and plain records lie between each other. Between them servers are restarted.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000
RECORDS, STAMPED, COMPACTED = "records", "stamped", "compacted"
PARTITIONS = {RECORDS: 3, STAMPED: 1, COMPACTED: 1}
"""The topics of a run; the broker gives those of `STAMPED` their time."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record as the producer gives it away. Timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Records to one partition, by a producer of this codec; of a transaction if it has them.
    Their times are counted from `since_ms`.
    """

    producer: str
    codec: str
    is_transactional: bool
    topic: str
    partition: int
    records: tuple[Sent, ...]
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of the transaction that a producer has open."""

    producer: str
    commits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The server is stopped and started again: the next leader epoch."""


Step = Write | Finish | Restart
Draw = Callable[[random.Random, int], tuple[Sent, ...]]
"""Draws so many records."""
COUNTS = (1, 2, 5, 17, 60)
"""Of records in a write."""


def workload(seed: int, records: int) -> list[Step]:
    """Draw steps with about so many records, for the topics of `PARTITIONS`."""
    rng = random.Random(seed)
    left = records - 2 * (records // 8)
    steps: list[Step] = list(traffic(rng, left, COUNTS, _records, leaves_one=rng.random() < 0.5))
    for count in (records // 8, records // 8):
        steps.insert(rng.randrange(len(steps) + 1), plain(rng, STAMPED, _records(rng, count)))
    third = len(steps) // 3
    for place in (2 * third, third):
        steps.insert(place, Restart())
    return steps


def compacted_rounds(seed: int, records: int) -> list[Write]:
    """Draw rounds of records with few keys, each a minute after the one before."""
    rng = random.Random(seed)
    rounds = []
    for number in range(4):
        start = FIRST_MS + number * 60_000
        made = tuple(
            Sent(
                key=b"k%d" % rng.randrange(max(records // 12, 2)),
                value=None if rng.random() < 0.2 else b"%d/%d" % (number, n),
                headers=drawn_headers(rng),
                timestamp=start + n,
            )
            for n in range(records // 4)
        )
        rounds.append(plain(rng, COMPACTED, made))
    return rounds


def traffic(
    rng: random.Random, left: int, counts: Sequence[int], draw: Draw, *, leaves_one: bool
) -> Iterator[Step]:
    """Yield writes of `left` records in all to `RECORDS`, and ends of transactions; of those that
    are open at the end one stays so, if `leaves_one`.
    """
    opened: set[str] = set()
    while left > 0:
        if opened and rng.random() < 0.35:
            name = rng.choice(sorted(opened))
            opened.remove(name)
            yield Finish(producer=name, commits=rng.random() < 0.6)
            continue
        count = min(left, rng.choice(counts))
        left -= count
        if rng.random() < 0.5:
            yield plain(rng, RECORDS, draw(rng, count))
            continue
        name = f"transactional-{rng.randrange(len(CODECS))}"
        opened.add(name)
        partition = rng.randrange(PARTITIONS[RECORDS])
        yield _write(CODECS[int(name[-1])], name, RECORDS, partition, draw(rng, count))
    for name in sorted(opened)[leaves_one:]:
        yield Finish(producer=name, commits=rng.random() < 0.6)


def plain(rng: random.Random, topic: str, made: Sequence[Sent]) -> Write:
    """Return a write of these records without a transaction."""
    return _write(rng.choice(CODECS), "", topic, rng.randrange(PARTITIONS[topic]), made)


def _write(codec: str, name: str, topic: str, partition: int, made: Sequence[Sent]) -> Write:
    return Write(
        producer=name or f"plain-{codec}",
        codec=codec,
        is_transactional=bool(name),
        topic=topic,
        partition=partition,
        records=tuple(made),
    )


def _records(rng: random.Random, count: int) -> tuple[Sent, ...]:
    return tuple(_record(rng) for _ in range(count))


def _record(rng: random.Random) -> Sent:
    sizes = (1, 10, 100, 3000)
    return Sent(
        key=rng.choice((None, b"", b"k%d" % rng.randrange(50), rng.randbytes(9))),
        value=rng.choice(
            (None, b"", b"word " * rng.choice(sizes), rng.randbytes(rng.choice(sizes)))
        ),
        headers=drawn_headers(rng),
        timestamp=FIRST_MS + rng.randrange(1_000_000),
    )


def drawn_headers(rng: random.Random) -> tuple[Header, ...]:
    """Return no, one or three headers; names repeat, values may be null."""
    values = (None, b"", b"1", b"value")
    names = ("a", "a", "b", "", "é")
    return tuple((rng.choice(names), rng.choice(values)) for _ in range(rng.choice((0, 0, 1, 3))))
