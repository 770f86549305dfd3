"""The cluster as this node sees it: who lives, who leads, what was moved and recovered."""

from collections.abc import Callable

from lakehead.broker.cluster.controller import Controller
from lakehead.broker.cluster.membership import Standing
from lakehead.broker.observability.measures.measure import Values, counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode


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
    live = {known.node_id for known in state.nodes.values() if not known.is_fenced}
    streams = state.streams.values()
    return sum(not (stream.is_open and stream.node_id in live) for stream in streams)


def _of_controller(read: Callable[[Controller], float]) -> Callable[[ObservedNode], Values]:
    def value(node: ObservedNode) -> Values:
        return read(node.controller) if node.is_ready else None

    return value


MEASURES = (
    gauge(
        "cluster_nodes",
        "Registered nodes by what this node thinks of them: alive, suspect, dead, or fenced.",
        _nodes,
        "state",
    ),
    gauge("partitions_led", "Partitions led here.", lambda n: len(n.replica_manager.held)),
    gauge("partitions_unled", "Partitions of the cluster that no live node leads.", _unled),
    gauge(
        "session_age_seconds",
        "How long ago this node last had proof that it was not fenced.",
        lambda n: n.clock.monotonic() - n.session.proven_at,
    ),
    counter(
        "partitions_moved_away",
        "Partitions handed over to other nodes.",
        lambda n: n.engine.hand_overs.stats.streams,
    ),
    counter(
        "hand_overs",
        "Batches in which they went.",
        lambda n: n.engine.hand_overs.stats.batches,
    ),
    counter(
        "hand_over_pause_seconds",
        "For how long such batches took no writes, until others could open them; summed.",
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
        "Times that this node became the controller.",
        _of_controller(lambda controller: controller.stats.leases_taken),
    ),
    counter(
        "controller_nodes_fenced",
        "Nodes that this node, as the controller, has fenced.",
        _of_controller(lambda controller: controller.stats.nodes_fenced),
    ),
    counter(
        "controller_partitions_assigned",
        "Partitions that it has assigned.",
        _of_controller(lambda controller: controller.stats.streams_assigned),
    ),
    counter(
        "controller_partitions_balanced",
        "Of these, those moved for the sake of balance.",
        _of_controller(lambda controller: controller.stats.streams_balanced),
    ),
)
