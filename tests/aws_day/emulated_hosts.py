"""What programs on hosts print in a dry run: figures of nothing, in the shape of the real ones."""

from collections.abc import Callable

PRINTED: dict[str, Callable[[int], dict[str, float]]] = {
    "client": lambda _: {
        "brokers": 2,
        "acknowledged": 1000,
        "lost": 0,
        "twice": 0,
        "longest_gap_s": 1,
        "p50_ms": 1,
        "p99_ms": 2,
    },
    "event": lambda now_ms: {"first_ms": now_ms, "count": 1},
    "device": lambda now_ms: {"seen_ms": now_ms},
    "reservations": lambda now_ms: {
        "reserved": 1,
        "writes": 1000,
        "last_write_began_ms": now_ms - 1000,
        "refused_errno": 52,
        "done": 1,
        "preempt_ms": 1,
        "returned_ms": now_ms,
        "holder": 2827,
        "is_taker": 1,
        "cleared": 1,
    },
}
"""Figures by program, of the time in milliseconds."""
