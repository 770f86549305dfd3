"""The metadata records about clients: quotas, access rules and credentials."""

import msgspec

from lakehead.storage.metadata.record_base import Long, RecordBase


class ClientQuota(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set quotas of an entity, by quota name; a value of null removes one.

    `entity` maps entity types (`user`, `client-id`, `ip`) to names; null is the default entity.
    """

    entity: dict[str, str | None]
    values: dict[str, float | None]


class AclBinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One access rule, in Kafka's words in lower case (`topic`, `literal`, `read`, `allow`)."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class AclCreate(RecordBase, frozen=True, kw_only=True, tag=True):
    """Access rules that were not there."""

    acls: tuple[AclBinding, ...]


class AclDelete(RecordBase, frozen=True, kw_only=True, tag=True):
    """Access rules go."""

    acls: tuple[AclBinding, ...]


class ScramUpsert(RecordBase, frozen=True, kw_only=True, tag=True):
    """Set a user's credential for a mechanism (`SCRAM-SHA-256`, `SCRAM-SHA-512`). Bytes travel as
    Base64.
    """

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Long


class ScramDelete(RecordBase, frozen=True, kw_only=True, tag=True):
    """A user's credential for a mechanism goes."""

    user: str
    mechanism: str
