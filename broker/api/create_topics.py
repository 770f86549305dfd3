"""CreateTopics, key 19, versions 2-7: create topics, each in one atomic step.

v4: -1 requests the default number of partitions or replicas (KIP-464). v5: flexible; partitions and
configs of the topic in the response (KIP-525). v6: throttling error. v7: topic ids. A replication
factor of 1 to 3 is accepted whatever the number of brokers, and more up to that number: storage is
shared, so nothing is copied; partitions have one replica, their leader. Of a manual assignment the
first live broker becomes the leader, and stays the preferred one.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import (
    METADATA_TOPIC,
    TopicRequest,
    are_too_many,
    check_collision,
    check_new_topic,
    too_many_partitions,
)
from lakehead.broker.api.turns import change_each
from lakehead.broker.configs.entries import broker_values, topic_entries
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.quota.client_quotas import MutationQuota
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DESCRIBE_CONFIGS_OF_TOPIC,
)
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import MetadataImage

_IN_CLUSTER = CREATE_IN_CLUSTER.silent("A denial leaves it to CREATE of each topic.")
_SHOWN_CONFIGS = DESCRIBE_CONFIGS_OF_TOPIC.silent(
    "A denial leaves the configs, the number of partitions and the replication factor out."
)
API = Api(
    key=19,
    name="CreateTopics",
    versions=(2, 7),
    access=(_IN_CLUSTER, CREATE_TOPIC, _SHOWN_CONFIGS),
)
STRICT_QUOTA_SINCE = 6

_REPLICAS = 1
_TOPIC_STEPS = 10
"""Work on the configs of a new topic, counted in elements of a request."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each topic, once its partitions have leaders."""
    named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    allowed = _creatable([name for name in topics if named[name] == 1], context)
    is_too_much = are_too_many(_new_partitions(request, allowed, context))
    quota = context.mutation_quota(STRICT_QUOTA_SINCE)
    deadline = Deadline.of(request)

    async def result(requested: Any) -> Any:
        try:
            if named[requested.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if requested.name not in allowed:
                raise KafkaError(CREATE_TOPIC.error, "Authorization failed.")
            if is_too_much:
                raise too_many_partitions()
            return await _create(requested, request.validate_only, quota, deadline, context)
        except (LakeheadError, TimeoutError) as error:
            return _failure(requested.name, error, context)

    def weight(requested: Any) -> int:
        return _TOPIC_STEPS + len(requested.assignments) + len(requested.configs)

    results = await change_each(topics.values(), result, weight)
    return entity(context.response, "CreateTopicsResponse", topics=results)


def _creatable(names: list[str], context: RequestContext) -> Collection[str]:
    """Return the names of topics that the client may create; METADATA_TOPIC is refused later."""
    if context.may(_IN_CLUSTER):
        return names
    return {name for name in names if name == METADATA_TOPIC or context.may(CREATE_TOPIC, name)}


def _new_partitions(request: Any, allowed: Collection[str], context: RequestContext) -> list[int]:
    default = context.services.settings.num_partitions
    return [
        len(requested.assignments)
        or (default if requested.num_partitions < 0 else requested.num_partitions)
        for requested in request.topics
        if requested.name in allowed
    ]


async def _create(
    requested: Any,
    validate_only: bool,
    quota: MutationQuota,
    deadline: Deadline,
    context: RequestContext,
) -> Any:
    services = context.services
    new = check_new_topic(
        TopicRequest(
            name=requested.name,
            partitions=requested.num_partitions,
            replicas=requested.replication_factor,
            assignments=[
                (one.partition_index, tuple(one.broker_ids)) for one in requested.assignments
            ],
            configs={config.name: config.value for config in requested.configs},
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
        quota.record(new.partitions)
        topic = await services.replication_control.create(
            new.name,
            new.partitions,
            new.configs,
            new.replicas,
            check=check,
            deadline=deadline,
        )
        topic_id = topic.uuid
    if not context.may(_SHOWN_CONFIGS, new.name):
        return entity(
            context.response,
            "CreatableTopicResult",
            name=new.name,
            topic_id=topic_id,
            error_code=ErrorCode.none,
            error_message=None,
            topic_config_error_code=ErrorCode.topic_authorization_failed,
            configs=[],
        )
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
