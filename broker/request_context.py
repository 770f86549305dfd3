"""The context of a request: its API, version, client and the services of the broker."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.services import BrokerServices
from lakehead.storage.metadata.state import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The request as a handler sees it, and the services that the handler may use."""

    api: Api
    version: int
    client_id: str | None
    client_host: str
    services: BrokerServices
    connection: Any
    """The connection: an opaque identity, for state that must not outlive it."""
    listener: str = "PLAINTEXT"
    is_from_node: bool = False
    """True if it is proven that a node of this cluster sent it."""

    @property
    def is_stranger(self) -> bool:
        """Return true if the request lacks the proof that nodes give in a cluster with a secret. At
        a feature level without a secret every sender counts as a node.
        """
        return bool(self.services.state.node_secret) and not self.is_from_node

    def address_of(self, known: NodeState) -> Address:
        """Return the address of a node for this client: that of the listener it connected to."""
        return self.services.listeners.address(self.listener, known)

    @property
    def response(self) -> ModuleType:
        """The module with the response classes of this version."""
        return schema(self.api.key, self.version).response_module

    @property
    def request(self) -> ModuleType:
        """The module with the request classes of this version."""
        return schema(self.api.key, self.version).request_module


class Deferred(NamedTuple):
    """A response without a task: `finish(outcome)` makes it once `outcome` is done. It is not
    called for a cancelled outcome.
    """

    outcome: asyncio.Future[Any]
    finish: Callable[[asyncio.Future[Any]], Any]

    def __await__(self) -> Generator[Any, None, Any]:
        with contextlib.suppress(Exception):  # `finish` looks at it
            yield from self.outcome.__await__()
        return self.finish(self.outcome)
