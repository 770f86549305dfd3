"""ShareAcknowledge (key 79), versions 1 and 2: verdicts of a share group's member on records.

2 renewal of acquisition locks (KIP-1222).

The response comes when all of it is durable. With the final epoch the share session ends, and what
the member has left of records is free for others.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.share_acknowledgements import (
    RECORDS_MAX,
    Acknowledged,
    acknowledge,
    group_of,
    member_of,
    refused_without_batches,
)
from lakehead.broker.cluster.metadata_image import hint_for
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP, READ_TOPIC
from lakehead.broker.share.share_session import FINAL_EPOCH, INITIAL_EPOCH, Place

API = Api(
    key=79,
    name="ShareAcknowledge",
    versions=(1, 2),
    records_max=RECORDS_MAX,
    access=(READ_GROUP, READ_TOPIC),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with an outcome for each partition."""
    services = context.services
    epoch = request.share_session_epoch
    try:
        context.check(READ_GROUP, group_of(request))
        member = member_of(request)
        sessions = services.share_partitions.sessions
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.invalid_share_session_epoch)
        if epoch == FINAL_EPOCH:
            sessions.find(member)
        else:
            sessions.next(member, epoch)
    except KafkaError as error:
        return _response(context, error.code, error.message, 0, [], [])
    outcomes = await acknowledge(context, member, request)
    outcomes |= refused_without_batches(context, request.topics)
    if epoch == FINAL_EPOCH:
        released = services.share_partitions.release(member)
        sessions.close(member)
        if released:
            await asyncio.wait(released)
    endpoints: dict[int, NodeEndpoint] = {}
    topics: dict[bytes, list[Any]] = {}
    for place, outcome in outcomes.items():
        partition = _partition(context, place, outcome, endpoints)
        topics.setdefault(place[0], []).append(partition)
    named = {topic.topic_id.bytes: topic.topic_id for topic in request.topics if topic.topic_id}
    responses = [
        entity(
            context.response,
            "ShareAcknowledgeTopicResponse",
            topic_id=named.get(topic_id),
            partitions=partitions,
        )
        for topic_id, partitions in topics.items()
    ]
    lock_ms = services.share_partitions.settings.lock_ms(member.group_id)
    return _response(context, ErrorCode.none, None, lock_ms, responses, list(endpoints.values()))


def _partition(
    context: RequestContext,
    place: Place,
    outcome: Acknowledged,
    endpoints: dict[int, NodeEndpoint],
) -> Any:
    services = context.services
    leader = (-1, -1)
    if outcome.code is ErrorCode.not_leader_or_follower:
        topic = services.topics.by_id.get(place[0])
        hint = hint_for(services.state, topic, place[1], services.node_id, context.address_of)
        if hint is not None:
            leader, endpoint = hint
            endpoints[endpoint.node_id] = endpoint
    return entity(
        context.response,
        "PartitionData",
        partition_index=place[1],
        error_code=outcome.code,
        error_message=outcome.message,
        current_leader=entity(
            context.response, "LeaderIdAndEpoch", leader_id=leader[0], leader_epoch=leader[1]
        ),
    )


def _response(
    context: RequestContext,
    code: ErrorCode,
    message: str | None,
    lock_ms: int,
    responses: list[Any],
    endpoints: list[NodeEndpoint],
) -> Any:
    nodes = [entity(context.response, "NodeEndpoint", **one._asdict()) for one in endpoints]
    return entity(
        context.response,
        "ShareAcknowledgeResponse",
        error_code=code,
        error_message=message,
        acquisition_lock_timeout=lock_ms,
        responses=responses,
        node_endpoints=nodes,
    )
