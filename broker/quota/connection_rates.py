"""Rates at which connections are made, by address (KIP-612): `connection_creation_rate`.

A connection beyond the rate of its address is closed, after the time at which one more would be
within the rate, so that a client that connects again at once gains nothing. It does not count for
the rate. As in Kafka that time is at most one sample.
"""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from lakehead.broker.quota.entities import CONNECTION_RATE, IP, EntityClass, Quotas
from lakehead.broker.quota.rates import QuotaWindow, SampledRate
from lakehead.broker.quota.sensors import Sensors
from lakehead.broker.quota.throttles import Throttles
from lakehead.storage.clock import Clock


class ConnectionRates:
    """The rates of a node. `quotas` returns those of the newest metadata image, and the same
    mapping as long as they do not change.
    """

    def __init__(
        self,
        quotas: Callable[[], Quotas],
        clock: Clock,
        window: QuotaWindow,
        throttles: Throttles,
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._window = window
        self._throttles = throttles
        self._seen: Quotas | None = None
        self._by_address: dict[str, float] = {}
        self._default: float | None = None
        self._rates = Sensors(SampledRate)

    def opened(self, address: str) -> float:
        """Record a new connection. Return 0 if it may stay; else the seconds after which it is to
        be closed.
        """
        quotas = self._quotas()
        if not quotas:
            return 0.0
        if quotas is not self._seen:
            self._read(quotas)
        if self._default is None and not self._by_address:
            return 0.0
        address = normal_address(address)
        own = self._by_address.get(address)
        limit = self._default if own is None else own
        if limit is None:
            return 0.0
        now, window = self._clock.monotonic(), self._window
        rate = self._rates.get(address, now)
        rate.record(1, now, window)
        throttle_s = min(rate.throttle_s(limit, now, window), window.sample_s)
        if throttle_s <= 0:
            return 0.0
        rate.record(-1, now, window)
        level = EntityClass.ANY_IP if own is None else EntityClass.IP
        self._throttles.count(CONNECTION_RATE, level, throttle_s, now, limit=limit, address=address)
        return throttle_s

    @property
    def sensors(self) -> int:
        """The number of rates in memory."""
        return len(self._rates)

    def _read(self, quotas: Quotas) -> None:
        self._seen = quotas
        self._by_address, self._default = {}, None
        for entity, values in quotas.items():
            limit = values.get(CONNECTION_RATE)
            if len(entity) != 1 or entity[0][0] != IP or limit is None:
                continue
            address = entity[0][1]
            if address is None:
                self._default = limit
            else:
                self._by_address[normal_address(address)] = limit


def normal_address(text: str) -> str:
    """Return an address in its one form, an IPv4 address within IPv6 as IPv4; a host name as it
    is.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)
