"""OffsetFetch, key 9, versions 1-10: the committed offsets of groups.

v2: null requests every partition; errors of the group. v5: leader epochs (KIP-320). v6: flexible.
v7: require_stable: UNSTABLE_OFFSET_COMMIT while an open transaction may change an offset (KIP-447).
v8: several groups (KIP-709). v9: member epochs of KIP-848. v10: topic ids.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.group_metadata import TopicPartition
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, DESCRIBE_TOPIC
from lakehead.storage.errors import LakeheadError

_LISTED = DESCRIBE_TOPIC.silent("A denial leaves a topic out when all are requested.")
API = Api(
    key=9,
    name="OffsetFetch",
    versions=(1, 10),
    access=(DESCRIBE_GROUP, DESCRIBE_TOPIC, _LISTED),
)

_ERROR_VERSION = 2
_GROUPS_VERSION = 8
_TOPIC_ID_VERSION = 10
_NONE = CommittedOffset(offset=-1)

Found = Mapping[TopicPartition, CommittedOffset | None]
"""Offsets; None is for one that an open transaction may change."""
_NO_OFFSETS: Found = {}


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with the durable offsets."""
    is_stable, turns = getattr(request, "require_stable", False), Turns()
    if context.version < _GROUPS_VERSION:
        code, offsets = await _offsets(request, context, is_stable=is_stable)
        topics = await _topics(request.topics, code, offsets, context, turns)
        return entity(context.response, "OffsetFetchResponse", topics=topics, error_code=code)
    named = Counter(group.group_id for group in request.groups)
    groups = []
    for group in request.groups:
        await turns.step()
        code, offsets = ErrorCode.invalid_request, _NO_OFFSETS
        if named[group.group_id] == 1:  # else one group makes any response as long as one likes
            code, offsets = await _offsets(group, context, is_stable=is_stable)
        topics = [] if code is not ErrorCode.none else group.topics
        groups.append(
            entity(
                context.response,
                "OffsetFetchResponseGroup",
                group_id=group.group_id,
                topics=await _topics(topics, code, offsets, context, turns),
                error_code=code,
            )
        )
    return entity(context.response, "OffsetFetchResponse", groups=groups)


async def _offsets(
    requested: Any, context: RequestContext, *, is_stable: bool
) -> tuple[ErrorCode, Found]:
    """Return the offsets of a group, None for one that a transaction may change. A request for all
    partitions gets only those with an offset, as in Kafka.
    """
    try:
        context.check(DESCRIBE_GROUP, requested.group_id)
        if not await context.services.session.ensure():
            return ErrorCode.not_coordinator, {}  # another may be, and know newer commits
        groups = context.services.groups
        code = await groups.check_fetch(
            requested.group_id,
            getattr(requested, "member_id", None),
            getattr(requested, "member_epoch", -1),
        )
        if code is not ErrorCode.none:
            return code, _NO_OFFSETS
        offsets = await groups.offsets(requested.group_id)
        unstable = await groups.unstable(requested.group_id) if is_stable else set()
        if requested.topics is None:
            unstable = unstable & offsets.keys()
        return ErrorCode.none, {**offsets, **dict.fromkeys(unstable)} if unstable else offsets
    except LakeheadError as error:
        return error_code(error), _NO_OFFSETS


async def _topics(
    requested: Any, code: ErrorCode, offsets: Found, context: RequestContext, turns: Turns
) -> list[Any]:
    plural = "s" if context.version >= _GROUPS_VERSION else ""
    # Only version 1 has no place for an error of the group.
    partition_code = code if context.version < _ERROR_VERSION else ErrorCode.none
    topics = []
    for name, topic_id, indexes, topic_code in _selected(requested, offsets, context):
        await turns.step()
        partitions = []
        for index in indexes:
            await turns.step()
            is_hidden = topic_code is DESCRIBE_TOPIC.error
            offset = _NONE if is_hidden else offsets.get((name, index), _NONE)
            unstable = ErrorCode.unstable_offset_commit if offset is None else None
            offset = offset or _NONE
            partitions.append(
                entity(
                    context.response,
                    f"OffsetFetchResponsePartition{plural}",
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    error_code=topic_code or unstable or partition_code,
                )
            )
        topics.append(
            entity(
                context.response,
                f"OffsetFetchResponseTopic{plural}",
                name=name,
                topic_id=topic_id,
                partitions=partitions,
            )
        )
    return topics


def _selected(
    requested: Any, offsets: Found, context: RequestContext
) -> Iterator[tuple[str, Any, list[int], ErrorCode | None]]:
    """Yield (name, topic id, partitions, error) of the requested topics; None requests all."""
    registry = context.services.topics
    if requested is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(offsets):
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = registry.find(name)
            if topic is not None and context.may(_LISTED, name):
                yield name, topic.uuid, indexes, None
        return
    for topic in requested:
        indexes = list(topic.partition_indexes)
        if context.version < _TOPIC_ID_VERSION:
            denial = None if context.may(DESCRIBE_TOPIC, topic.name) else DESCRIBE_TOPIC.error
            yield topic.name, None, indexes, denial
            continue
        found = None if topic.topic_id is None else registry.find(topic.topic_id.bytes)
        if found is None:
            yield "", topic.topic_id, indexes, ErrorCode.unknown_topic_id
        else:
            denial = None if context.may(DESCRIBE_TOPIC, found.name) else DESCRIBE_TOPIC.error
            yield found.name, topic.topic_id, indexes, denial
