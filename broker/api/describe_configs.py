"""DescribeConfigs, key 32, versions 1-4: configs of topics and brokers with their sources.

v1: synonyms and sources (KIP-226). v3: types and documentation (KIP-569). v4: flexible. A request
to a broker is for its own configs, or (empty name) for those that were set for all brokers. The
only logger is `root`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.config_changes import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    RESOURCE_TYPES,
    TOPIC,
)
from lakehead.broker.api.describe_log_dirs import log_dir
from lakehead.broker.api.logger_levels import logger_entries
from lakehead.broker.api.turns import Turns
from lakehead.broker.configs.entries import (
    ConfigEntry,
    broker_entries,
    broker_values,
    client_metrics_entries,
    group_entries,
    shared_entries,
    topic_entries,
)
from lakehead.broker.partition.partition import is_valid_name
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    DESCRIBE_CONFIGS_OF_CLUSTER,
    DESCRIBE_CONFIGS_OF_GROUP,
    DESCRIBE_CONFIGS_OF_TOPIC,
)
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.plain_text import address_text

_OF_CLUSTER = DESCRIBE_CONFIGS_OF_CLUSTER.noted("Configs of brokers, loggers and client metrics.")
API = Api(
    key=32,
    name="DescribeConfigs",
    versions=(1, 4),
    access=(_OF_CLUSTER, DESCRIBE_CONFIGS_OF_TOPIC, DESCRIBE_CONFIGS_OF_GROUP),
)

_INT32_DIGITS = 11
"""With the sign."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each resource."""
    results, turns = [], Turns()
    for resource in _requested(request):
        await turns.step()
        code, message = ErrorCode.none, None
        entries: Sequence[ConfigEntry] = ()
        try:
            _check_access(resource.resource_type, resource.resource_name, context)
            entries = _entries(resource.resource_type, resource.resource_name, context)
        except KafkaError as error:
            code, message = error_code(error), error_message(error)
        wanted = frozenset(resource.configuration_keys or ())
        configs = [
            _config(entry, request, context)
            for entry in entries
            if not wanted or entry.name in wanted
        ]
        await turns.step(len(configs) * 4)  # an entry has its synonyms
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


def _requested(request: Any) -> list[Any]:
    """Return the resources, once each."""
    named = {
        (requested.resource_type, requested.resource_name): requested
        for requested in request.resources
    }
    return list(named.values())


def _check_access(kind: int, name: str, context: RequestContext) -> None:
    if kind == TOPIC:
        context.check(DESCRIBE_CONFIGS_OF_TOPIC, name)
    elif kind == GROUP:
        context.check(DESCRIBE_CONFIGS_OF_GROUP, name)
    elif kind in RESOURCE_TYPES:
        context.check(_OF_CLUSTER)


def _entries(kind: int, name: str, context: RequestContext) -> Sequence[ConfigEntry]:
    services = context.services
    if kind == TOPIC:
        topic = services.state.topics.get(name)
        if topic is None and not is_valid_name(name):
            raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: '{name}'")
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic_entries(topic.configs, broker_values(services.state, services.settings))
    if kind == BROKER and name == "":
        return shared_entries(services.state.broker_configs.get(ALL_BROKERS, {}))
    if kind in {BROKER, BROKER_LOGGER}:
        _check_broker(name, services.node_id)
        if kind == BROKER_LOGGER:
            return logger_entries()
        return broker_entries(broker_values(services.state, services.settings, _facts(context)))
    if kind in {CLIENT_METRICS, GROUP}:
        if name == "":
            raise KafkaError(ErrorCode.invalid_request, "The name must not be empty.")
        if kind == GROUP:
            values = broker_values(services.state, services.settings)
            return group_entries(services.state.group_configs.get(name, {}), values)
        return client_metrics_entries(services.state.client_metrics_configs.get(name, {}))
    raise KafkaError(ErrorCode.invalid_request, f"Resources of type {kind} have no configs.")


def _check_broker(name: str, node_id: int) -> None:
    if len(name) > _INT32_DIGITS or not name.removeprefix("-").isdecimal():
        raise KafkaError(
            ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}"
        )
    if int(name) != node_id:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {node_id} or empty string, but received {name}",
        )


def _facts(context: RequestContext) -> Mapping[str, str]:
    """Return what Kafka's names for places have for values here."""
    services = context.services
    listeners = services.listeners
    return {
        "advertised.listeners": ",".join(
            f"{name}://{address_text(host, port)}"
            for name, (host, port) in services.addresses.items()
        ),
        "broker.id": str(services.node_id),
        "inter.broker.listener.name": listeners.inter_broker.name,
        "listeners": ",".join(
            f"{one.name}://{address_text(one.host, one.port or services.addresses[one.name].port)}"
            for one in listeners.all.values()
        ),
        "log.dirs": log_dir(context),
        "node.id": str(services.node_id),
        "process.roles": "broker,controller",
    }


def _config(entry: ConfigEntry, request: Any, context: RequestContext) -> Any:
    synonyms = [
        entity(
            context.response,
            "DescribeConfigsSynonym",
            name=synonym.name,
            value=None if entry.is_sensitive else synonym.value,
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
        value=None if entry.is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.kind,
        documentation=entry.documentation if wants_documentation else None,
    )
