"""Metadata (key 3), versions 0 to 13.

1 controller, internal topics, null = all topics (in 0 the empty list means all) · 2 cluster id · 4
auto-creation flag · 5 offline replicas · 7 leader epoch · 8 authorized operations · 10 topic ids ·
12 topics by id · 13 top-level error.

Every node gives the same response, from the metadata log. Storage is shared, so the replicas of a
partition are its preferred leader and its leader (see `lakehead.broker.cluster.metadata_image`);
with `replica.selector.class` set, the nodes that consumers of the other racks read from as well:
clients fetch from no node that is not among them.
Racks are those of the nodes, so clients that know their own can choose.
"""

from collections.abc import Collection
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, NOTHING, on_cluster, on_topic
from lakehead.broker.api.topic_rules import check_collision
from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.metadata_image import (
    Leader,
    controller_id,
    leader_of,
    live_nodes,
    replicas_of,
)
from lakehead.broker.deadline import Deadline
from lakehead.broker.partition.partition import Topic, is_valid_name
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
)
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import INTERNAL_TOPICS, MetadataImage

_LISTED = DESCRIBE_TOPIC.silent("A denial leaves a topic out when all are requested.")
_IN_CLUSTER = CREATE_IN_CLUSTER.silent("A denial leaves it to CREATE of each topic.")
_CREATED = CREATE_TOPIC.noted("Of a topic that does not exist and would be created.")
_SHOWN_OPERATIONS = DESCRIBE_CLUSTER.silent("A denial shows no operations of the cluster.")
API = Api(
    key=3,
    name="Metadata",
    versions=(0, 13),
    access=(DESCRIBE_TOPIC, _LISTED, _IN_CLUSTER, _CREATED, _SHOWN_OPERATIONS),
)
_LISTENER_NOT_FOUND_VERSION = 6
"""The first version whose clients know that error; others retry as without a leader (KIP-103)."""
STRICT_QUOTA_NEVER = API.versions[1] + 1
_CREATION_S = 10.0
"""The longest that missing topics hold up a response, which is about other topics as well."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the brokers and the requested topics."""
    services, module = context.services, context.response
    if _requests_ids_too_early(request, context.version):
        return await _refused(request, context)
    topics = await _topics(request, context)
    operations = NOT_REQUESTED
    if getattr(request, "include_cluster_authorized_operations", False):
        operations = on_cluster(context) if context.may(_SHOWN_OPERATIONS) else NOTHING
    brokers = [
        entity(
            module,
            "MetadataResponseBroker",
            node_id=known.node_id,
            **address._asdict(),
            rack=known.rack,
        )
        for known in live_nodes(services.state)
        if (address := context.address_of(known)) is not None
    ]
    return entity(
        module,
        "MetadataResponse",
        brokers=brokers,
        cluster_id=services.state.cluster_id,
        controller_id=controller_id(services.state, services.node_id),
        topics=topics,
        error_code=ErrorCode.none,
        cluster_authorized_operations=operations,
    )


def _requests_ids_too_early(request: Any, version: int) -> bool:
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
        cluster_authorized_operations=NOT_REQUESTED,
    )


async def _topics(request: Any, context: RequestContext) -> list[Any]:
    registry = context.services.topics
    wants_operations = getattr(request, "include_topic_authorized_operations", False)
    turns = Turns()
    if request.topics is None or (context.version == 0 and not request.topics):
        return [
            await _described(topic, context, turns, wants_operations=wants_operations)
            for name, topic in sorted(registry.by_name.items())
            if context.may(_LISTED, name)
        ]
    may_create = context.services.settings.auto_create_topics_enable and getattr(
        request, "allow_auto_topic_creation", True
    )
    described, deadline = [], Deadline(_CREATION_S)
    for name, topic_id in _requested(request, context):
        await turns.step()
        if topic_id is None and name is not None:
            described.append(
                await _by_name(
                    name,
                    context,
                    turns,
                    deadline,
                    wants_operations=wants_operations,
                    may_create=may_create,
                )
            )
            continue
        topic = None if topic_id is None else registry.by_id.get(topic_id.bytes)
        if topic is None:
            described.append(_missing(context, None, topic_id, ErrorCode.unknown_topic_id))
        elif not context.may(DESCRIBE_TOPIC, topic.name):
            described.append(_missing(context, None, topic_id, DESCRIBE_TOPIC.error))
        else:
            described.append(
                await _described(topic, context, turns, wants_operations=wants_operations)
            )
    return described


def _requested(request: Any, context: RequestContext) -> dict[tuple[str | None, UUID | None], None]:
    """Return the requested topics, once each. Since version 12 an id goes before a name."""
    return {
        (topic.name, topic.topic_id if context.version >= 12 else None): None
        for topic in request.topics
    }


async def _by_name(
    name: str,
    context: RequestContext,
    turns: Turns,
    deadline: Deadline,
    *,
    wants_operations: bool,
    may_create: bool,
) -> Any:
    if not context.may(DESCRIBE_TOPIC, name):  # the response does not show if it exists
        return _missing(context, name, None, DESCRIBE_TOPIC.error)
    topic = context.services.topics.by_name.get(name)
    if topic is not None:
        return await _described(topic, context, turns, wants_operations=wants_operations)
    if may_create and not context.may(_IN_CLUSTER) and not context.may(_CREATED, name):
        return _missing(context, name, None, _CREATED.error, is_internal=name in INTERNAL_TOPICS)
    operations = on_topic(name, context) if wants_operations else NOT_REQUESTED
    missing = partial(
        _missing, context, name, None, operations=operations, is_internal=name in INTERNAL_TOPICS
    )
    if not is_valid_name(name):
        return missing(ErrorCode.invalid_topic_exception)
    if not may_create and name not in INTERNAL_TOPICS:
        return missing(ErrorCode.unknown_topic_or_partition)
    if name in INTERNAL_TOPICS and name != "__consumer_offsets":
        return missing(ErrorCode.unknown_topic_or_partition)
    try:
        # Permissive in each version, as no response of this API can have the error.
        context.mutation_quota(STRICT_QUOTA_NEVER).record(context.services.settings.num_partitions)
        made = await context.services.replication_control.ensure(
            name, check=partial(check_collision, name), deadline=deadline
        )
        return await _described(made, context, turns, wants_operations=wants_operations)
    except LakeheadError as error:
        code = error_code(error)
        if code is ErrorCode.request_timed_out:  # clients look again only if the leader is missing
            code = ErrorCode.leader_not_available
        return missing(code)


async def _described(
    topic: Topic, context: RequestContext, turns: Turns, *, wants_operations: bool
) -> Any:
    """Describe a topic, as the metadata are now: which may change between turns, as they may while
    the response is on its way.
    """
    module, state = context.response, context.services.state
    await turns.step()
    unreachable = frozenset(context.services.lifecycle.unreachable())
    described = context.services.metadata_cache.described
    key = (topic.uuid, len(topic.stream_ids), module, context.listener, unreachable)
    partitions = described.get(state, key)
    if partitions is None:
        partitions = await _partitions(topic, context, turns, state, unreachable)
        if not context.services.replica_selector.is_enabled:  # it chooses by what changes meanwhile
            described.put(state, key, partitions)
    return entity(
        module,
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.uuid,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=on_topic(topic.name, context)
        if wants_operations
        else NOT_REQUESTED,
    )


async def _partitions(
    topic: Topic,
    context: RequestContext,
    turns: Turns,
    state: MetadataImage,
    unreachable: Collection[int],
) -> tuple[Any, ...]:
    module, readers = context.response, context.services.replica_selector
    partitions = []
    for index, stream_id in enumerate(topic.stream_ids):
        await turns.step()
        stream = state.streams.get(stream_id)
        if stream is None:  # deleted while it was waited for
            continue
        leader = leader_of(state, stream, unreachable)
        replicas = replicas_of(state, stream)
        near = [one for one in readers.all_of(stream) if one not in replicas.every]
        error = _leader_error(leader, context)
        partitions.append(
            entity(
                module,
                "MetadataResponsePartition",
                error_code=error,
                partition_index=index,
                leader_id=-1 if leader is None or error else leader.node.node_id,
                leader_epoch=stream.epoch,
                replica_nodes=(*replicas.every, *near),
                isr_nodes=(*replicas.in_sync, *near),
                offline_replicas=replicas.offline,
            )
        )
    return tuple(partitions)


def _leader_error(leader: Leader | None, context: RequestContext) -> ErrorCode:
    if leader is None:
        return ErrorCode.leader_not_available
    if context.address_of(leader.node) is not None:
        return ErrorCode.none
    is_known = context.version >= _LISTENER_NOT_FOUND_VERSION
    return ErrorCode.listener_not_found if is_known else ErrorCode.leader_not_available


def _missing(
    context: RequestContext,
    name: str | None,
    topic_id: UUID | None,
    error: ErrorCode,
    *,
    operations: int = NOT_REQUESTED,
    is_internal: bool = False,
) -> Any:
    if name is None and context.version < 12:
        name = ""
    return entity(
        context.response,
        "MetadataResponseTopic",
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=is_internal,
        partitions=(),
        topic_authorized_operations=operations,
    )
