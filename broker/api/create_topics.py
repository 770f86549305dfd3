"""CreateTopics, key 19, versions 2-7: create topics, each in one atomic step.

v4: -1 requests the default number of partitions or replicas (KIP-464). v5: flexible; partitions and
configs of the topic in the response (KIP-525). v6: throttling error. v7: topic ids. A replication
factor of 1 to 3 is accepted whatever the number of brokers, and more up to that number: storage is
shared, so nothing is copied; partitions have one replica, their leader. Of a manual assignment the
first live broker becomes the leader, and stays the preferred one.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import (
    TopicRequest,
    are_too_many,
    check_collision,
    check_new_topic,
    too_many_partitions,
)
from lakehead.broker.api.turns import Turns
from lakehead.broker.configs.entries import broker_values, topic_entries
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=19, name="CreateTopics", versions=(2, 7))

_REPLICAS = 1
_TOPIC_STEPS = 10
"""Work on the configs of a new topic, counted in elements of a request."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each topic, once its partitions have leaders."""
    named = Counter(topic.name for topic in request.topics)
    is_too_much = are_too_many(_new_partitions(request, context))
    results, turns = [], Turns()
    for asked in {topic.name: topic for topic in request.topics}.values():
        await turns.step(_TOPIC_STEPS + len(asked.assignments) + len(asked.configs))
        try:
            if named[asked.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if is_too_much:
                raise too_many_partitions()
            results.append(await _create(asked, request.validate_only, context))
        except (LakeheadError, TimeoutError) as error:
            results.append(_failure(asked.name, error, context))
    return entity(context.response, "CreateTopicsResponse", topics=results)


def _new_partitions(request: Any, context: RequestContext) -> list[int]:
    default = context.services.settings.num_partitions
    return [
        len(asked.assignments) or (default if asked.num_partitions < 0 else asked.num_partitions)
        for asked in request.topics
    ]


async def _create(asked: Any, validate_only: bool, context: RequestContext) -> Any:
    services = context.services
    new = check_new_topic(
        TopicRequest(
            name=asked.name,
            partitions=asked.num_partitions,
            replicas=asked.replication_factor,
            assignments=[(one.partition_index, tuple(one.broker_ids)) for one in asked.assignments],
            configs={config.name: config.value for config in asked.configs},
        ),
        services.metadata.state,
        services.settings,
        services.table_places,
    )
    topic_id = None

    def check(state: MetadataImage) -> None:
        check_collision(new.name, state)
        services.table_places.check(new.name, new.configs, {}, state)

    if not validate_only:
        topic = await services.replication_control.create(
            new.name,
            new.partitions,
            new.configs,
            new.replicas,
            check=check,
        )
        topic_id = topic.uuid
    configs = [
        entity(
            context.response,
            "CreatableTopicConfigs",
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=False,
        )
        for entry in topic_entries(new.configs, broker_values(services.state, services.settings))
        if hasattr(context.response, "CreatableTopicConfigs")
    ]
    return entity(
        context.response,
        "CreatableTopicResult",
        name=new.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=new.partitions,
        replication_factor=_REPLICAS,
        configs=configs,
    )


def _failure(name: str, error: Exception, context: RequestContext) -> Any:
    return entity(
        context.response,
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=error_code(error),
        error_message=error_message(error),
        configs=[],
    )
