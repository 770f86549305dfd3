"""The loads that `make bench` can put on a server, as one table.

Most differ from the first one in one property: records of 1 KiB, 4 partitions, one idempotent
producer with `acks=all`, `batch.size=16384` and `linger.ms=5`, no compression. Those are the
defaults of Kafka's Java producer.
"""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

KIB, MIB = 1 << 10, 1 << 20
SINGLE = 1
"""A `batch.size` that no second record fits in."""
TRANSACTION_COUNT = 300
LATENCY_RECORDS = 2000
PACED_S = 20.0


class Kind(StrEnum):
    """The part of a broker that a load tries, and so the way in which it is measured."""

    PRODUCE = "produce"
    """As fast as the producers go."""
    PACED = "paced"
    """One producer at a share of the full rate: its latencies count."""
    CONSUME = "consume"
    """A whole topic that was filled before."""
    LATENCY = "latency"
    """One record at a time, from send to poll."""
    TRANSACTIONS = "transactions"
    """Transactions of 100 records, one after another."""
    TAIL = "tail"
    """Consumers that read what one producer writes as fast as it goes."""
    MIXED = "mixed"
    """A paced producer while an older topic is read: the rate is the reader's, latencies are the
    producer's.
    """


class Client(StrEnum):
    """The tools that put a load on a server."""

    JAVA = "java"
    """Kafka's own."""
    LIBRDKAFKA = "librdkafka"
    """`rdkafka_performance`: less of the server's cores, and many producers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One row of the table."""

    name: str
    kind: Kind
    client: Client = Client.JAVA
    record_bytes: int = KIB
    partitions: int = 4
    producers: int = 1
    batch_bytes: int = 16 * KIB
    linger_ms: int = 5
    compression: str = "none"
    idempotent: bool = True
    transaction_ms: int = 0
    """Length of a producer's transactions; 0 for a producer without."""
    consumers: int = 0
    """Consumers that each read all records."""
    older: bool = False
    """The consumed topic has left the server's cache of recent data."""
    share: float = 0.0
    """Of the full rate: of the lower one of the servers, in the load `produce-16k`."""
    volume: float = 1.0
    """Of the bytes that a run moves, by default all."""
    core: bool = False
    """Part of a run without a choice of loads: README's table needs it."""

    def records(self, volume_bytes: int) -> int:
        """Return the number of records of a run that moves that many bytes of values."""
        match self.kind:
            case Kind.LATENCY:
                return LATENCY_RECORDS
            case Kind.TRANSACTIONS:
                return TRANSACTION_COUNT
        return max(1, int(volume_bytes * self.volume / self.record_bytes))


BASE = "produce-16k"
"""The load that has the full rate."""


def _produce(name: str, **properties: object) -> Load:
    return Load(name=f"produce-{name}", kind=Kind.PRODUCE, **properties)  # type: ignore[arg-type]


def _librdkafka(name: str, kind: Kind = Kind.PRODUCE, **properties: object) -> Load:
    return Load(
        name=f"librdkafka-{name}",
        kind=kind,
        client=Client.LIBRDKAFKA,
        **properties,  # type: ignore[arg-type]
    )


LOADS = (
    _produce("16k", core=True),
    _produce("1m", batch_bytes=MIB, core=True),
    _produce("single", batch_bytes=SINGLE, volume=0.05),
    _produce("single-linger-0", batch_bytes=SINGLE, linger_ms=0, volume=0.05),
    _produce("linger-0", linger_ms=0),
    _produce("100b", record_bytes=100, volume=0.5),
    _produce("100b-linger-0", record_bytes=100, linger_ms=0, volume=0.25),
    _produce("10k", record_bytes=10 * KIB),
    _produce("10k-1m", record_bytes=10 * KIB, batch_bytes=MIB),
    _produce("1-partition", partitions=1),
    _produce("16-partitions", partitions=16),
    _produce("1000-partitions", partitions=1000),
    *(
        _produce(codec, compression=codec, volume=0.5)
        for codec in ("gzip", "snappy", "lz4", "zstd")
    ),
    _produce("not-idempotent", idempotent=False),
    _produce("transactional", transaction_ms=100),
    Load(name="consume-recent", kind=Kind.CONSUME, consumers=1, core=True),
    Load(name="consume-older", kind=Kind.CONSUME, consumers=1, older=True, core=True),
    Load(name="consume-100b", kind=Kind.CONSUME, consumers=1, record_bytes=100, volume=0.5),
    Load(name="consume-zstd", kind=Kind.CONSUME, consumers=1, compression="zstd", volume=0.5),
    Load(name="latency", kind=Kind.LATENCY, consumers=1, core=True),
    *(
        Load(name=f"paced-{percent}", kind=Kind.PACED, share=percent / 100, core=percent != 25)
        for percent in (10, 25, 50, 80)
    ),
    Load(name="mixed", kind=Kind.MIXED, consumers=1, older=True, share=0.25),
    Load(name="transactions", kind=Kind.TRANSACTIONS, record_bytes=100, core=True),
    _librdkafka("produce-16k", core=True),
    _librdkafka("produce-1m", batch_bytes=MIB, core=True),
    _librdkafka("produce-4-producers", producers=4),
    _librdkafka("produce-10-producers", producers=10),
    _librdkafka("produce-100-producers", producers=100),
    *(
        _librdkafka(
            f"produce-100b-linger-0-{count}-producers",
            record_bytes=100,
            linger_ms=0,
            producers=count,
            volume=0.25,
        )
        for count in (1, 10, 100)
    ),
    _librdkafka("produce-1000-partitions-100-producers", partitions=1000, producers=100),
    _librdkafka("consume-recent", Kind.CONSUME, consumers=1, core=True),
    _librdkafka("consume-older", Kind.CONSUME, consumers=1, older=True, core=True),
    _librdkafka("tail-1", Kind.TAIL, consumers=1),
    _librdkafka("tail-5", Kind.TAIL, consumers=5, volume=0.5),
)


class NoSuchLoad(Exception):
    """A chosen name that the table does not have. The message is one line for the user."""


def chosen(names: str, table: Iterable[Load] = LOADS) -> tuple[Load, ...]:
    """Return loads in the table's order: `core`, `all`, names, patterns (`produce-*`), or several
    of these between commas. The load of the full rate comes with those that need it.

    Raises NoSuchLoad.
    """
    loads = tuple(table)
    wanted: set[str] = set()
    for pattern in (names or "core").split(","):
        if pattern == "core":
            found = {load.name for load in loads if load.core}
        elif pattern == "all":
            found = {load.name for load in loads}
        else:
            found = set(fnmatch.filter((load.name for load in loads), pattern))
        if not found:
            known = ", ".join(load.name for load in loads)
            raise NoSuchLoad(f"LOADS={pattern}: core, all, or of these: {known}")
        wanted |= found
    if any(load.share for load in loads if load.name in wanted):
        wanted.add(BASE)
    return tuple(load for load in loads if load.name in wanted)
