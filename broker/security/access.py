"""The checks of APIs as data: an operation on a resource, and the error of a denial.

An API declares its checks (`Api.access`), and its handler makes them by `RequestContext.may`. The
page of all checks, and the test that compares it with Kafka's, read the declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from lakehead.broker.security.authorizer import AclOperation, ResourceType

DENIALS: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}
"""The error of a denial, by the type of the resource."""
_OF_READERS = frozenset(
    {AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE_TOKENS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One check. A denial without an error is not reported to the client, and not audited: another
    check decides then, or the resource is left out of the response. `note` says which.
    """

    operation: AclOperation
    resource_type: ResourceType
    denial: ErrorCode | None
    note: str = ""

    @property
    def is_of_reader(self) -> bool:
        """Return true if what it guards changes nothing in the cluster. READ of a group does: of
        its members, or of its offsets.
        """
        is_read = self.operation is AclOperation.READ and self.resource_type is ResourceType.TOPIC
        return is_read or self.operation in _OF_READERS

    @property
    def error(self) -> ErrorCode:
        """The error of a denial, of a check that has one."""
        assert self.denial is not None, "a silent check has no error"
        return self.denial

    def silent(self, note: str) -> "Access":
        """Return the same check, whose denial is not reported."""
        return replace(self, denial=None, note=note)

    def noted(self, note: str) -> "Access":
        """Return the same check with a note."""
        return replace(self, note=note)


def _access(operation: AclOperation, resource_type: ResourceType) -> Access:
    denial = DENIALS[resource_type]
    return Access(operation=operation, resource_type=resource_type, denial=denial)


READ_TOPIC = _access(AclOperation.READ, ResourceType.TOPIC)
WRITE_TOPIC = _access(AclOperation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC = _access(AclOperation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC = _access(AclOperation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = _access(AclOperation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC = _access(AclOperation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_CONFIGS_OF_TOPIC = _access(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_CONFIGS_OF_TOPIC = _access(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC)

READ_GROUP = _access(AclOperation.READ, ResourceType.GROUP)
DELETE_GROUP = _access(AclOperation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP = _access(AclOperation.DESCRIBE, ResourceType.GROUP)
DESCRIBE_CONFIGS_OF_GROUP = _access(AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP)
ALTER_CONFIGS_OF_GROUP = _access(AclOperation.ALTER_CONFIGS, ResourceType.GROUP)

CREATE_IN_CLUSTER = _access(AclOperation.CREATE, ResourceType.CLUSTER)
DELETE_IN_CLUSTER = _access(AclOperation.DELETE, ResourceType.CLUSTER)
ALTER_CLUSTER = _access(AclOperation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = _access(AclOperation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION = _access(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CONFIGS_OF_CLUSTER = _access(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CONFIGS_OF_CLUSTER = _access(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
IDEMPOTENT_WRITE = _access(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

WRITE_TRANSACTIONAL_ID = _access(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTIONAL_ID = _access(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
TWO_PHASE_COMMIT = _access(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID)

DESCRIBE_TOKEN = _access(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN)
CREATE_TOKENS = _access(AclOperation.CREATE_TOKENS, ResourceType.USER)
DESCRIBE_TOKENS = _access(AclOperation.DESCRIBE_TOKENS, ResourceType.USER)
