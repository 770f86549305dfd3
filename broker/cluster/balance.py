"""Balance the load of nodes: plan moves of leadership. Pure.

A stream weighs its share of all streams and of the traffic: half by its bytes, half by the CPU of
its node, divided by its part of the node's bytes. With little traffic the number of streams
decides, so that noise moves nothing; under load it counts for a fifth.

Nothing moves while every node is within `imbalance` of the average. Otherwise streams go from the
heaviest node to the lightest until every node is within half of `imbalance`. Each time the stream
is chosen that brings the two nodes closest. It must leave at most half of their difference, in
either direction: so no later move undoes it, and a stream too large for any node stays.

Plans are made in steps, between which the event loop does other work.
"""

from bisect import bisect_right, insort
from collections.abc import Generator, Iterator, Mapping, Sequence

from lakehead.broker.cluster.heartbeat import NodeLoad

MOVES_MAX = 5000
"""Maximum moves of one plan."""
TRAFFIC_FLOOR = 1 << 20
"""Bytes per second in the cluster from which on traffic counts in full."""
STREAMS_AT_ONCE = 1000
"""Streams that one step looks at: a few milliseconds of work."""
_MOVES_AT_ONCE = 50
_EPSILON = 1e-9


def balance(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad], *, imbalance: float
) -> Generator[None, None, list[tuple[int, int]]]:
    """Return (stream, new leader) for each move; `leads` are the streams by node."""
    if len(leads) < 2:
        return []
    weights = yield from stream_weights(leads, loads)
    heaps: dict[int, list[tuple[float, int]]] = {node_id: [] for node_id in leads}
    for node_id, some in _pieces(leads):
        heaps[node_id] += [(weights[stream_id], stream_id) for stream_id in some]
        yield
    for heap in heaps.values():
        heap.sort()
        yield
    totals = {node_id: sum(w for w, _ in heap) for node_id, heap in heaps.items()}
    if not weights:
        return []
    average = sum(totals.values()) / len(totals)
    if _is_within(totals, average, imbalance):
        return []
    home, target = dict[int, int](), dict[int, int]()
    for number in range(1, MOVES_MAX + 1):
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
        home.setdefault(stream_id, heavy)
        target[stream_id] = light
        if not number % _MOVES_AT_ONCE:
            yield
    return [(s, node_id) for s, node_id in sorted(target.items()) if home[s] != node_id]


def stream_weights(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad]
) -> Generator[None, None, dict[int, float]]:
    """Return the weight of each stream by its id; the weights add up to 1."""
    number = sum(map(len, leads.values()))
    known = {node_id: loads.get(node_id, NodeLoad()) for node_id in leads}
    hottest = dict(flow for load in loads.values() for flow in load.hottest)
    listed, others = dict.fromkeys(leads, 0.0), dict.fromkeys(leads, 0)
    for node_id, some in _pieces(leads):
        hot = [hottest[stream_id] for stream_id in some if stream_id in hottest]
        listed[node_id] += sum(hot)
        others[node_id] += len(some) - len(hot)
        yield
    rates, carried = dict[int, float](), dict.fromkeys(leads, 0.0)
    for node_id, some in _pieces(leads):
        rest = max(0.0, known[node_id].bytes_in + known[node_id].bytes_out - listed[node_id])
        each = rest / others[node_id] if others[node_id] else 0.0
        found = [hottest.get(stream_id, each) for stream_id in some]
        rates.update(zip(some, found, strict=True))
        carried[node_id] += sum(found)
        yield
    traffic = sum(carried.values())
    cpu = sum(load.cpu for load in known.values())
    part = min(1.0, traffic / TRAFFIC_FLOOR)
    by_number = 1 - 0.75 * part
    weights: dict[int, float] = {}
    for node_id, some in _pieces(leads):
        of_node = carried[node_id]
        cost = known[node_id].cpu / cpu if cpu else (of_node / traffic if traffic else 0.0)
        for stream_id in some:
            rate = rates[stream_id]
            by_bytes = rate / traffic if traffic else 0.0
            by_cpu = cost * rate / of_node if of_node else 0.0
            share = (by_bytes + by_cpu) / 2
            weights[stream_id] = (by_number / number + part * share) / (by_number + part)
        yield
    return weights


def _pieces(leads: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (node, some of its streams), at most `STREAMS_AT_ONCE` at a time."""
    for node_id, streams in leads.items():
        for at in range(0, len(streams), STREAMS_AT_ONCE):
            yield node_id, streams[at : at + STREAMS_AT_ONCE]


def _best_place(heap: Sequence[tuple[float, int]], gap: float) -> int | None:
    """Return the index of the stream that best closes a gap, or None if none leaves it halved."""
    above = bisect_right(heap, (gap / 2 + _EPSILON, 1 << 63))
    near = [place for place in (above - 1, above) if 0 <= place < len(heap)]
    places = [place for place in near if heap[place][0] <= gap * 0.75]
    return min(places, key=lambda place: abs(heap[place][0] - gap / 2), default=None)


def _is_within(totals: Mapping[int, float], average: float, share: float) -> bool:
    margin = average * share + _EPSILON
    return all(abs(total - average) <= margin for total in totals.values())
