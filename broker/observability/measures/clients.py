"""What clients do: connections, requests, batches."""

from lakehead.broker.observability.measures.measure import counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.memory_pool import MemoryPool
from lakehead.storage.stream.inflating import InflatedBatches


def _parts(node: ObservedNode) -> dict[str, MemoryPool | InflatedBatches]:
    """The parts of the memory for requests, by name."""
    memory = node.memory
    return {
        "frames": memory.frames,
        "responses": memory.responses,
        "inflated": memory.inflated,
        "searched": node.engine.reader.searched,
    }


MEASURES = (
    gauge("connections", "Open connections.", lambda n: len(n.server.connections)),
    gauge(
        "connections_capacity",
        "Connections that clients may have: max.connections, or fewer for want of descriptors.",
        lambda n: n.server.quotas.most,
    ),
    counter("connections_accepted", "Connections accepted.", lambda n: n.server.accepted_total),
    counter(
        "connections_refused",
        "Connections closed because there was no place: max.connections, or the descriptors.",
        lambda n: n.server.refused_total,
    ),
    counter(
        "connections_rejected",
        "Connections closed because they sent something that is no request that is served.",
        lambda n: n.server.rejected_total,
    ),
    counter(
        "connections_cut",
        "Connections closed since they held memory that others waited for; the log names them.",
        lambda n: n.server.relief.cut_total,
    ),
    gauge(
        "group_memory_bytes",
        "Memory of the groups that this node coordinates and of their members, of "
        "group.memory.size.",
        lambda n: n.groups.memory.used,
    ),
    gauge(
        "request_memory_bytes",
        "Memory in use, of request.memory.size: for requests (frames), responses that clients have "
        "not taken and cold reads for them (responses), batches of producers (inflated) and of "
        "searches for timestamps (searched) that are decompressed.",
        lambda n: {name: part.used for name, part in _parts(n).items()},
        "part",
    ),
    gauge(
        "request_memory_capacity_bytes",
        "Bounds of these parts; one request may go beyond.",
        lambda n: {name: part.capacity for name, part in _parts(n).items()},
        "part",
    ),
    gauge(
        "request_memory_waiting",
        "Requests that wait for memory; their sockets are not read.",
        lambda n: {name: part.waiting for name, part in _parts(n).items()},
        "part",
    ),
    counter(
        "request_memory_waits",
        "Requests that had to wait for memory.",
        lambda n: {name: part.waits_total for name, part in _parts(n).items()},
        "part",
    ),
    counter(
        "requests",
        "Requests, by API.",
        lambda n: dict(sorted(n.dispatcher.requests_total.items())),
        "api",
    ),
    counter(
        "requests_failed",
        "Requests that ended in an unforeseen error.",
        lambda n: n.dispatcher.failed_total,
    ),
    counter("produced_batches", "Record batches produced.", lambda n: n.counts.produced_total),
    counter(
        "fetched_partitions",
        "Partitions answered by fetch requests.",
        lambda n: n.counts.fetched_total,
    ),
    gauge("fetch_sessions", "Fetch sessions kept.", lambda n: len(n.fetch_sessions)),
    gauge("cold_reads", "Reads from the object store at work.", lambda n: len(n.cold_reads)),
    gauge("topics", "Topics of the cluster.", lambda n: len(n.topics.by_name)),
    gauge(
        "writable",
        "1 while producers are read from, 0 while they wait for the WAL or the object store.",
        lambda n: float(n.is_writable()),
    ),
    gauge(
        "event_loop_lag_seconds",
        "How late the event loop was at its last tick.",
        lambda n: n.server.lag_s,
    ),
    gauge(
        "event_loop_lag_max_seconds",
        "How late the event loop ever was at a tick.",
        lambda n: n.server.lag_max_s,
    ),
)
