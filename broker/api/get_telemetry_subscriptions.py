"""GetTelemetrySubscriptions, key 71, version 0: the metrics that a client is to push (KIP-714)."""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.telemetry_clients import client_attributes
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.telemetry.client_instances import COMPRESSION_TYPES

API = Api(
    key=71,
    name="GetTelemetrySubscriptions",
    versions=(0, 0),
    open_to_all="No authorization check is performed, as in Kafka.",
)


def handle(request: Any, context: RequestContext) -> Any:
    """Return the client's subscriptions, and its instance id."""
    telemetry = context.services.telemetry
    try:
        instance = telemetry.subscriptions_of(
            request.client_instance_id, client_attributes(context)
        )
    except KafkaError as error:
        return entity(
            context.response,
            "GetTelemetrySubscriptionsResponse",
            error_code=error.code,
            client_instance_id=None,
            subscription_id=0,
            push_interval=0,
            telemetry_max_bytes=0,
            delta_temporality=False,
        )
    if context.connection is not None:
        telemetry.forget_with(context.connection, instance.instance_id)
    return entity(
        context.response,
        "GetTelemetrySubscriptionsResponse",
        error_code=ErrorCode.none,
        client_instance_id=instance.instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=COMPRESSION_TYPES,
        push_interval=instance.wanted.interval_ms,
        telemetry_max_bytes=telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=instance.wanted.metrics,
    )
