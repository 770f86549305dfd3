"""Rates at which a node accepts connections, in all and by listener (KIP-612):
`max.connection.creation.rate`.

A connection beyond a rate waits, and those after it on its listener wait in the queue of the
kernel; none is closed. As in Kafka it counts for both rates when it is accepted, waits one sample
at most, and is not counted again. The listener between nodes has its own rate only, unless it is
the only listener.
"""

from collections.abc import Callable

from lakehead.broker.configs.definition import INT_MAX
from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.quota.entities import EntityClass
from lakehead.broker.quota.rates import QuotaWindow, SampledRate
from lakehead.broker.quota.throttles import Throttles
from lakehead.storage.clock import Clock

ACCEPT_RATE = "max.connection.creation.rate"
_BROKER = ""


class AcceptRates:
    """The rates of a node. `configs` returns the present configs of this broker."""

    def __init__(
        self,
        configs: Callable[[], BrokerValues],
        clock: Clock,
        window: QuotaWindow,
        throttles: Throttles,
    ) -> None:
        self._configs = configs
        self._clock = clock
        self._window = window
        self._throttles = throttles
        self._rates: dict[str, SampledRate] = {}
        """By listener; of all listeners by the empty name."""

    def accepted(self, listener: str, prefix: str, *, is_protected: bool) -> float:
        """Record a new connection of a listener, whose own settings begin with `prefix`. Return the
        seconds that it has to wait. `is_protected`: the rate of the broker does not count for it.
        """
        values = self._configs()
        seconds = 0.0
        if not is_protected:
            seconds = self._recorded(_BROKER, values.number(ACCEPT_RATE), EntityClass.BROKER)
        own = values.own_of_listener(prefix, ACCEPT_RATE)
        if own is not None:
            seconds = max(seconds, self._recorded(listener, int(own), EntityClass.LISTENER))
        return seconds

    def _recorded(self, name: str, limit: int, level: EntityClass) -> float:
        if limit >= INT_MAX:
            self._rates.pop(name, None)
            return 0.0
        rate = self._rates.get(name)
        if rate is None:
            rate = self._rates[name] = SampledRate()
        now, window = self._clock.monotonic(), self._window
        rate.record(1, now, window)
        seconds = window.sample_s
        if limit > 0:
            seconds = min(rate.throttle_s(limit, now, window), seconds)
        if seconds > 0:
            self._throttles.count(ACCEPT_RATE, level, seconds, now, limit=limit)
        return seconds
