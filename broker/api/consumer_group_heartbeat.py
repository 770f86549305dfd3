"""ConsumerGroupHeartbeat, key 68, versions 0-1: join, stay in and leave a consumer group (KIP-848).

v1: regular expressions; a member makes its own id. Regular expressions are RE2's.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import (
    HeartbeatRequest,
    HeartbeatResult,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    TopicPartitions,
    topic_partitions,
)
from lakehead.broker.coordinator.group.consumer.topic_regex import IsVisible
from lakehead.broker.coordinator.group.messages import TEXT_SIZE_MAX
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.request_context import Deferred, RequestContext
from lakehead.broker.security.access import DESCRIBE_TOPIC, READ_GROUP
from lakehead.storage.errors import LakeheadError

_SUBSCRIBED = DESCRIBE_TOPIC.noted("Of every topic that is subscribed to by name.")
_MATCHED = DESCRIBE_TOPIC.silent("A denial leaves out a topic that a regular expression matches.")
API = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    versions=(0, 1),
    is_at_once=True,
    access=(READ_GROUP, _SUBSCRIBED, _MATCHED),
)

_OWN_ID_VERSION = 1


def handle(request: Any, context: RequestContext) -> Any:
    """Return the response once all that it says is durable."""
    try:
        _check_access(request, context)
        _check(request, context)
        if context.services.groups.is_loaded(request.group_id):
            return _handle(request, context)
    except LakeheadError as error:
        return _failed(error, context)
    return _handle_loaded(request, context)


async def _handle_loaded(request: Any, context: RequestContext) -> Any:
    with contextlib.suppress(LakeheadError):  # the next step says so
        await context.services.groups.loaded(request.group_id)
    try:
        response = _handle(request, context)
    except LakeheadError as error:
        return _failed(error, context)
    return await response if isinstance(response, Deferred) else response


def _handle(request: Any, context: RequestContext) -> Any:
    groups = context.services.groups
    topics = request.subscribed_topic_names
    heartbeat = HeartbeatRequest(
        member_id=request.member_id or groups.new_member_id(),
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topics=None if topics is None else frozenset(topics),
        regex=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=_owned(request),
    )
    stored = groups.consumer_heartbeat(request.group_id, heartbeat, _visibility(context))

    def finish(stored: asyncio.Future[HeartbeatResult]) -> Any:
        error = stored.exception()
        return _succeeded(stored.result(), context) if error is None else _failed(error, context)

    return finish(stored) if stored.done() else Deferred(stored, finish)


def _visibility(context: RequestContext) -> IsVisible | None:
    """Return a check of topics that a regular expression matches: it is made off the event loop."""
    authorizer = context.services.authorizer
    if not authorizer.is_enabled or context.is_from_node:
        return None
    principal, host = context.principal, context.client_host

    def is_visible(topic: str) -> bool:
        return authorizer.authorize(
            principal, host, _MATCHED.operation, _MATCHED.resource_type, topic
        )

    return is_visible


def _owned(request: Any) -> TopicPartitions | None:
    if request.topic_partitions is None:
        return None
    return topic_partitions(
        (topic.topic_id.bytes, topic.partitions)
        for topic in request.topic_partitions
        if topic.topic_id is not None
    )


def _check_access(request: Any, context: RequestContext) -> None:
    """Raise the error of a denial, and UNKNOWN_SERVER_ERROR for a subscription that cannot be
    stored: it is too large to look at each topic.
    """
    context.check(READ_GROUP, request.group_id)
    topics = request.subscribed_topic_names or ()
    check_size(topics, context)
    for topic in topics:
        context.check(_SUBSCRIBED, topic)


def check_size(topics: Iterable[str], context: RequestContext) -> None:
    """Raise UNKNOWN_SERVER_ERROR for a subscription to topics that cannot be stored."""
    if sum(map(len, topics)) > context.services.settings.message_max_bytes:
        raise KafkaError(
            ErrorCode.unknown_server_error, "The subscription is too large to be stored."
        )


def _check(request: Any, context: RequestContext) -> None:
    """Raise INVALID_REQUEST for fields that contradict each other, as Kafka does in this order;
    UNSUPPORTED_ASSIGNOR.
    """
    is_own_id = context.version >= _OWN_ID_VERSION or request.member_epoch != JOIN_EPOCH
    if is_own_id and not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_joining(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    texts = (request.member_id, request.instance_id or "", request.rack_id or "")
    regex = getattr(request, "subscribed_topic_regex", None) or ""
    if any(len(text.encode()) > TEXT_SIZE_MAX for text in (*texts, regex)):
        raise _invalid(f"A text of more than {TEXT_SIZE_MAX} bytes cannot be stored.")
    known = context.services.groups.assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(known)}.",
        )


def _check_joining(request: Any) -> None:
    if milliseconds(request.rebalance_timeout) == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    regex = getattr(request, "subscribed_topic_regex", None)
    if request.subscribed_topic_names is None and regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def _succeeded(result: HeartbeatResult, context: RequestContext) -> Any:
    assignment = None
    if result.assignment is not None:
        assignment = entity(
            context.response,
            "Assignment",
            topic_partitions=[
                entity(
                    context.response,
                    "TopicPartitions",
                    topic_id=UUID(bytes=topic_id),
                    partitions=sorted(indexes),
                )
                for topic_id, indexes in result.assignment.items()
            ],
        )
    return entity(
        context.response,
        "ConsumerGroupHeartbeatResponse",
        error_code=ErrorCode.none,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _failed(error: BaseException, context: RequestContext) -> Any:
    return entity(
        context.response,
        "ConsumerGroupHeartbeatResponse",
        error_code=error_code(error),
        error_message=error_message(error),
        member_epoch=0,
        heartbeat_interval=0,
    )
