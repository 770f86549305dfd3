"""The description of groups by ConsumerGroupDescribe and ShareGroupDescribe, which differ in how a
group is found and in the fields of its members.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, on_group
from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, Access
from lakehead.storage.errors import LakeheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    """A group, with its members as the response has them."""

    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: list[Any]
    topics: set[str]
    """Those that members subscribe to, or have."""


async def described_groups(
    request: Any,
    context: RequestContext,
    shown: Access,
    find: Callable[[str], Awaitable[FoundGroup]],
) -> list[Any]:
    """Return each group of a request, or the reason that it cannot be described. `find` finds one;
    `shown` is the check of topics that the API declares.
    """
    groups, turns = [], Turns()
    for group_id in dict.fromkeys(request.group_ids):
        await turns.step()
        try:
            context.check(DESCRIBE_GROUP, group_id)
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            found = await find(group_id)
            await turns.step(len(found.members))
            _check_topics(shown, found.topics, context)
        except LakeheadError as error:
            groups.append(_unknown(group_id, error, context))
            continue
        operations = NOT_REQUESTED
        if request.include_authorized_operations:
            operations = on_group(group_id, context)
        groups.append(
            entity(
                context.response,
                "DescribedGroup",
                error_code=ErrorCode.none,
                group_id=group_id,
                group_state=found.state,
                group_epoch=found.epoch,
                assignment_epoch=found.target_epoch,
                assignor_name=found.assignor,
                members=found.members,
                authorized_operations=operations,
            )
        )
    return groups


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


def _check_topics(shown: Access, names: Iterable[str], context: RequestContext) -> None:
    """Raise TOPIC_AUTHORIZATION_FAILED for a group with topics that the client may not see."""
    if not all(context.may(shown, name) for name in sorted(names)):
        raise KafkaError(
            shown.error,
            "The described group uses topics that the client is not authorized to describe.",
        )


def _unknown(group_id: str, error: Exception, context: RequestContext) -> Any:
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
