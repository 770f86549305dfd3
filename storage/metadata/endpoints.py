"""The addresses of a node, by listener, as its registration has them (`RegisterNode.endpoints`)::

    NAME=PROTOCOL://host:port,...

The first is that of the listener between nodes. Clients of a listener get the addresses that nodes
have for it.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple


class Endpoint(NamedTuple):
    """The address of a node's listener. `protocol` is Kafka's name of the security
    protocol.
    """

    listener: str
    protocol: str
    host: str
    port: int


def endpoints_text(endpoints: Iterable[Endpoint]) -> str:
    """Return endpoints as a registration has them."""
    return ",".join(f"{one.listener}={one.protocol}://{one.host}:{one.port}" for one in endpoints)


@lru_cache(maxsize=4096)
def parse_endpoints(text: str) -> Mapping[str, Endpoint]:
    """Return the endpoints of a registration, by listener. One that this release cannot read is
    left out: its listener counts as not advertised.
    """
    found = {}
    for part in filter(None, text.split(",")):
        name, _, place = part.partition("=")
        protocol, _, address = place.partition("://")
        host, _, port = address.rpartition(":")
        if name and host and port.isdecimal():
            found[name] = Endpoint(name, protocol, host, int(port))
    return MappingProxyType(found)
