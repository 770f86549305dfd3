"""FindCoordinator, key 10, versions 0-6: which node coordinates a group or a transactional id.

v1: key types. v2: one error for each throttled client. v3: flexible. v4: several keys (KIP-699).
v5: TRANSACTION_ABORTABLE. v6: share groups (KIP-932), of which a key is a share-partition. The
request makes `__consumer_offsets`, `__transaction_state` or `__share_group_state`.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.partition.partition import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    CLUSTER_ACTION,
    DESCRIBE_GROUP,
    DESCRIBE_TRANSACTIONAL_ID,
)
from lakehead.broker.share.share_partition_key import parse_key
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import NodeState

_OF_NODES = CLUSTER_ACTION.noted("Of share-partitions, whose coordinators nodes alone need.")
API = Api(
    key=10,
    name="FindCoordinator",
    versions=(0, 6),
    access=(DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID, _OF_NODES),
)

_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_SHARE_KEY = 2
_SHARE_VERSION = 6
_BATCH_VERSION = 4


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with the node of each key."""
    key_type = getattr(request, "key_type", _GROUP_KEY)
    keys = request.coordinator_keys if context.version >= _BATCH_VERSION else (request.key,)
    found, turns = [], Turns()
    for key in keys:
        await turns.step()
        found.append(await _find(key, key_type, context))
    if context.version >= _BATCH_VERSION:
        coordinators = []
        for key, fields in zip(keys, found, strict=True):
            await turns.step()
            coordinators.append(entity(context.response, "Coordinator", key=key, **fields))
        return entity(context.response, "FindCoordinatorResponse", coordinators=coordinators)
    return entity(context.response, "FindCoordinatorResponse", **found[0])


async def _find(key: str, key_type: int, context: RequestContext) -> dict[str, Any]:
    try:
        node = await _node_of(key, key_type, context)
    except (LakeheadError, TimeoutError) as error:
        code = error_code(error)
        return _fields(code, -1, "", -1, str(error))
    address = context.address_of(node)
    if address is None:
        return _fields(ErrorCode.coordinator_not_available, -1, "", -1, None)
    host, port = address
    return _fields(ErrorCode.none, node.node_id, host, port, None)


def _fields(
    code: ErrorCode, node_id: int, host: str, port: int, message: str | None
) -> dict[str, Any]:
    return {
        "error_code": code,
        "node_id": node_id,
        "host": host,
        "port": port,
        "error_message": message,
    }


async def _node_of(key: str, key_type: int, context: RequestContext) -> NodeState:
    services = context.services
    if key_type == _TRANSACTION_KEY:
        context.check(DESCRIBE_TRANSACTIONAL_ID, key)
        index = await services.transaction_coordinator.shards.partition_for(key)
        where = TRANSACTIONS_TOPIC, index
    elif key_type == _GROUP_KEY:
        context.check(DESCRIBE_GROUP, key)
        where = OFFSETS_TOPIC, await services.groups.partition_for(key)
    elif key_type == _SHARE_KEY and context.version >= _SHARE_VERSION:
        if not context.may_act_as_node(_OF_NODES):
            raise KafkaError(_OF_NODES.error)
        where = SHARE_STATES_TOPIC, await services.share_coordinator.partition_for(_share_key(key))
    else:
        raise KafkaError(ErrorCode.invalid_request, f"no coordinators of key type {key_type}")
    leader = services.metadata_cache.node(where)
    if leader is None:
        raise KafkaError(ErrorCode.coordinator_not_available)
    return leader


def _share_key(key: str) -> str:
    """Return the key of a share-partition. Raises INVALID_REQUEST."""
    try:
        return parse_key(key).text
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error
