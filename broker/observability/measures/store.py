"""What goes to the object store: every attempt, as it is billed."""

from collections.abc import Callable

from lakehead.broker.observability.measures.measure import Values, counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.object_store.counted import VerbStats


def _by_operation(value: Callable[[VerbStats], float]) -> Callable[[ObservedNode], Values]:
    def read(node: ObservedNode) -> Values:
        stats = node.store.stats
        verbs = {"put": stats.put, "get": stats.get, "list": stats.list, "delete": stats.delete}
        return {name: value(verb) for name, verb in verbs.items()}

    return read


MEASURES = (
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
    counter(
        "store_seconds",
        "Time that calls took, all together; by store_calls it gives the mean.",
        _by_operation(lambda v: v.seconds),
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
        "Answers that asked for fewer requests (503 SlowDown).",
        lambda n: n.store.stats.throttles,
    ),
    counter(
        "store_unknown_outcomes",
        "Writes with an outcome that was unknown at first.",
        lambda n: n.store.stats.unknown,
    ),
    counter("store_lost_puts", "Puts of a key that was taken.", lambda n: n.store.stats.lost),
    counter(
        "store_cost_dollars",
        "Price of the requests at S3 standard's prices; storage and traffic come on top.",
        lambda n: n.store.stats.cost(),
    ),
    counter("store_retries", "Calls that were repeated.", lambda n: n.engine.store_retries.retries),
    gauge(
        "store_waiting",
        "Calls that have failed and wait to be repeated; above 0 the store is failing.",
        lambda n: n.engine.store_retries.waiting,
    ),
    counter(
        "store_waited_seconds",
        "Time that calls waited to be repeated.",
        lambda n: n.engine.store_retries.waited_s,
    ),
)
