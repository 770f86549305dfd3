"""Shared by ConsumerGroupDescribe and ShareGroupDescribe: assignments, the right to see the topics
of a group, and groups that cannot be described.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from lakehead.broker.api.authorized_operations import NOT_REQUESTED
from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import Access


def check_topics(shown: Access, names: Iterable[str], context: RequestContext) -> None:
    """Raise TOPIC_AUTHORIZATION_FAILED for a group with topics that the client may not see, by the
    check `shown` that the API declares.
    """
    if not all(context.may(shown, name) for name in sorted(names)):
        raise KafkaError(
            shown.error,
            "The described group uses topics that the client is not authorized to describe.",
        )


def assignment(partitions: TopicPartitions, context: RequestContext) -> Any:
    """Return an assignment, of the topics that there are."""
    named = [
        (context.services.groups.topic_name(topic_id), topic_id, indexes)
        for topic_id, indexes in partitions.items()
    ]
    topics = [
        entity(
            context.response,
            "TopicPartitions",
            topic_id=UUID(bytes=topic_id),
            topic_name=name,
            partitions=sorted(indexes),
        )
        for name, topic_id, indexes in named
        if name is not None
    ]
    return entity(context.response, "Assignment", topic_partitions=topics)


def unknown(group_id: str, error: Exception, context: RequestContext) -> Any:
    """Return a group that cannot be described, with the reason."""
    return entity(
        context.response,
        "DescribedGroup",
        error_code=error_code(error),
        error_message=error_message(error),
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
        authorized_operations=NOT_REQUESTED,
    )
