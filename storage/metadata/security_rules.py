"""The rules of quotas, access rules and credentials.

They hold what they are given and judge its shape alone. Which words Kafka knows (operations, quota
names, mechanisms) is for the broker to check before it commits: a rule that knew them would make
two releases of different vocabulary disagree about one entry.
"""

import math
from dataclasses import replace

from immutables import Map

from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.demands import require
from lakehead.storage.metadata.state import ClusterState, ScramCredential


def client_quota(state: ClusterState, record: r.ClientQuota, _: int) -> ClusterState:
    """Set or remove quotas of an entity."""
    require(bool(record.entity), "a quota without an entity")
    entity = tuple(sorted(record.entity.items()))
    values = state.quotas.get(entity, Map())
    for name, value in record.values.items():
        if value is None:
            values = values.delete(name) if name in values else values
            continue
        require(math.isfinite(value) and value > 0, f"quota {name} of {value}")
        values = values.set(name, float(value))
    if values:
        return replace(state, quotas=state.quotas.set(entity, values))
    return replace(state, quotas=state.quotas.delete(entity)) if entity in state.quotas else state


def create_acls(state: ClusterState, record: r.AclCreate, _: int) -> ClusterState:
    """Add access rules."""
    acls = state.acls
    for acl in record.acls:
        require(acl not in acls, f"{acl} exists")
        acls = acls.set(acl, True)
    return replace(state, acls=acls)


def delete_acls(state: ClusterState, record: r.AclDelete, _: int) -> ClusterState:
    """Remove access rules."""
    acls = state.acls
    for acl in record.acls:
        require(acl in acls, f"no {acl}")
        acls = acls.delete(acl)
    return replace(state, acls=acls)


def upsert_scram(state: ClusterState, record: r.ScramUpsert, _: int) -> ClusterState:
    """Set a credential."""
    whole = record.salt and record.stored_key and record.server_key and record.iterations > 0
    require(bool(whole and record.user), f"an incomplete credential of user {record.user!r}")
    credential = ScramCredential(
        salt=record.salt,
        stored_key=record.stored_key,
        server_key=record.server_key,
        iterations=record.iterations,
    )
    name = (record.user, record.mechanism)
    return replace(state, scram_credentials=state.scram_credentials.set(name, credential))


def delete_scram(state: ClusterState, record: r.ScramDelete, _: int) -> ClusterState:
    """Remove a credential."""
    name = (record.user, record.mechanism)
    require(name in state.scram_credentials, f"user {record.user!r} has no {record.mechanism}")
    return replace(state, scram_credentials=state.scram_credentials.delete(name))
