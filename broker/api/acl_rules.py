"""Shared by DescribeAcls, CreateAcls and DeleteAcls: rules and filters in requests."""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError, MalformedFrame
from lakehead.broker.security.acls import AclFilter, PatternType, Permission, known, word
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.storage.metadata.records import AclBinding

CHANGES_MAX = 10_000
"""Rules that one request may create or delete: Kafka's MAX_RECORDS_PER_USER_OP."""


def disabled() -> KafkaError:
    """Return the error of a broker without an authorizer."""
    return KafkaError(ErrorCode.security_disabled, "No Authorizer is configured.")


def acl_filter(requested: Any) -> AclFilter:
    """Return the filter of a request. Raises MalformedFrame for numbers of UNKNOWN: Kafka closes
    the connection, too.
    """
    numbers = (
        *(requested.resource_type_filter, requested.pattern_type_filter),
        *(requested.operation, requested.permission_type),
    )
    if 0 in numbers:
        raise MalformedFrame("a filter of access rules has parts of the value UNKNOWN")
    return AclFilter(
        resource_type=ResourceType(known(ResourceType, requested.resource_type_filter)),
        name=requested.resource_name_filter,
        pattern_type=PatternType(known(PatternType, requested.pattern_type_filter)),
        principal=requested.principal_filter,
        host=requested.host_filter,
        operation=AclOperation(known(AclOperation, requested.operation)),
        permission=Permission(known(Permission, requested.permission_type)),
    )


def binding(requested: Any) -> AclBinding:
    """Return the rule of a request. Raises MalformedFrame for numbers of UNKNOWN."""
    numbers = (
        *(requested.resource_type, requested.resource_pattern_type),
        *(requested.operation, requested.permission_type),
    )
    if 0 in numbers:
        raise MalformedFrame("an access rule has parts of the value UNKNOWN")
    return AclBinding(
        resource_type=word(known(ResourceType, requested.resource_type)),
        resource_name=requested.resource_name,
        pattern_type=word(known(PatternType, requested.resource_pattern_type)),
        principal=requested.principal,
        host=requested.host,
        operation=word(known(AclOperation, requested.operation)),
        permission=word(known(Permission, requested.permission_type)),
    )


def entry_fields(acl: AclBinding) -> dict[str, Any]:
    """Return principal, host, operation and effect of a rule, as responses have them."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation[acl.operation.upper()],
        "permission_type": Permission[acl.permission.upper()],
    }


def pattern_fields(acl: AclBinding) -> dict[str, Any]:
    """Return the resources that a rule is about, as responses have them."""
    return {
        "resource_type": ResourceType[acl.resource_type.upper()],
        "resource_name": acl.resource_name,
        "pattern_type": PatternType[acl.pattern_type.upper()],
    }
