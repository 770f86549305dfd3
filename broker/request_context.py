"""The context of a request: its API, version, client and the services of the broker."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.broker.quota.client_quotas import UNLIMITED_MUTATIONS, MutationQuota
from lakehead.broker.quota.request_quota import RequestQuota
from lakehead.broker.security.access import Access
from lakehead.broker.security.audit import Attempt
from lakehead.broker.security.authorizer import CLUSTER_NAME
from lakehead.broker.security.principal import ANONYMOUS, KafkaPrincipal
from lakehead.broker.services import BrokerServices
from lakehead.storage.metadata.state import NodeState


@dataclass(slots=True, kw_only=True, eq=False)
class RequestContext:
    """The request as a handler sees it, and the services that the handler may use. It is made for
    each request, which a frozen class would make slower; nothing changes it.
    """

    api: Api
    version: int
    client_id: str | None
    client_host: str
    services: BrokerServices
    connection: Any
    """The connection: an opaque identity, for state that must not outlive it."""
    listener: str = "PLAINTEXT"
    principal: KafkaPrincipal = ANONYMOUS
    """The name under which the client acts."""
    is_from_node: bool = False
    """True if it is proven that a node of this cluster sent it, by the listener between nodes."""
    quota: RequestQuota | None = None
    """The quotas that count for this request; None without any, and for nodes."""

    @property
    def is_stranger(self) -> bool:
        """Return true if the request lacks the proof that nodes give in a cluster with a secret. At
        a feature level without a secret every sender counts as a node.
        """
        return bool(self.services.state.node_secret) and not self.is_from_node

    def may(self, access: Access, name: str = CLUSTER_NAME) -> bool:
        """Return true if the client passes a check that the API declares, for the resource of this
        name. A node of the cluster may do everything. On a standby no client may change anything.
        """
        if self.services.settings.standby and not access.is_of_reader:
            if access.denial is not None:
                self._note(access, name, is_allowed=False)
            return False
        authorizer = self.services.authorizer
        if not authorizer.is_enabled or self.is_from_node:
            return True
        assert access in self.api.access, f"{self.api.name} does not declare {access}"
        is_allowed = authorizer.authorize(
            self.principal, self.client_host, access.operation, access.resource_type, name
        )
        if access.denial is not None and (not is_allowed or self.services.audit.logs_allowed):
            self._note(access, name, is_allowed=is_allowed)
        return is_allowed

    def check(self, access: Access, name: str = CLUSTER_NAME) -> None:
        """Raise KafkaError with the error of a denial unless the client passes a check."""
        if not self.may(access, name):
            raise KafkaError(access.error)

    def may_act_as_node(self, access: Access) -> bool:
        """Return true for a node of the cluster, and for a client that access rules let act as one.
        Without access rules no client may, once nodes can prove that they are nodes.
        """
        if self.services.authorizer.is_enabled or self.services.settings.standby:
            return self.may(access)
        return not self.is_stranger

    def may_for_some(self, access: Access) -> bool:
        """Return true if the client passes a check for at least one resource of the type."""
        if self.services.settings.standby and not access.is_of_reader:
            return False
        authorizer = self.services.authorizer
        if not authorizer.is_enabled or self.is_from_node:
            return True
        assert access in self.api.access, f"{self.api.name} does not declare {access}"
        return authorizer.authorize_by_resource_type(
            self.principal, self.client_host, access.operation, access.resource_type
        )

    def _note(self, access: Access, name: str, *, is_allowed: bool) -> None:
        attempt = Attempt(
            principal=self.principal,
            host=self.client_host,
            listener=self.listener,
            client_id=self.client_id,
            api=self.api.name,
            operation=access.operation,
            resource_type=access.resource_type,
            resource=name,
        )
        audit = self.services.audit
        (audit.allowed if is_allowed else audit.denied)(attempt)

    def mutation_quota(self, strict_since: int) -> MutationQuota:
        """Return the limit on new and deleted partitions for this request: strict from a version
        on, as clients know the error since then (KIP-599).
        """
        if self.quota is None:
            return UNLIMITED_MUTATIONS
        return self.quota.mutations(is_strict=self.version >= strict_since)

    def address_of(self, known: NodeState) -> Address | None:
        """Return the address of a node for this client: that of the listener it connected to. None
        if the node has none for it.
        """
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
