"""UnregisterBroker, key 64, version 0: remove a broker that is gone for good (KIP-500).

A new broker may have its id later. For one that is not registered the error is
BROKER_ID_NOT_REGISTERED. A live broker is refused with INVALID_REQUEST, where Kafka would remove it
until it registers again. While other nodes still recover its partitions the error is
REQUEST_TIMED_OUT, upon which clients retry.
"""

from collections.abc import Generator
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import Record, RetireNode
from lakehead.storage.metadata.rules import open_streams
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=64, name="UnregisterBroker", versions=(0, 0), access=(ALTER_CLUSTER,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response once the broker is removed from the metadata."""
    code, message = ErrorCode.none, None

    def plan(state: MetadataImage) -> Generator[None, None, list[Record]]:
        return [(yield from _retirement(state, request.broker_id))]

    try:
        context.check(ALTER_CLUSTER)
        async with Deadline().limit():
            await context.services.metadata.commit_with(plan)
    except (LakeheadError, TimeoutError) as error:
        code, message = error_code(error), error_message(error)
    return entity(
        context.response, "UnregisterBrokerResponse", error_code=code, error_message=message
    )


def _retirement(state: MetadataImage, node_id: int) -> Generator[None, None, RetireNode]:
    node = state.nodes.get(node_id)
    if node is None:
        raise KafkaError(
            ErrorCode.broker_id_not_registered, f"Broker ID {node_id} is not currently registered"
        )
    if not node.is_fenced:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Broker {node_id} is live: stop it first; what it leads goes to other brokers.",
        )
    led = yield from open_streams(state, node_id)
    if led:
        raise KafkaError(
            ErrorCode.request_timed_out,
            f"{led} partitions of broker {node_id} wait for the recovery of its log.",
        )
    return RetireNode(node_id=node_id)
