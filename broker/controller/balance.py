"""Moves of leadership that even out what nodes do: pure.

A stream weighs its share of all streams, and of the traffic: half by its bytes, half by the CPU
that its node spends, as its part of the node's bytes. While little is going on, the number of
streams is what counts, so that noise moves nothing; under load it counts for a fifth.

Nothing is moved while every node is within `imbalance` of the average. Else streams go from the
heaviest node to the lightest until half of that is reached: each time the one that evens the two
out best. It must leave at most half of the difference between them, the other way round at worst:
so no later move undoes it, and one stream that is too large for any node stays where it is.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence

from broker.cluster.heartbeat import NodeLoad

MOVES_MAX = 5000
"""Moves of one plan."""
TRAFFIC_FLOOR = 1 << 20
"""With this many bytes per second in the cluster, traffic counts in full."""

_EPSILON = 1e-9


def balance(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad], *, imbalance: float
) -> list[tuple[int, int]]:
    """Return (stream, new leader) of the moves to make; `leads` are the streams by node."""
    if len(leads) < 2:
        return []
    weights = stream_weights(leads, loads)
    heaps = {
        node_id: sorted((weights[stream_id], stream_id) for stream_id in streams)
        for node_id, streams in leads.items()
    }
    totals = {node_id: sum(w for w, _ in heap) for node_id, heap in heaps.items()}
    if not weights:
        return []
    average = sum(totals.values()) / len(totals)
    if _is_within(totals, average, imbalance):
        return []
    target: dict[int, int] = {}
    for _ in range(MOVES_MAX):
        if _is_within(totals, average, imbalance / 2):
            break
        heavy = max(totals, key=lambda node_id: (totals[node_id], node_id))
        light = min(totals, key=lambda node_id: (totals[node_id], node_id))
        place = _best_place(heaps[heavy], totals[heavy] - totals[light])
        if place is None:
            break
        weight, stream_id = heaps[heavy].pop(place)
        insort(heaps[light], (weight, stream_id))
        totals[heavy] -= weight
        totals[light] += weight
        target[stream_id] = light
    home = {stream_id: node_id for node_id, streams in leads.items() for stream_id in streams}
    return [(s, node_id) for s, node_id in sorted(target.items()) if home[s] != node_id]


def stream_weights(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad]
) -> dict[int, float]:
    """Return what each stream weighs; all of them together weigh 1."""
    number = sum(map(len, leads.values()))
    known = {node_id: loads.get(node_id, NodeLoad()) for node_id in leads}
    hottest = dict(flow for load in loads.values() for flow in load.hottest)
    rates: dict[int, float] = {}
    for node_id, streams in leads.items():
        listed = sum(hottest.get(stream_id, 0.0) for stream_id in streams)
        others = sum(stream_id not in hottest for stream_id in streams)
        rest = max(0.0, known[node_id].bytes_in + known[node_id].bytes_out - listed)
        each = rest / others if others else 0.0
        rates.update((stream_id, hottest.get(stream_id, each)) for stream_id in streams)
    traffic = sum(rates.values())
    cpu = sum(load.cpu for load in known.values())
    part = min(1.0, traffic / TRAFFIC_FLOOR)
    by_number = 1 - 0.75 * part
    weights: dict[int, float] = {}
    for node_id, streams in leads.items():
        carried = sum(rates[stream_id] for stream_id in streams)
        cost = known[node_id].cpu / cpu if cpu else (carried / traffic if traffic else 0.0)
        for stream_id in streams:
            rate = rates[stream_id]
            by_bytes = rate / traffic if traffic else 0.0
            by_cpu = cost * rate / carried if carried else 0.0
            share = (by_bytes + by_cpu) / 2
            weights[stream_id] = (by_number / number + part * share) / (by_number + part)
    return weights


def _best_place(heap: Sequence[tuple[float, int]], gap: float) -> int | None:
    """Return the place of the stream that evens out a difference best; None if none does well."""
    above = bisect_right(heap, (gap / 2 + _EPSILON, 1 << 63))
    near = [place for place in (above - 1, above) if 0 <= place < len(heap)]
    places = [place for place in near if heap[place][0] <= gap * 0.75]
    return min(places, key=lambda place: abs(heap[place][0] - gap / 2), default=None)


def _is_within(totals: Mapping[int, float], average: float, share: float) -> bool:
    margin = average * share + _EPSILON
    return all(abs(total - average) <= margin for total in totals.values())
