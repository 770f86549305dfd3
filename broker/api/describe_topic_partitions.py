"""DescribeTopicPartitions, key 75, version 0: topics page by page (KIP-966).

Topics are sorted by name; a response holds at most as many partitions as requested, and a cursor to
the next page. Without names, all topics are described.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, on_topic
from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.metadata_image import leader_of, replicas_of
from lakehead.broker.partition.partition import is_valid_name
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TOPIC
from lakehead.storage.metadata.state import INTERNAL_TOPICS, MetadataImage, TopicState

_LISTED = DESCRIBE_TOPIC.silent("A denial leaves a topic out when all are requested.")
API = Api(
    key=75,
    name="DescribeTopicPartitions",
    versions=(0, 0),
    access=(DESCRIBE_TOPIC, _LISTED),
)

_PAGE_MAX = 2000


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, which is one page."""
    state = context.services.metadata.state
    names = sorted({topic.name for topic in request.topics} or state.topics)
    cursor = request.cursor
    first_name, first_index = "", 0
    if cursor is not None:
        first_name, first_index = cursor.topic_name, cursor.partition_index
        if first_index < 0 or (request.topics and first_name not in names):
            return await _invalid_cursor(names, context)
    room = max(1, min(request.response_partition_limit, _PAGE_MAX))
    topics, turns = [], Turns()
    next_cursor = None
    access = DESCRIBE_TOPIC if request.topics else _LISTED
    allowed: list[str] = []
    denied: list[str] = []
    for name in names:
        await turns.step()
        if name >= first_name:
            (allowed if context.may(access, name) else denied).append(name)
    for name in allowed:
        await turns.step()
        if room == 0:  # as in Kafka, the next page may begin with a topic that does not exist
            next_cursor = _cursor(name, 0, context)
            break
        topic = state.topics.get(name)
        if topic is None:
            topics.append(_unknown(name, context))
            continue
        start = first_index if name == first_name else 0
        end = min(len(topic.partitions), start + room)
        topics.append(await _known(topic, range(start, end), state, context, turns))
        room -= max(end - start, 0)
        if end < len(topic.partitions):
            next_cursor = _cursor(name, end, context)
            break
    for name in denied if request.topics else ():
        await turns.step()
        topics.append(_refused(name, DESCRIBE_TOPIC.error, context, NOT_REQUESTED))
    return entity(
        context.response,
        "DescribeTopicPartitionsResponse",
        topics=topics,
        next_cursor=next_cursor,
    )


async def _invalid_cursor(names: list[str], context: RequestContext) -> Any:
    topics, turns = [], Turns()
    for name in names:
        await turns.step()
        topics.append(_refused(name, ErrorCode.invalid_request, context, NOT_REQUESTED))
    return entity(
        context.response, "DescribeTopicPartitionsResponse", topics=topics, next_cursor=None
    )


def _cursor(name: str, index: int, context: RequestContext) -> Any:
    return entity(context.response, "Cursor", topic_name=name, partition_index=index)


def _unknown(name: str, context: RequestContext) -> Any:
    code = ErrorCode.unknown_topic_or_partition
    if not is_valid_name(name):
        code = ErrorCode.invalid_topic_exception
    return _refused(name, code, context, on_topic(name, context))


def _refused(name: str, code: ErrorCode, context: RequestContext, operations: int) -> Any:
    is_known = code is not DESCRIBE_TOPIC.error and name in INTERNAL_TOPICS
    return entity(
        context.response,
        "DescribeTopicPartitionsResponseTopic",
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=is_known,
        partitions=[],
        topic_authorized_operations=operations,
    )


async def _known(
    topic: TopicState, indexes: range, state: MetadataImage, context: RequestContext, turns: Turns
) -> Any:
    partitions = []
    for index in indexes:
        await turns.step()
        partitions.append(_partition(index, topic, state, context))
    registered = context.services.topics.find(topic.name)
    return entity(
        context.response,
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=None if registered is None else registered.uuid,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=on_topic(topic.name, context),
    )


def _partition(index: int, topic: TopicState, state: MetadataImage, context: RequestContext) -> Any:
    stream = state.streams[topic.partitions[index]]
    leader = leader_of(state, stream, context.services.lifecycle.unreachable())
    replicas = replicas_of(state, stream)
    return entity(
        context.response,
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.leader_not_available if leader is None else ErrorCode.none,
        partition_index=index,
        leader_id=-1 if leader is None else leader.node.node_id,
        leader_epoch=stream.epoch,
        replica_nodes=replicas.every,
        isr_nodes=replicas.in_sync,
        # None would be right, but the Java client takes it for a list.
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=replicas.offline,
    )
