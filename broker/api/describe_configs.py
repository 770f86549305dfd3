"""DescribeConfigs, key 32, versions 1-4: configs of topics and brokers with their sources.

v1: synonyms and sources (KIP-226). v3: types and documentation (KIP-569). v4: flexible.
Broker settings are read-only: they are given when a broker starts. Broker loggers, client metrics
and groups have no configs here.
"""

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from broker.configs import ConfigEntry, broker_entries, topic_entries
from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import KafkaError, error_code
from broker.protocol.messages import entity

API = Api(key=32, name="DescribeConfigs", versions=(1, 4))

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources that have configs."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Answer for each resource."""
    results = []
    for resource in request.resources:
        code, message = ErrorCode.none, None
        entries: Sequence[ConfigEntry] = ()
        try:
            entries = _entries(resource.resource_type, resource.resource_name, context)
        except KafkaError as error:
            code, message = error_code(error), str(error)
        wanted = resource.configuration_keys
        configs = [
            _config(entry, request, context)
            for entry in entries
            if wanted is None or entry.name in wanted
        ]
        results.append(
            entity(
                context.response,
                "DescribeConfigsResult",
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return entity(context.response, "DescribeConfigsResponse", results=results)


def _entries(kind: int, name: str, context: RequestContext) -> Sequence[ConfigEntry]:
    node = context.node
    if kind == TOPIC:
        topic = node.engine.metadata.state.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic_entries(topic.configs, node.settings)
    if kind == BROKER:
        if name == "":  # the defaults of all brokers, of which none are set
            return ()
        if name != str(node.settings.node_id):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"This is broker {node.settings.node_id}; ask broker {name} for its configs.",
            )
        return broker_entries(node.settings)
    if kind in {BROKER_LOGGER, CLIENT_METRICS, GROUP}:
        return ()
    raise KafkaError(ErrorCode.invalid_request, f"Resources of type {kind} have no configs.")


def _config(entry: ConfigEntry, request: Any, context: RequestContext) -> Any:
    synonyms = [
        entity(
            context.response,
            "DescribeConfigsSynonym",
            name=synonym.name,
            value=synonym.value,
            source=synonym.source,
        )
        for synonym in entry.synonyms
        if request.include_synonyms
    ]
    wants_documentation = getattr(request, "include_documentation", False)
    return entity(
        context.response,
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=entry.kind,
        documentation=entry.documentation if wants_documentation else None,
    )
