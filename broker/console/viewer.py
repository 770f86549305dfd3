"""The viewer of a page: the principal for which the cluster's access rules decide.

Without an authorizer everything may be seen, as by Kafka clients of such a cluster. With one, a
viewer logs in by HTTP Basic (RFC 7617) with a SCRAM user of the cluster, or with a user of the
setting `metrics.users`, and sees what the rules allow to that name.
"""

from dataclasses import dataclass

from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.observability.page_access import LOOPBACK, PageAccess, basic_credentials
from lakehead.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from lakehead.broker.security.principal import ANONYMOUS, USER, KafkaPrincipal
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS

_LOOPBACK_NAMES = (LOOPBACK, "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """`host` is the viewer's address. The methods belong to the event loop."""

    node: ObservedNode
    principal: KafkaPrincipal
    host: str

    def sees_cluster(self) -> bool:
        """Return true if nodes and the metadata log may be seen: DESCRIBE of the cluster."""
        return self._may(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)

    def sees_topic(self, name: str) -> bool:
        """Return true if a topic may be seen: DESCRIBE."""
        return self._may(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def sees_configs(self, name: str) -> bool:
        """Return true if a topic's configs may be seen: DESCRIBE_CONFIGS."""
        return self._may(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)

    def alters_configs(self, name: str) -> bool:
        """Return true if a topic's configs may be changed, and so its tables: ALTER_CONFIGS."""
        return self._may(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, name)

    def reads_topic(self, name: str) -> bool:
        """Return true if a topic's records may be seen: READ."""
        return self._may(AclOperation.READ, ResourceType.TOPIC, name)

    def sees_group(self, name: str) -> bool:
        """Return true if a group may be seen: DESCRIBE."""
        return self._may(AclOperation.DESCRIBE, ResourceType.GROUP, name)

    def sees_transactional_id(self, name: str) -> bool:
        """Return true if a transactional id may be seen: DESCRIBE."""
        return self._may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)

    def _may(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        return self.node.services.authorizer.authorize(
            self.principal, self.host, operation, kind, name
        )


def viewer_of(
    node: ObservedNode, access: PageAccess, authorization: str, host: str
) -> Viewer | None:
    """Return the viewer by the header Authorization; None if it has to log in. Takes milliseconds
    for a user of the cluster.
    """
    has_rules = node.services.authorizer.is_enabled
    if not access.needs_authentication and not has_rules:
        return Viewer(node=node, principal=ANONYMOUS, host=host)
    user, password = basic_credentials(authorization)
    if access.needs_authentication and access.is_known(authorization):
        principal = KafkaPrincipal(USER, user) if user else ANONYMOUS
        return Viewer(node=node, principal=principal, host=host)
    if has_rules and user and _is_scram_user(node, user, password):
        return Viewer(node=node, principal=KafkaPrincipal(USER, user), host=host)
    return None


def is_foreign_host(access: PageAccess, host: str) -> bool:
    """Return true for a request whose header Host names another machine, where only programs of
    this one are let in without a password: a web page that the operator visits could have made its
    own name point here (DNS rebinding).
    """
    if access.needs_authentication or access.host != LOOPBACK:
        return False
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.lower() not in _LOOPBACK_NAMES


def _is_scram_user(node: ObservedNode, user: str, password: str) -> bool:
    for name, mechanism in SCRAM_MECHANISMS.items():
        credential = node.state.scram_credentials.get((user, name))
        if credential is not None and mechanism.is_password(password, credential):
            return True
    return False
