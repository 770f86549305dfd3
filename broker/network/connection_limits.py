"""Limits of connections by address and by listener, as Kafka has them: `max.connections.per.ip`
with its overrides, and `listener.name.<name>.max.connections`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.connection import Connection
from lakehead.broker.quota.connection_rates import normal_address
from lakehead.storage.errors import SettingsError

OVERRIDES = "max.connections.per.ip.overrides"
PER_ADDRESS = "max.connections.per.ip"


class ConnectionLimits:
    """Counts open connections. `configs` returns the present configs of this broker."""

    def __init__(self, configs: Callable[[], BrokerValues]) -> None:
        self._configs = configs
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._counted: dict[Connection, str] = {}

    def enter(self, connection: Connection) -> str | None:
        """Count a new connection. Return the setting by which it has no place, or None."""
        values, listener = self._configs(), connection.listener
        address = normal_address(connection.client_host)
        own = values.own_of_listener(listener.prefix, "max.connections")
        if own is not None and self._by_listener[listener.name] >= int(own):
            return listener.prefix + "max.connections"
        overrides = parse_overrides(values.value(OVERRIDES) or "")
        most = overrides.get(address)
        if most is None:
            most = values.number(PER_ADDRESS)
        if self._by_address[address] >= most:
            return PER_ADDRESS
        self._counted[connection] = address
        self._by_address[address] += 1
        self._by_listener[listener.name] += 1
        return None

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        address = self._counted.pop(connection, None)
        if address is None:
            return
        self._by_listener[connection.listener.name] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


@lru_cache(maxsize=16)
def parse_overrides(text: str) -> Mapping[str, int]:
    """Return the limits of single addresses: ADDRESS:NUMBER, separated by commas. Raises
    SettingsError.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, number = part.rpartition(":")
        if not address or not number.isdecimal():
            raise SettingsError(f"{OVERRIDES}: {part!r} is not ADDRESS:NUMBER, like 10.0.0.7:100")
        found[normal_address(address.strip("[]"))] = int(number)
    return found


def check_limits(per_address: int, overrides: str) -> None:
    """Check the limits of addresses together. Raises SettingsError, also for those by which no
    client, and no other node, could connect any more.
    """
    if not parse_overrides(overrides) and per_address == 0:
        raise SettingsError(
            f"{PER_ADDRESS}: 0 shuts out all addresses that {OVERRIDES} does not name"
        )
