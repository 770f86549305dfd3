"""The limit that counts for a client, by the eight levels of Kafka's `ClientQuotaManager`.

Quotas are read from the metadata image as they are: a changed quota counts from the next request.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from lakehead.storage.metadata.state import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""The quotas of the metadata image. A name of None stands for the default entity."""


class QuotaType(StrEnum):
    """A kind of quota of clients, by the name of its config."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"


CONNECTION_RATE = "connection_creation_rate"
"""The quota of an address."""


class EntityClass(StrEnum):
    """The level at which a limit is set, for metrics and the log."""

    USER_CLIENT = "user, client-id"
    USER_ANY_CLIENT = "user, default client-id"
    USER = "user"
    ANY_USER_CLIENT = "default user, client-id"
    ANY_USER_ANY_CLIENT = "default user, default client-id"
    ANY_USER = "default user"
    CLIENT = "client-id"
    ANY_CLIENT = "default client-id"
    IP = "ip"
    ANY_IP = "default ip"
    BROKER = "broker"
    LISTENER = "listener"


class Limit(NamedTuple):
    """A limit in its unit per second, and the clients that share it: those of `user` and
    `client_id`, where an empty name stands for all.
    """

    value: float
    user: str
    client_id: str
    level: EntityClass


def limit_of(quotas: Quotas, quota_type: QuotaType, user: str, client_id: str) -> Limit | None:
    """Return the limit of the most specific level that sets this quota for a client; None without
    any. A default counts for each name on its own: clients share a limit by name.
    """
    for entity, by_user, by_client, level in _levels(user, client_id):
        # As in Kafka, a client without an id has no limits of levels that name client ids.
        if by_client and not client_id:
            continue
        value = quotas.get(entity, {}).get(quota_type.value)
        if value is not None:
            return Limit(value, user if by_user else "", client_id if by_client else "", level)
    return None


def _levels(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, bool, bool, EntityClass]]:
    """Yield entities by falling precedence; whether users, and client ids, share a limit by name;
    and the level.
    """
    any_user, any_client = (USER, None), (CLIENT_ID, None)
    own_user, own_client = (USER, user), (CLIENT_ID, client_id)
    yield (own_client, own_user), True, True, EntityClass.USER_CLIENT
    yield (any_client, own_user), True, True, EntityClass.USER_ANY_CLIENT
    yield (own_user,), True, False, EntityClass.USER
    yield (own_client, any_user), True, True, EntityClass.ANY_USER_CLIENT
    yield (any_client, any_user), True, True, EntityClass.ANY_USER_ANY_CLIENT
    yield (any_user,), True, False, EntityClass.ANY_USER
    yield (own_client,), False, True, EntityClass.CLIENT
    yield (any_client,), False, True, EntityClass.ANY_CLIENT
