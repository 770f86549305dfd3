"""Seeded traffic: what is written, by which producers, in which order; the same for every server.

Records have times of the past, none or empty keys and values, and headers that repeat or are null.
Producers of all codecs, with and without transactions, take turns on the same partitions, so that
committed, aborted and plain records lie between each other. Between them servers are restarted.
"""

import random
from collections.abc import Iterator, Sequence
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
    """Records to one partition, by a producer of this codec; of a transaction if it has them."""

    producer: str
    codec: str
    is_transactional: bool
    topic: str
    partition: int
    records: tuple[Sent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of the transaction that a producer has open."""

    producer: str
    commits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The server is stopped and started again: the next leader epoch."""


Step = Write | Finish | Restart


def workload(seed: int, records: int) -> list[Step]:
    """Draw steps with about so many records, for the topics of `PARTITIONS`."""
    rng = random.Random(seed)
    left = records - 2 * (records // 8)
    steps: list[Step] = list(_traffic(rng, left))
    for count in (records // 8, records // 8):
        steps.insert(rng.randrange(len(steps) + 1), _plain(rng, STAMPED, count))
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
                headers=_headers(rng),
                timestamp=start + n,
            )
            for n in range(records // 4)
        )
        rounds.append(_write(rng.choice(CODECS), "", COMPACTED, 0, made))
    return rounds


def _traffic(rng: random.Random, left: int) -> Iterator[Step]:
    """Writes and ends of transactions; one may stay open at the end."""
    opened: set[str] = set()
    while left > 0:
        if opened and rng.random() < 0.35:
            name = rng.choice(sorted(opened))
            opened.remove(name)
            yield Finish(producer=name, commits=rng.random() < 0.6)
            continue
        count = min(left, rng.choice((1, 2, 5, 17, 60)))
        left -= count
        if rng.random() < 0.5:
            yield _plain(rng, RECORDS, count)
            continue
        name = f"transactional-{rng.randrange(len(CODECS))}"
        opened.add(name)
        made = tuple(_record(rng) for _ in range(count))
        yield _write(CODECS[int(name[-1])], name, RECORDS, rng.randrange(PARTITIONS[RECORDS]), made)
    keeps_one = rng.random() < 0.5
    for name in sorted(opened)[keeps_one:]:
        yield Finish(producer=name, commits=rng.random() < 0.6)


def _plain(rng: random.Random, topic: str, count: int) -> Write:
    made = tuple(_record(rng) for _ in range(count))
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


def _record(rng: random.Random) -> Sent:
    sizes = (1, 10, 100, 3000)
    return Sent(
        key=rng.choice((None, b"", b"k%d" % rng.randrange(50), rng.randbytes(9))),
        value=rng.choice(
            (None, b"", b"word " * rng.choice(sizes), rng.randbytes(rng.choice(sizes)))
        ),
        headers=_headers(rng),
        timestamp=FIRST_MS + rng.randrange(1_000_000),
    )


def _headers(rng: random.Random) -> tuple[Header, ...]:
    values = (None, b"", b"1", b"value")
    names = ("a", "a", "b", "", "é")
    return tuple((rng.choice(names), rng.choice(values)) for _ in range(rng.choice((0, 0, 1, 3))))
