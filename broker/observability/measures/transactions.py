"""Transactions whose coordinator this node is, and producers of the partitions that it leads."""

from collections import Counter

from lakehead.broker.coordinator.transaction.messages import TransactionState
from lakehead.broker.observability.measures.measure import Values, counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode


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


MEASURES = (
    gauge(
        "producer_ids",
        "Producers whose last batches are remembered, in the partitions that this node leads.",
        _producers,
    ),
    gauge(
        "partition_state_bytes",
        "States of the partitions that this node leads, as they are stored: producers and aborted "
        "transactions.",
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
        "Transaction markers that are yet to be written, here or on other nodes.",
        _markers,
    ),
)
