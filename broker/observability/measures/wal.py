"""The write-ahead log: what is on its way, what is not trimmed; for an object WAL, its puts."""

from collections.abc import Callable

from lakehead.broker.observability.measures.measure import Values, counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.wal.object import ObjectWal, ObjectWalStats


def _objects(value: Callable[[ObjectWalStats], float]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        return value(node.wal.stats) if isinstance(node.wal, ObjectWal) else None

    return read


MEASURES = (
    gauge(
        "wal_pending_bytes",
        "Bytes appended that are not durable yet.",
        lambda n: n.wal.pending_bytes,
    ),
    gauge(
        "wal_used_bytes",
        "Bytes appended that are not trimmed: what recovery would read.",
        lambda n: n.wal.next_position - n.wal.trimmed_position,
    ),
    gauge("wal_capacity_bytes", "Bytes the log can hold.", lambda n: n.wal.capacity),
    counter(
        "wal_appended_bytes",
        "Object WAL: bytes of record batches appended.",
        _objects(lambda s: s.appended_bytes),
    ),
    counter("wal_puts", "Object WAL: puts, repeated ones included.", _objects(lambda s: s.puts)),
    counter(
        "wal_put_bytes",
        "Object WAL: bytes of the objects, index and footer included.",
        _objects(lambda s: s.put_bytes),
    ),
    counter(
        "wal_put_retries", "Object WAL: puts that were repeated.", _objects(lambda s: s.put_retries)
    ),
    counter(
        "wal_unknown_puts",
        "Object WAL: puts of unknown outcome, timeouts and lost answers.",
        _objects(lambda s: s.put_unknown),
    ),
    counter(
        "wal_trimmed_objects",
        "Object WAL: objects deleted, or left to the sweep.",
        _objects(lambda s: s.objects_trimmed),
    ),
    gauge(
        "wal_puts_per_mib",
        "Object WAL: puts for each MiB appended, since the start; what the log costs.",
        _objects(lambda s: s.puts_per_mib),
    ),
    gauge("wal_puts_in_flight", "Object WAL: puts on their way.", _objects(lambda s: s.in_flight)),
    gauge(
        "wal_puts_in_flight_limit",
        "Object WAL: puts that may be on their way, as the store's latency asks for.",
        _objects(lambda s: s.in_flight_limit),
    ),
    gauge(
        "wal_put_latency_seconds",
        "Object WAL: how long a put takes, smoothed.",
        _objects(lambda s: s.put_latency_s),
    ),
    gauge(
        "wal_linger_seconds",
        "Object WAL: how far apart puts of small groups start; grows when the bill would.",
        _objects(lambda s: s.linger_s),
    ),
)
