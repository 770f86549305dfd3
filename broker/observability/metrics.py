"""The metrics of a node for Prometheus: their declarations by subject, and their collector.

Components keep plain counts, which are read here at each scrape, so that counting costs the hot
path an addition. Names follow Prometheus: base units (seconds, bytes), a counter's name without its
`_total`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from lakehead.broker.cluster.controller import Controller
from lakehead.broker.cluster.membership import Standing
from lakehead.broker.coordinator.transaction.messages import TransactionState
from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.observability.group_lag import group_lags
from lakehead.broker.observability.health import copy_lag
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.quota.accept_rates import ACCEPT_RATE
from lakehead.broker.quota.entities import CONNECTION_RATE, EntityClass, QuotaType
from lakehead.broker.services import FetchedTo
from lakehead.broker.share.share_counts import LetterOutcome, Outcome
from lakehead.broker.telemetry.otlp_forwarder import OtlpForwarder
from lakehead.storage.backup.standby_log import CopyLag
from lakehead.storage.encryption.data_keys import DataKeyStats
from lakehead.storage.latency import LatencyHistogram
from lakehead.storage.memory_pool import MemoryPool
from lakehead.storage.object_store.counted import VerbStats
from lakehead.storage.stream.inflating import InflatedBatches
from lakehead.storage.wal.object import ObjectWal, ObjectWalStats

if TYPE_CHECKING:
    from lakehead.broker.telemetry.request_traces import RequestTraces

T = TypeVar("T")
Value = float | LatencyHistogram
Values = Value | Mapping[str, Value] | None
"""A value, a value for each value of the label, or None: this node has no such part."""
Kind = Literal["counter", "gauge", "histogram"]


class NodeMetric(NamedTuple):
    """A metric, with at most one label."""

    name: str
    doc: str
    kind: Kind
    read: Callable[[ObservedNode], Values]
    label: str = ""

    @property
    def shown_name(self) -> str:
        """The name as Prometheus sees it."""
        suffix = "_total" if self.kind == "counter" else ""
        label = f'{{{self.label}="..."}}' if self.label else ""
        return f"{self.name}{suffix}{label}"


def counter(
    name: str, doc: str, read: Callable[[ObservedNode], Values], label: str = ""
) -> NodeMetric:
    """Declare a metric that only grows, until the node restarts."""
    return NodeMetric(f"lakehead_{name}", doc, "counter", read, label)


def gauge(
    name: str, doc: str, read: Callable[[ObservedNode], Values], label: str = ""
) -> NodeMetric:
    """A metric that goes up and down."""
    return NodeMetric(f"lakehead_{name}", doc, "gauge", read, label)


def histogram(
    name: str, doc: str, read: Callable[[ObservedNode], Values], label: str = ""
) -> NodeMetric:
    """Declare latencies by buckets."""
    return NodeMetric(f"lakehead_{name}", doc, "histogram", read, label)


# Clients.


def _parts(node: ObservedNode) -> dict[str, MemoryPool | InflatedBatches]:
    """The parts of the memory for requests, by name."""
    memory = node.memory
    return {
        "frames": memory.frames,
        "responses": memory.responses,
        "inflated": memory.inflated,
        "searched": node.engine.reader.searched,
    }


def _of_each_quota(counts: Mapping[str, float]) -> Values:
    return {name: counts.get(name, 0) for name in (*QuotaType, CONNECTION_RATE, ACCEPT_RATE)}


def _share_outcomes(node: ObservedNode) -> Values:
    counted = node.share_partitions.counts.outcomes_total
    return {outcome.value: counted[outcome] for outcome in Outcome}


def _letter_outcomes(counted: Mapping[LetterOutcome, int]) -> Values:
    return {outcome.value: counted.get(outcome, 0) for outcome in LetterOutcome}


_CLIENTS = (
    gauge("connections", "Open connections.", lambda n: len(n.server.connections)),
    gauge(
        "connections_capacity",
        "Maximum client connections: max.connections, or fewer if descriptors are scarce.",
        lambda n: n.server.quotas.most,
    ),
    gauge(
        "certificate_end_timestamp_seconds",
        "End of the certificate of a listener, or of one that signs it, in seconds since 1970.",
        lambda n: n.server.tls.ends_s(),
        "listener",
    ),
    counter("connections_accepted", "Connections accepted.", lambda n: n.server.accepted_total),
    counter(
        "connections_refused",
        "Connections closed beyond the maximum (connections_capacity).",
        lambda n: n.server.refused_total,
    ),
    counter(
        "connections_rejected",
        "Connections closed because they did not send a valid request.",
        lambda n: n.server.rejected_total,
    ),
    counter(
        "authentications",
        "Authentications of clients by SASL that succeeded.",
        lambda n: n.authenticator.succeeded_total.total(),
    ),
    counter(
        "authentications_failed",
        "Authentications of clients by SASL that failed; the log names them.",
        lambda n: n.authenticator.failed_total.total(),
    ),
    counter(
        "sessions_expired",
        "Connections closed because their clients did not authenticate again in time.",
        lambda n: n.authenticator.expired_total,
    ),
    counter(
        "connections_cut",
        "Connections closed to free memory that others waited for; the log names them.",
        lambda n: n.server.relief.cut_total,
    ),
    gauge(
        "groups",
        "Groups that this node coordinates: classic, consumer groups of KIP-848, share groups.",
        lambda n: n.groups.count_by_type(),
        "type",
    ),
    counter(
        "consumer_group_rebalances",
        "Changes of group epochs: of members, subscriptions or topics of consumer groups.",
        lambda n: n.groups.counts.rebalances_total,
    ),
    gauge(
        "consumer_group_lag_records",
        "Records from the committed offsets of groups, which this node coordinates, to the ends of "
        "their partitions, all together. The 1,000 groups with most.",
        group_lags,
        "group",
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
        "Limits of these parts; a single request may exceed them.",
        lambda n: {name: part.capacity for name, part in _parts(n).items()},
        "part",
    ),
    gauge(
        "request_memory_waiting",
        "Requests that wait for memory; their sockets are paused.",
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
    histogram(
        "request_seconds",
        "Durations of requests, by API: from the whole request to the moment at which its response "
        "is given to the socket. A Fetch may wait for records as long as its client permits "
        "(fetch.max.wait.ms). Requests that have no response (acks=0) are not in it.",
        lambda n: dict(sorted(n.dispatcher.latencies.items())),
        "api",
    ),
    counter(
        "requests_failed",
        "Requests that failed with an unexpected error.",
        lambda n: n.dispatcher.failed_total,
    ),
    counter(
        "requests_cut_off",
        "Requests that were not served, because this node could not find out which access rules "
        "are in force.",
        lambda n: n.dispatcher.cut_off_total,
    ),
    counter(
        "fetched_record_bytes",
        "Bytes of records in Fetch responses, by destination. Consumers give their zone by "
        "client.rack.",
        lambda n: {one: n.counts.sent_bytes[one] for one in FetchedTo},
        "to",
    ),
    counter(
        "fetch_redirects",
        "Partitions for which consumers were sent to a node of their zone.",
        lambda n: n.counts.redirected_total,
    ),
    gauge(
        "read_replicas",
        "Partitions that this node serves to consumers of its zone and does not lead.",
        lambda n: len(n.services.read_replicas),
    ),
    counter(
        "read_replica_copied_bytes",
        "Bytes of records that it copied from their leaders, before they were in objects.",
        lambda n: n.services.read_replicas.copied_bytes_total,
    ),
    counter(
        "read_replica_log_bytes",
        "Bytes of records that it read from their leaders' logs instead.",
        lambda n: n.services.read_replicas.log_bytes_total,
    ),
    gauge(
        "read_replica_tail_bytes",
        "Memory of these records, of replica.read.cache.size.",
        lambda n: n.services.read_replicas.tail_bytes,
    ),
    gauge("acls", "Access rules (ACLs) of the cluster.", lambda n: len(n.state.acls)),
    counter(
        "authorizations_denied",
        "Operations that were denied with an error.",
        lambda n: n.services.audit.denied_total,
    ),
    counter(
        "audit_events_suppressed",
        "Audit events that were not written, because there were too many like them.",
        lambda n: n.services.audit.suppressed_total,
    ),
    gauge(
        "connections_throttled",
        "Connections that are muted now because their client is above a quota.",
        lambda n: n.server.throttled_now,
    ),
    counter(
        "quota_throttled_requests",
        "Requests, and connections, that were throttled, by the quota that they exceeded.",
        lambda n: _of_each_quota(n.quotas.throttles.requests_total),
        "quota",
    ),
    counter(
        "quota_throttle_seconds",
        "Sum of their throttle times.",
        lambda n: _of_each_quota(n.quotas.throttles.seconds_total),
        "quota",
    ),
    counter(
        "quota_throttled_by_level",
        "Requests, and connections, that were throttled, by the level that sets the quota.",
        lambda n: {level: n.quotas.throttles.levels_total[level] for level in EntityClass},
        "level",
    ),
    gauge(
        "quota_rates",
        "Measured rates of clients in memory, by quota.",
        lambda n: n.quotas.sensors | {CONNECTION_RATE: n.connection_rates.sensors},
        "quota",
    ),
    counter(
        "audit_topic_events",
        "Audit events that are in audit.topic.",
        lambda n: None if n.audit_topic is None else n.audit_topic.written_total,
    ),
    counter(
        "audit_topic_events_dropped",
        "Audit events that were dropped: the queue was full, or the topic could not be written.",
        lambda n: None if n.audit_topic is None else n.audit_topic.dropped_total,
    ),
    counter("produced_batches", "Record batches produced.", lambda n: n.counts.produced_total),
    counter(
        "fetched_partitions",
        "Partitions in fetch responses.",
        lambda n: n.counts.fetched_total,
    ),
    gauge("fetch_sessions", "Fetch sessions in memory.", lambda n: len(n.fetch_sessions)),
    gauge(
        "share_sessions",
        "Share sessions: members of share groups that fetch from this node.",
        lambda n: len(n.share_partitions.sessions),
    ),
    gauge(
        "share_partitions",
        "Partitions that this node leads, in share groups with members here.",
        lambda n: len(n.share_partitions),
    ),
    counter(
        "share_acquired_records",
        "Records that members of share groups acquired.",
        lambda n: n.share_partitions.counts.acquired_total,
    ),
    counter(
        "share_ended_deliveries",
        "Ends of deliveries to share groups, in records: accepted, released, archived (rejected, "
        "a gap, or delivered as often as it may be) or expired (the lock ended).",
        _share_outcomes,
        "outcome",
    ),
    counter(
        "share_dead_letters",
        "Dead letters of share groups: written to their topics, or failed (given up).",
        lambda n: _letter_outcomes(n.share_partitions.counts.dead_letters_total),
        "outcome",
    ),
    counter(
        "share_dead_letter_requests",
        "Batches of dead letters that were sent to the leaders of their partitions.",
        lambda n: _letter_outcomes(n.share_partitions.counts.dead_letter_requests_total),
        "outcome",
    ),
    gauge("cold_reads", "Reads from the object store in progress.", lambda n: len(n.cold_reads)),
    gauge("topics", "Topics of the cluster.", lambda n: len(n.topics.by_name)),
    gauge(
        "writable",
        "1 while batches are accepted, 0 while producers wait for the WAL or the object store.",
        lambda n: float(n.is_writable()),
    ),
    gauge(
        "event_loop_lag_seconds",
        "Lag of the event loop at its last tick.",
        lambda n: n.server.lag_s,
    ),
    gauge(
        "event_loop_lag_max_seconds",
        "Maximum lag of the event loop since the start.",
        lambda n: n.server.lag_max_s,
    ),
)


# Cluster.


def _nodes(node: ObservedNode) -> Values:
    """Count the registered nodes, this one included, by what this node thinks of them."""
    counts = dict.fromkeys([*(standing.value for standing in Standing), "fenced"], 0.0)
    now = node.clock.monotonic()
    for known in node.state.nodes.values():
        standing = node.lifecycle.membership.standing(known.node_id, now)
        counts["fenced" if known.is_fenced else standing.value] += 1
    return counts


def _unled(node: ObservedNode) -> Values:
    """Count the streams of the cluster that no live node has open."""
    state = node.state
    live = state.live_node_ids
    streams = state.streams.values()
    return sum(not (stream.is_open and stream.node_id in live) for stream in streams)


def _of_controller(read: Callable[[Controller], float]) -> Callable[[ObservedNode], Values]:
    def value(node: ObservedNode) -> Values:
        return read(node.controller) if node.is_ready else None

    return value


_CLUSTER = (
    gauge(
        "cluster_nodes",
        "Registered nodes by their state as this node sees it: alive, suspect, dead, or fenced.",
        _nodes,
        "state",
    ),
    gauge("partitions_led", "Partitions led here.", lambda n: len(n.replica_manager.held)),
    gauge("partitions_unled", "Partitions of the cluster that no live node leads.", _unled),
    gauge(
        "session_age_seconds",
        "Age of the last proof that this node was not fenced.",
        lambda n: n.clock.monotonic() - n.session.proven_at,
    ),
    counter(
        "partitions_moved_away",
        "Partitions handed over to other nodes.",
        lambda n: n.engine.hand_overs.stats.streams,
    ),
    counter(
        "hand_overs",
        "Batches of partitions handed over.",
        lambda n: n.engine.hand_overs.stats.batches,
    ),
    counter(
        "hand_over_pause_seconds",
        "Total time that these batches accepted no writes, until others could open them.",
        lambda n: n.engine.hand_overs.stats.pause_s,
    ),
    gauge(
        "hand_over_longest_pause_seconds",
        "The longest of these pauses.",
        lambda n: n.engine.hand_overs.stats.longest_pause_s,
    ),
    counter(
        "nodes_recovered",
        "Dead nodes whose write-ahead logs this node has committed.",
        lambda n: n.log_recovery.recovered_total if n.is_ready else None,
    ),
    gauge(
        "controller",
        "1 while this node is the controller.",
        _of_controller(lambda controller: float(controller.is_active)),
    ),
    counter(
        "controller_leases",
        "Number of times that this node became the controller.",
        _of_controller(lambda controller: controller.stats.leases_taken),
    ),
    counter(
        "controller_nodes_fenced",
        "Nodes that this node, as the controller, has fenced.",
        _of_controller(lambda controller: controller.stats.nodes_fenced),
    ),
    counter(
        "controller_partitions_assigned",
        "Partitions that this node, as the controller, has assigned.",
        _of_controller(lambda controller: controller.stats.streams_assigned),
    ),
    counter(
        "controller_partitions_balanced",
        "The part of these that was moved for balance.",
        _of_controller(lambda controller: controller.stats.streams_balanced),
    ),
)


# Transactions.


def _ids(node: ObservedNode) -> Values:
    """Count the transactional ids by the state of their transaction."""
    if not node.is_ready:
        return None
    counts = Counter(
        machine.current.state
        for shard in node.transaction_coordinator.shards.loaded()
        for machine in shard.machines.values()
    )
    states = (state for state in TransactionState if state < TransactionState.DEAD)
    return {state.label: float(counts[state]) for state in states}


def _timed_out(node: ObservedNode) -> Values:
    return node.transaction_coordinator.timed_out_total if node.is_ready else None


def _markers(node: ObservedNode) -> Values:
    return node.transaction_coordinator.markers_waiting if node.is_ready else None


def _producers(node: ObservedNode) -> Values:
    if not node.is_ready:
        return None
    return float(sum(len(partition.producers) for partition in node.topics.led()))


def _states_size(node: ObservedNode) -> Values:
    if not node.is_ready:
        return None
    return float(sum(partition.producers.size for partition in node.topics.led()))


_TRANSACTIONS = (
    gauge(
        "producer_ids",
        "Producers with remembered batches, in the partitions that this node leads.",
        _producers,
    ),
    gauge(
        "partition_state_bytes",
        "Stored states of the partitions that this node leads: producers and aborted transactions.",
        _states_size,
    ),
    gauge(
        "transactional_ids",
        "Transactional ids that this node coordinates, by the state of their transaction.",
        _ids,
        "state",
    ),
    counter(
        "transactions_timed_out",
        "Transactions that were aborted because they were open for too long.",
        _timed_out,
    ),
    gauge(
        "transaction_markers_waiting",
        "Transaction markers that are not written yet, here or on other nodes.",
        _markers,
    ),
)


# Write-ahead log.


def _objects(value: Callable[[ObjectWalStats], float]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        return value(node.wal.stats) if isinstance(node.wal, ObjectWal) else None

    return read


_WAL = (
    histogram(
        "wal_append_seconds",
        "Durations of appends, from the batch to its durability: one append at a time is timed, "
        "about one of each group commit.",
        lambda n: n.engine.append_latency,
    ),
    gauge(
        "wal_pending_bytes",
        "Bytes appended that are not durable yet.",
        lambda n: n.wal.pending_bytes,
    ),
    gauge(
        "wal_used_bytes",
        "Bytes appended and not trimmed, which a recovery would read.",
        lambda n: n.wal.next_position - n.wal.trimmed_position,
    ),
    gauge("wal_capacity_bytes", "Bytes the log can hold.", lambda n: n.wal.capacity),
    counter(
        "wal_appended_bytes",
        "Object WAL: bytes of record batches appended.",
        _objects(lambda s: s.appended_bytes),
    ),
    counter(
        "wal_puts",
        "Object WAL: puts, repeated ones and hedges included.",
        _objects(lambda s: s.puts),
    ),
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
        "Object WAL: puts of unknown outcome, after timeouts and lost responses.",
        _objects(lambda s: s.put_unknown),
    ),
    counter(
        "wal_hedged_puts",
        "Object WAL: second puts of the same bytes, sent beside slow ones.",
        _objects(lambda s: s.hedges),
    ),
    counter(
        "wal_hedges_won",
        "Object WAL: second puts that ended before the slow one.",
        _objects(lambda s: s.hedges_won),
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
    gauge("wal_puts_in_flight", "Object WAL: puts in flight.", _objects(lambda s: s.in_flight)),
    gauge(
        "wal_puts_in_flight_limit",
        "Object WAL: limit of puts in flight, by the store's latency.",
        _objects(lambda s: s.in_flight_limit),
    ),
    gauge(
        "wal_put_latency_seconds",
        "Object WAL: duration of a put, smoothed.",
        _objects(lambda s: s.put_latency_s),
    ),
    gauge(
        "wal_linger_seconds",
        "Object WAL: interval between puts of small groups; grows to limit the cost.",
        _objects(lambda s: s.linger_s),
    ),
)


# Uploads.

_UPLOADS = (
    counter(
        "uploads",
        "Snapshots uploaded and committed.",
        lambda n: n.engine.uploader.stats.upload_sets,
    ),
    counter(
        "upload_objects",
        "Objects written by uploads, committed or not yet.",
        lambda n: n.engine.uploader.stats.objects,
    ),
    counter("upload_bytes", "Bytes of those objects.", lambda n: n.engine.uploader.stats.bytes),
    counter(
        "upload_unknown_puts",
        "Uploads of unknown outcome, which were put again.",
        lambda n: n.engine.uploader.stats.unknown_puts,
    ),
)


# Object store.


def _verbs(node: ObservedNode) -> dict[str, VerbStats]:
    stats = node.store.stats
    return {"put": stats.put, "get": stats.get, "list": stats.list, "delete": stats.delete}


def _by_operation(value: Callable[[VerbStats], float]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        return {name: value(verb) for name, verb in _verbs(node).items()}

    return read


def _latency_by_operation(node: ObservedNode) -> Values:
    return {name: verb.latency for name, verb in _verbs(node).items()}


_STORE = (
    counter(
        "store_calls",
        "Calls of the store, by operation.",
        _by_operation(lambda v: v.calls),
        "operation",
    ),
    counter(
        "store_requests",
        "Requests as S3 bills them: a large object takes several, a list one for each 1,000 keys.",
        _by_operation(lambda v: v.requests),
        "operation",
    ),
    counter(
        "store_bytes",
        "Bytes of bodies written and read whole.",
        _by_operation(lambda v: v.bytes),
        "operation",
    ),
    counter(
        "store_failures",
        "Calls refused, unreachable, timed out or of unknown outcome.",
        _by_operation(lambda v: v.failures),
        "operation",
    ),
    histogram(
        "store_call_seconds",
        "Durations of calls.",
        _latency_by_operation,
        "operation",
    ),
    gauge(
        "store_call_max_seconds",
        "The longest call so far.",
        _by_operation(lambda v: v.seconds_max),
        "operation",
    ),
    counter(
        "store_throttles",
        "Responses that throttle (503 SlowDown).",
        lambda n: n.store.stats.throttles,
    ),
    counter(
        "store_unknown_outcomes",
        "Writes with an outcome that was unknown at first.",
        lambda n: n.store.stats.unknown,
    ),
    counter("store_lost_puts", "Puts of a key that existed already.", lambda n: n.store.stats.lost),
    counter(
        "store_cost_dollars",
        "Cost of the requests at S3 Standard's prices, without storage and traffic.",
        lambda n: n.store.stats.cost(),
    ),
    counter("store_retries", "Calls that were repeated.", lambda n: n.engine.store_retries.retries),
    gauge(
        "store_waiting",
        "Calls that have failed and are repeated now; above 0 the store is failing.",
        lambda n: n.engine.store_retries.waiting,
    ),
    counter(
        "store_waited_seconds",
        "Time that calls waited to be repeated.",
        lambda n: n.engine.store_retries.waited_s,
    ),
)


# Encryption at rest.


def _keys(value: Callable[[DataKeyStats], float]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        keys = node.data_keys
        is_there = keys.is_on or keys.can_read or keys.is_required
        return value(keys.stats) if is_there else None

    return read


_ENCRYPTION = (
    counter(
        "data_keys_made",
        "Data keys that this node had wrapped: one an hour, and none while it does not encrypt.",
        _keys(lambda s: s.made),
    ),
    counter(
        "data_keys_make_failures",
        "Failed requests for a new data key. The present one goes on for hours, then writes wait.",
        _keys(lambda s: s.make_failed),
    ),
    counter(
        "data_keys_unwrapped",
        "Data keys unwrapped by their provider (AWS KMS, or the key file).",
        _keys(lambda s: s.unwrapped),
    ),
    counter(
        "data_keys_unwrap_failures",
        "Data keys that could not be unwrapped: what they encrypt cannot be read.",
        _keys(lambda s: s.unwrap_failed),
    ),
    counter(
        "data_key_cache_hits",
        "Data keys found in memory, without a request to their provider.",
        _keys(lambda s: s.hits),
    ),
    gauge("data_keys_cached", "Data keys in memory.", _keys(lambda s: s.cached)),
    counter(
        "plain_data_refused",
        "Reads of plain data that were refused (encryption.required); the error names the object.",
        _keys(lambda s: s.plain_refused),
    ),
)


# Caches and reads.

_CACHES = (
    gauge("log_cache_bytes", "Recent data held in memory.", lambda n: n.engine.cache.size),
    gauge(
        "log_cache_capacity_bytes",
        "Bound of the log cache (cache.size).",
        lambda n: n.engine.cache.capacity,
    ),
    gauge(
        "log_cache_uncommitted_bytes",
        "Data in the log cache that is not in objects yet; producers wait when it fills the cache.",
        lambda n: n.engine.cache.uncommitted,
    ),
    counter(
        "block_cache_hits",
        "Blocks read from the block cache.",
        lambda n: n.engine.reader.stats.hits,
    ),
    counter(
        "block_cache_misses",
        "Blocks that a reader had to wait for.",
        lambda n: n.engine.reader.stats.misses,
    ),
    gauge(
        "block_cache_bytes", "Data read back from objects.", lambda n: n.engine.reader.blocks.size
    ),
    gauge(
        "block_cache_capacity_bytes",
        "Bound of the block cache (block.cache.size).",
        lambda n: n.engine.reader.blocks.capacity,
    ),
    gauge("index_cache_bytes", "Indexes of objects held.", lambda n: n.engine.reader.indexes.size),
    counter("index_reads", "Indexes of objects read.", lambda n: n.engine.reader.indexes.reads),
    counter(
        "cold_read_gets", "Ranged GETs of data by readers.", lambda n: n.engine.reader.stats.gets
    ),
    counter("cold_read_bytes", "Bytes of these GETs.", lambda n: n.engine.reader.stats.get_bytes),
    gauge(
        "cold_read_in_flight_bytes",
        "Bytes in flight from the store to readers.",
        lambda n: n.engine.reader.budget.in_flight,
    ),
    counter(
        "readahead_bytes",
        "Bytes requested ahead of readers.",
        lambda n: n.engine.reader.stats.ahead_bytes,
    ),
    counter(
        "readahead_wasted",
        "Evictions of data that was fetched ahead, before it was read.",
        lambda n: n.engine.reader.stats.wasted,
    ),
    counter(
        "corrupt_blocks",
        "Blocks that failed their checksum twice; the log names object and position.",
        lambda n: n.engine.reader.stats.corrupt_blocks,
    ),
)


# Metadata and garbage.


def _of_copy(value: Callable[[CopyLag], float | None]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        lag = copy_lag(node)
        return None if lag is None else value(lag)

    return read


_METADATA = (
    gauge(
        "metadata_entries",
        "Entries of the metadata log so far: the next one's number.",
        lambda n: n.state.next_entry,
    ),
    gauge("metadata_streams", "Streams of the cluster.", lambda n: len(n.state.streams)),
    gauge("metadata_objects", "Objects the metadata names.", lambda n: len(n.state.objects)),
    gauge(
        "metadata_unreferenced_objects",
        "Objects that nothing refers to any more and that wait to be deleted.",
        lambda n: len(n.state.unreferenced),
    ),
    counter(
        "metadata_commits",
        "Changes that this node committed.",
        lambda n: n.engine.metadata.stats.commits,
    ),
    counter(
        "metadata_entries_put",
        "Entries that this node created; metadata_commits divided by it is the mean group.",
        lambda n: n.engine.metadata.stats.entries_put,
    ),
    counter(
        "metadata_entries_applied",
        "Entries read and applied, this node's own included.",
        lambda n: n.engine.metadata.stats.entries_applied,
    ),
    counter(
        "metadata_entries_refused",
        "Entries that took a number and changed nothing, by the rules.",
        lambda n: n.engine.metadata.stats.entries_refused,
    ),
    counter(
        "metadata_races_lost",
        "Entry numbers that another node took first.",
        lambda n: n.engine.metadata.stats.races_lost,
    ),
    counter(
        "metadata_unknown_outcomes",
        "Entries of unknown outcome, which were read back.",
        lambda n: n.engine.metadata.stats.unknown_outcomes,
    ),
    counter(
        "metadata_loads",
        "Starts from a checkpoint: at opening, and when this node had fallen far behind.",
        lambda n: n.engine.metadata.stats.loads,
    ),
    counter(
        "metadata_checkpoints",
        "Checkpoints that this node wrote.",
        lambda n: n.engine.metadata.stats.checkpoints_written,
    ),
    gauge(
        "metadata_checkpoint_bytes",
        "Size of the last checkpoint written here.",
        lambda n: n.engine.metadata.stats.checkpoint_bytes,
    ),
    counter(
        "metadata_corrupt_checkpoints",
        "Checkpoints that failed their checksums; an older one was taken.",
        lambda n: n.engine.metadata.stats.corrupt_checkpoints,
    ),
    counter(
        "metadata_deleted",
        "Old entries and checkpoints deleted.",
        lambda n: n.engine.metadata.stats.objects_deleted,
    ),
    gauge(
        "standby_lag_seconds",
        "Standby: age of the state that it serves, of the cluster that is copied.",
        _of_copy(lambda lag: lag.lag_s),
    ),
    gauge(
        "standby_entries_behind",
        "Standby: entries of the metadata that have arrived before an object that they name.",
        _of_copy(lambda lag: lag.entries_behind),
    ),
    gauge(
        "standby_newest_record_timestamp_ms",
        "Standby: greatest timestamp of the newest records, in milliseconds since the epoch.",
        _of_copy(lambda lag: lag.newest_record_ms),
    ),
    gauge(
        "garbage_waiting",
        "Objects that this node is to delete, within their grace period.",
        lambda n: n.engine.garbage.stats.waiting,
    ),
    counter(
        "garbage_objects", "Objects deleted.", lambda n: n.engine.garbage.stats.deleted_objects
    ),
    counter("garbage_bytes", "Bytes deleted.", lambda n: n.engine.garbage.stats.deleted_bytes),
    counter(
        "garbage_sweeps",
        "Listings of the store for orphans of crashes.",
        lambda n: n.engine.garbage.stats.sweeps,
    ),
    counter(
        "garbage_failures",
        "Deletions that failed and were postponed.",
        lambda n: n.engine.garbage.stats.failures,
    ),
)


# Metrics of clients.


def _if_there(
    part: Callable[[ObservedNode], T | None], read: Callable[[T], float]
) -> Callable[[ObservedNode], Values]:
    """Return a count of a part that a node may not have; 0 without it."""

    def value(node: ObservedNode) -> Values:
        found = part(node)
        return 0 if found is None else read(found)

    return value


def _forwarded(read: Callable[[OtlpForwarder], float]) -> Callable[[ObservedNode], Values]:
    return _if_there(lambda n: n.services.telemetry.forwarder, read)


def _traced(read: "Callable[[RequestTraces], float]") -> Callable[[ObservedNode], Values]:
    return _if_there(lambda n: n.dispatcher.traces, read)


_TELEMETRY = (
    gauge(
        "telemetry_subscriptions",
        "Subscriptions to metrics of clients (KIP-714).",
        lambda n: len(n.state.client_metrics_configs),
    ),
    gauge(
        "telemetry_clients",
        "Clients that got their subscriptions from this node.",
        lambda n: len(n.services.telemetry.instances),
    ),
    counter(
        "telemetry_pushes",
        "Pushes of clients whose metrics were taken.",
        lambda n: n.services.telemetry.pushes_total,
    ),
    counter(
        "telemetry_pushed_bytes",
        "Their bytes, as they came.",
        lambda n: n.services.telemetry.bytes_total,
    ),
    counter(
        "telemetry_refused",
        "Pushes that got an error.",
        lambda n: n.services.telemetry.refused_total,
    ),
    counter(
        "telemetry_throttled",
        "Requests of clients that came before their interval was over.",
        lambda n: n.services.telemetry.instances.throttled_total,
    ),
    counter(
        "telemetry_left_out",
        "Metrics of pushes that are not shown: not subscribed to, histograms, or too many names.",
        lambda n: n.services.telemetry.metrics.left_out_total,
    ),
    counter(
        "telemetry_forwarded",
        "Pushes that the collector of telemetry.otlp.endpoint took.",
        _forwarded(lambda f: f.forwarded_total),
    ),
    counter(
        "telemetry_not_forwarded",
        "Pushes that were dropped, because the collector did not take them in time.",
        _forwarded(lambda f: f.dropped_total),
    ),
    counter(
        "trace_messages_sent",
        "Messages with traces of requests that the collector of trace.otlp.endpoint took.",
        _traced(lambda t: t.forwarder.forwarded_total),
    ),
    counter(
        "trace_messages_dropped",
        "Messages with traces that were dropped, because the collector did not take them in time.",
        _traced(lambda t: t.forwarder.dropped_total),
    ),
    counter(
        "trace_spans_dropped",
        "Traces of requests that were dropped, because too many waited to be sent.",
        _traced(lambda t: t.dropped_total),
    ),
    counter(
        "client_increase",
        "Sum of the increases of counters that clients pushed, by the client's metric.",
        lambda n: n.services.telemetry.metrics.increases,
        "metric",
    ),
    counter(
        "client_values",
        "Values of other metrics that clients pushed, by the client's metric.",
        lambda n: {name: v.count for name, v in n.services.telemetry.metrics.values.items()},
        "metric",
    ),
    gauge(
        "client_value_sum",
        "Sum of these values: divided by their number, the average over clients.",
        lambda n: {name: v.total for name, v in n.services.telemetry.metrics.values.items()},
        "metric",
    ),
    gauge(
        "client_value_max",
        "Largest of these values in the last five to ten minutes.",
        lambda n: dict(n.services.telemetry.metrics.largest(n.clock.monotonic())),
        "metric",
    ),
)


# Maintenance.


def _of_maintenance(read: Callable[[MaintenanceBeside], float]) -> Callable[[ObservedNode], Values]:
    def value(node: ObservedNode) -> Values:
        return None if node.maintenance is None else read(node.maintenance)

    return value


def _tables_running(node: ObservedNode) -> Values:
    return None if node.tables is None else float(node.tables.is_running)


_MAINTENANCE = (
    gauge(
        "tables_process_running",
        "1 while this node's process for declared tables runs.",
        _tables_running,
    ),
    counter(
        "maintenance_runs",
        "Processes that this node started for compaction and retention.",
        _of_maintenance(lambda m: m.runs),
    ),
    counter(
        "maintenance_failures",
        "Processes of these that did not start, or failed.",
        _of_maintenance(lambda m: m.failures),
    ),
    gauge(
        "maintenance_due",
        "Partitions with due work at the last check of this node.",
        _of_maintenance(lambda m: m.due),
    ),
)


SUBJECTS: dict[str, tuple[NodeMetric, ...]] = {
    "Clients": _CLIENTS,
    "Cluster": _CLUSTER,
    "Transactions": _TRANSACTIONS,
    "Write-ahead log": _WAL,
    "Uploads": _UPLOADS,
    "Object store": _STORE,
    "Encryption at rest": _ENCRYPTION,
    "Caches and reads": _CACHES,
    "Metadata and garbage": _METADATA,
    "Maintenance": _MAINTENANCE,
    "Metrics of clients, and traces": _TELEMETRY,
}
"""All metrics of a node by subject, in the order of the documentation."""
METRICS: tuple[NodeMetric, ...] = tuple(one for group in SUBJECTS.values() for one in group)


_TRIES = 5


class NodeCollector:
    """Reads the metrics of one node, in another thread than the node's."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Return every metric with its value of now."""
        for metric in METRICS:
            if (family := self._read(metric)) is not None:
                yield family

    def _read(self, metric: NodeMetric) -> Metric | None:
        values = self._values(metric)
        if values is None:
            return None
        labels = [metric.label] if isinstance(values, Mapping) else []
        family = _FAMILIES[metric.kind](metric.name, metric.doc, labels=labels)
        if isinstance(values, Mapping):
            for label, value in values.items():
                _add(family, [label], value)
        else:
            _add(family, [], values)
        return family

    def _values(self, metric: NodeMetric) -> Values:
        """Read a metric again if what it counts has changed meanwhile. One that changes each time
        is left out, and the others are shown.
        """
        for _ in range(_TRIES):
            try:
                return metric.read(self._node)
            except RuntimeError:  # "dictionary changed size during iteration"
                continue
        return None


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Mapping[Kind, type[_Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _add(family: _Family, labels: list[str], value: Value) -> None:
    if isinstance(value, LatencyHistogram):
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, buckets=list(value.cumulative()), sum_value=value.seconds)
    else:
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, value)
