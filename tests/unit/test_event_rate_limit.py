"""Events that clients cause are bounded, and those that were left out are counted."""

from lakehead.broker.observability.event_rate_limit import EventRateLimit
from lakehead.storage.clock import SystemClock


class _Clock(SystemClock):
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_the_same_event_is_written_once_a_minute() -> None:
    clock = _Clock()
    limit = EventRateLimit(clock)
    assert limit.admit(("10.0.0.7", "short"), "10.0.0.7") == 0
    assert [limit.admit(("10.0.0.7", "short"), "10.0.0.7") for _ in range(9)] == [None] * 9
    assert limit.admit(("10.0.0.8", "short"), "10.0.0.8") == 0
    clock.now += 60
    assert limit.admit(("10.0.0.7", "short"), "10.0.0.7") == 9
    assert limit.suppressed_total == 9


def test_an_address_has_fifty_events_at_once_and_five_a_second() -> None:
    clock = _Clock()
    limit = EventRateLimit(clock)
    written = [limit.admit(("10.0.0.7", number), "10.0.0.7") for number in range(1_000)]
    assert sum(one is not None for one in written) == 50
    clock.now += 2
    written = [limit.admit(("10.0.0.7", number), "10.0.0.7") for number in range(1_000, 2_000)]
    assert [one for one in written if one is not None] == [950, *[0] * 9]
    assert limit.admit(("10.0.0.8", 0), "10.0.0.8") == 0
