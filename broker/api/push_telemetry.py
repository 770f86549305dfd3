"""PushTelemetry, key 72, version 0: a client pushes its metrics (KIP-714)."""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.telemetry_clients import client_attributes
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.telemetry.client_instances import Push

API = Api(
    key=72,
    name="PushTelemetry",
    versions=(0, 0),
    open_to_all="No authorization check is performed, as in Kafka.",
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response once the metrics are taken."""
    payload = request.metrics or b""
    push = Push(
        instance_id=request.client_instance_id,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        codec=request.compression_type,
        size=len(payload),
    )
    telemetry, code = context.services.telemetry, ErrorCode.none
    if context.connection is not None and push.instance_id is not None:
        telemetry.forget_with(context.connection, push.instance_id)
    try:
        await telemetry.push(push, payload, client_attributes(context))
    except KafkaError as error:
        code = error.code
    return entity(context.response, "PushTelemetryResponse", error_code=code)
