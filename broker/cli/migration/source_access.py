"""ACLs, client quotas and SCRAM users of the cluster that is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.quota_rules import check_entity, check_quota
from lakehead.broker.cli.migration.source_brokers import SourceBrokers
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.security.acls import PatternType, Permission, known, word
from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS
from lakehead.storage.errors import RequestRefused
from lakehead.storage.metadata.records import AclBinding
from lakehead.storage.metadata.state import QuotaEntity

_DESCRIBE_ACLS, _DESCRIBE_QUOTAS, _DESCRIBE_SCRAM = 29, 48, 50
_ANY = 1
"""The value that selects all, of each enumeration of a filter on ACLs."""
_MECHANISMS = {one.number: one.name for one in SCRAM_MECHANISMS.values()}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ScramUser:
    """A user with a credential of a mechanism. Kafka gives nothing else of it (KIP-554)."""

    user: str
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceQuotas:
    """Quotas by entity, and what does not exist here, in words."""

    quotas: Mapping[QuotaEntity, Mapping[str, float]]
    left_out: tuple[str, ...]


def _check(code: ErrorCode, message: str | None) -> None:
    if code is not ErrorCode.none:
        raise RequestRefused(f"the source responds {code.name.upper()} ({message or 'no message'})")


async def source_acls(brokers: SourceBrokers) -> frozenset[AclBinding]:
    """Return all ACLs; none of a source without an authorizer. Raises RequestRefused also for one
    that has parts which this release does not know.
    """
    response = await brokers.request(
        *(_DESCRIBE_ACLS, 3, "DescribeAclsRequest"),
        lambda _: {
            "resource_type_filter": _ANY,
            "resource_name_filter": None,
            "pattern_type_filter": _ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": _ANY,
            "permission_type": _ANY,
        },
    )
    if response.error_code is ErrorCode.security_disabled:
        return frozenset()
    _check(response.error_code, response.error_message)
    return frozenset(
        _acl(resource, acl) for resource in response.resources for acl in resource.acls
    )


def _acl(resource: Any, acl: Any) -> AclBinding:
    parts = (
        known(ResourceType, resource.resource_type),
        known(PatternType, resource.pattern_type),
        known(AclOperation, acl.operation),
        known(Permission, acl.permission_type),
    )
    if 0 in parts:
        raise RequestRefused(
            f"an ACL of {acl.principal} on {resource.resource_name} has a resource type, operation "
            "or permission that does not exist here"
        )
    resource_type, pattern_type, operation, permission = map(word, parts)
    return AclBinding(
        resource_type=resource_type,
        resource_name=resource.resource_name,
        pattern_type=pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=operation,
        permission=permission,
    )


async def source_quotas(brokers: SourceBrokers) -> SourceQuotas:
    """Return the quotas of all entities."""
    response = await brokers.request(
        *(_DESCRIBE_QUOTAS, 1, "DescribeClientQuotasRequest"),
        lambda _: {"components": [], "strict": False},
    )
    _check(response.error_code, response.error_message)
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    left_out = []
    for entry in response.entries or ():
        entity = {one.entity_type: one.entity_name for one in entry.entity}
        for one in entry.values:
            try:
                check_entity(entity)
                check_quota(entity, one.key, one.value)
            except KafkaError:
                named = ", ".join(f"{kind} {name}" for kind, name in sorted(entity.items()))
                left_out.append(f"{one.key} of {named}")
            else:
                quotas.setdefault(tuple(sorted(entity.items())), {})[one.key] = float(one.value)
    return SourceQuotas(quotas=quotas, left_out=tuple(left_out))


async def source_users(brokers: SourceBrokers) -> list[ScramUser]:
    """Return the users with SCRAM credentials."""
    response = await brokers.request(
        *(_DESCRIBE_SCRAM, 0, "DescribeUserScramCredentialsRequest"), lambda _: {"users": None}
    )
    _check(response.error_code, response.error_message)
    return sorted(
        ScramUser(
            user=result.user,
            mechanism=_MECHANISMS.get(info.mechanism, f"mechanism {info.mechanism}"),
            iterations=int(info.iterations),
        )
        for result in response.results
        for info in result.credential_infos
    )
