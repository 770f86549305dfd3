"""Decides if a principal may do an operation on a resource (Kafka's Authorizer)."""

from enum import IntEnum
from typing import Protocol

from lakehead.broker.security.principal import KafkaPrincipal

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    """The type of a resource, as Kafka numbers it."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
    """An operation on a resource, as Kafka numbers it; also its bit in responses (KIP-430)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Authorizer(Protocol):
    """Access rules as they are in force now."""

    @property
    def is_enabled(self) -> bool:
        """False if there are no rules, and every principal may do everything."""

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return true if the principal, connected from the address `host`, may do this."""

    def authorize_by_resource_type(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """Return true if the principal may do this on at least one resource of the type, be there
        such a resource or not.
        """


class AllowAll:
    """No access rules: every principal may do everything (no `authorizer.class.name` in Kafka)."""

    is_enabled = False

    def authorize(
        self,
        principal: KafkaPrincipal,  # noqa: ARG002
        host: str,  # noqa: ARG002
        operation: AclOperation,  # noqa: ARG002
        resource_type: ResourceType,  # noqa: ARG002
        name: str,  # noqa: ARG002
    ) -> bool:
        """See `Authorizer.authorize`."""
        return True

    def authorize_by_resource_type(
        self,
        principal: KafkaPrincipal,  # noqa: ARG002
        host: str,  # noqa: ARG002
        operation: AclOperation,  # noqa: ARG002
        resource_type: ResourceType,  # noqa: ARG002
    ) -> bool:
        """See `Authorizer.authorize_by_resource_type`."""
        return True
