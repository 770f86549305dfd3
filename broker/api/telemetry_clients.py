"""Shared by the APIs of telemetry (KIP-714): what is known of a client, by the names of KIP-714."""

from lakehead.broker.configs.client_metrics_configs import (
    CLIENT_ID,
    SOFTWARE_NAME,
    SOFTWARE_VERSION,
    SOURCE_ADDRESS,
    SOURCE_PORT,
)
from lakehead.broker.request_context import RequestContext
from lakehead.broker.telemetry.subscriptions import Attributes


def client_attributes(context: RequestContext) -> Attributes:
    """Return the attributes of the client that sent a request."""
    connection = context.connection
    known = {CLIENT_ID: context.client_id, SOURCE_ADDRESS: context.client_host}
    if connection is None:
        return known
    return known | {
        SOFTWARE_NAME: connection.software_name,
        SOFTWARE_VERSION: connection.software_version,
        SOURCE_PORT: str(connection.client_port),
    }
