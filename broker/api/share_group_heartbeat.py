"""ShareGroupHeartbeat, key 76, version 1: join, stay in and leave a share group (KIP-932)."""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.api.consumer_group_heartbeat import check_size
from lakehead.broker.api.share_acknowledgements import member_of
from lakehead.broker.coordinator.group.consumer.consumer_members import JOIN_EPOCH, LEAVE_EPOCH
from lakehead.broker.coordinator.group.messages import TEXT_SIZE_MAX
from lakehead.broker.coordinator.group.share.share_group import ShareHeartbeat, ShareHeartbeatResult
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TOPIC, READ_GROUP
from lakehead.storage.errors import LakeheadError

_SUBSCRIBED = DESCRIBE_TOPIC.noted("Of every topic that is subscribed to.")
API = Api(key=76, name="ShareGroupHeartbeat", versions=(1, 1), access=(READ_GROUP, _SUBSCRIBED))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response once all that it says is durable."""
    try:
        context.check(READ_GROUP, request.group_id)
        check_size(request.subscribed_topic_names or (), context)
        for topic in request.subscribed_topic_names or ():
            context.check(_SUBSCRIBED, topic)
        _check(request)
        topics = request.subscribed_topic_names
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            rack_id=request.rack_id,
            topics=None if topics is None else frozenset(topics),
        )
        result = await context.services.groups.share_heartbeat(request.group_id, heartbeat)
    except (LakeheadError, TimeoutError) as error:
        return entity(
            context.response,
            "ShareGroupHeartbeatResponse",
            error_code=error_code(error),
            error_message=error_message(error),
            member_epoch=0,
            heartbeat_interval=0,
        )
    return _succeeded(result, context)


def _check(request: Any) -> None:
    """Raise INVALID_REQUEST for fields that contradict each other."""
    member_of(request)
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.invalid_request, f"{name} can't be empty.")
        if text is not None and len(text.encode()) > TEXT_SIZE_MAX:
            raise KafkaError(ErrorCode.invalid_request, f"{name} is too long to be stored.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise KafkaError(
            ErrorCode.invalid_request, "SubscribedTopicNames must be set in first request."
        )
    if request.member_epoch < LEAVE_EPOCH:
        raise KafkaError(ErrorCode.invalid_request, "MemberEpoch is invalid.")


def _succeeded(result: ShareHeartbeatResult, context: RequestContext) -> Any:
    assignment = None
    if result.assignment is not None:
        topics = [
            entity(
                context.response,
                "TopicPartitions",
                topic_id=UUID(bytes=topic_id),
                partitions=sorted(indexes),
            )
            for topic_id, indexes in result.assignment.items()
        ]
        assignment = entity(context.response, "Assignment", topic_partitions=topics)
    return entity(
        context.response,
        "ShareGroupHeartbeatResponse",
        error_code=ErrorCode.none,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval=result.heartbeat_interval_ms,
        assignment=assignment,
    )
