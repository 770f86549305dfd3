"""Metadata (key 3), versions 0 to 13.

1 controller, internal topics, null = all topics (in 0 the empty list means all) · 2 cluster id · 4
auto-creation flag · 5 offline replicas · 7 leader epoch · 8 authorized operations · 10 topic ids ·
12 topics by id · 13 top-level error.

Every node gives the same response, from the metadata log. Storage is shared, so the replicas of a
partition are its preferred leader and its leader (see `lakehead.broker.cluster.metadata_image`).
Racks are those of the nodes, so clients that know their own can choose.
"""

from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_ASKED, ON_CLUSTER, ON_TOPICS
from lakehead.broker.api.topic_rules import check_collision
from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.metadata_image import controller_id, leader_of, live_nodes, replicas_of
from lakehead.broker.partition.partition import Topic, is_valid_name
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import INTERNAL_TOPICS

API = Api(key=3, name="Metadata", versions=(0, 13))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the brokers and the requested topics."""
    services, module = context.services, context.response
    if _asks_for_ids_too_early(request, context.version):
        return await _refused(request, context)
    topics = await _topics(request, context)
    is_asked = getattr(request, "include_cluster_authorized_operations", False)
    brokers = [
        entity(
            module,
            "MetadataResponseBroker",
            node_id=known.node_id,
            **context.address_of(known)._asdict(),
            rack=known.rack,
        )
        for known in live_nodes(services.state)
    ]
    return entity(
        module,
        "MetadataResponse",
        brokers=brokers,
        cluster_id=services.state.cluster_id,
        controller_id=controller_id(services.state, services.node_id),
        topics=topics,
        error_code=ErrorCode.none,
        cluster_authorized_operations=ON_CLUSTER if is_asked else NOT_ASKED,
    )


def _asks_for_ids_too_early(request: Any, version: int) -> bool:
    if version not in {10, 11}:  # they have the field, but Kafka's response is by name alone
        return False
    return any(topic.name is None or topic.topic_id is not None for topic in request.topics or ())


async def _refused(request: Any, context: RequestContext) -> Any:
    topics, turns = list[Any](), Turns()
    for topic in request.topics:
        await turns.step()
        topics.append(_missing(context, topic.name, topic.topic_id, ErrorCode.invalid_request))
    return entity(
        context.response,
        "MetadataResponse",
        brokers=(),
        cluster_id=None,
        controller_id=-1,
        topics=topics,
        cluster_authorized_operations=NOT_ASKED,
    )


async def _topics(request: Any, context: RequestContext) -> list[Any]:
    registry = context.services.topics
    wants_operations = getattr(request, "include_topic_authorized_operations", False)
    operations = ON_TOPICS if wants_operations else NOT_ASKED
    turns = Turns()
    if request.topics is None or (context.version == 0 and not request.topics):
        return [
            await _described(topic, context, operations, turns)
            for _, topic in sorted(registry.by_name.items())
        ]
    may_create = context.services.settings.auto_create_topics_enable and getattr(
        request, "allow_auto_topic_creation", True
    )
    answers = []
    for name, topic_id in _asked(request, context):
        await turns.step()
        if topic_id is None and name is not None:
            answers.append(await _by_name(name, context, operations, turns, may_create=may_create))
            continue
        topic = None if topic_id is None else registry.by_id.get(topic_id.bytes)
        answers.append(
            _missing(context, None, topic_id, ErrorCode.unknown_topic_id)
            if topic is None
            else await _described(topic, context, operations, turns)
        )
    return answers


def _asked(request: Any, context: RequestContext) -> dict[tuple[str | None, UUID | None], None]:
    """Return the requested topics, once each. Since version 12 an id goes before a name."""
    return {
        (topic.name, topic.topic_id if context.version >= 12 else None): None
        for topic in request.topics
    }


async def _by_name(
    name: str, context: RequestContext, operations: int, turns: Turns, *, may_create: bool
) -> Any:
    topic = context.services.topics.by_name.get(name)
    if topic is not None:
        return await _described(topic, context, operations, turns)
    if not is_valid_name(name):
        return _missing(context, name, None, ErrorCode.invalid_topic_exception, operations)
    if not may_create and name not in INTERNAL_TOPICS:
        return _missing(context, name, None, ErrorCode.unknown_topic_or_partition, operations)
    if name in INTERNAL_TOPICS and name != "__consumer_offsets":
        return _missing(context, name, None, ErrorCode.unknown_topic_or_partition, operations)
    try:
        made = await context.services.replication_control.ensure(
            name, check=partial(check_collision, name)
        )
        return await _described(made, context, operations, turns)
    except LakeheadError as error:
        return _missing(context, name, None, error_code(error), operations)


async def _described(topic: Topic, context: RequestContext, operations: int, turns: Turns) -> Any:
    """Describe a topic, as the metadata are now: which may change between turns, as they may while
    the response is on its way.
    """
    module, state = context.response, context.services.state
    await turns.step()
    unreachable = context.services.lifecycle.unreachable()
    partitions = []
    for index, stream_id in enumerate(topic.stream_ids):
        await turns.step()
        stream = state.streams.get(stream_id)
        if stream is None:  # deleted while it was waited for
            continue
        leader = leader_of(state, stream, unreachable)
        replicas = replicas_of(state, stream)
        partitions.append(
            entity(
                module,
                "MetadataResponsePartition",
                error_code=ErrorCode.leader_not_available if leader is None else ErrorCode.none,
                partition_index=index,
                leader_id=-1 if leader is None else leader.node.node_id,
                leader_epoch=stream.epoch,
                replica_nodes=replicas.every,
                isr_nodes=replicas.in_sync,
                offline_replicas=replicas.offline,
            )
        )
    return entity(
        module,
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.uuid,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def _missing(
    context: RequestContext,
    name: str | None,
    topic_id: UUID | None,
    error: ErrorCode,
    operations: int = NOT_ASKED,
) -> Any:
    if name is None and context.version < 12:
        name = ""
    return entity(
        context.response,
        "MetadataResponseTopic",
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=operations,
    )
