"""The telemetry of clients at one node (KIP-714): it gives them subscriptions and takes pushes.

Payloads are decompressed and read in a thread, one at a time; those that wait are bounded in bytes,
beyond which a client gets THROTTLING_QUOTA_EXCEEDED and pushes at its next turn.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from uuid import UUID

from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.configs.client_metrics_configs import CLIENT_INSTANCE_ID
from lakehead.broker.network.connection import Connection
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import uuid_text
from lakehead.broker.telemetry.client_instances import ClientInstance, ClientInstances, Push
from lakehead.broker.telemetry.client_metrics import ClientMetrics, PushedMetrics
from lakehead.broker.telemetry.otlp_forwarder import QUEUE_MAX, OtlpForwarder
from lakehead.broker.telemetry.subscriptions import ATTRIBUTE_MAX, Attributes, MetricsWanted
from lakehead.storage.clock import Clock

WAITING_PUSHES = 4
"""Payloads of the largest size that may wait to be read."""

SubscriptionConfigs = Callable[[], Map[str, Map[str, str]]]
"""Returns the present configs of all subscriptions, by name."""


class ClientTelemetry:
    """Takes the metrics of clients. `forwarder` sends them on, if there is one."""

    def __init__(
        self,
        configs: SubscriptionConfigs,
        clock: Clock,
        rng: random.Random,
        max_bytes: int,
        forwarder: OtlpForwarder | None,
    ) -> None:
        self._configs = configs
        self._clock = clock
        self.max_bytes = max_bytes
        """Most bytes of a push, compressed or not."""
        self.instances = ClientInstances(rng, max_bytes)
        self.metrics = ClientMetrics()
        self.forwarder = forwarder
        self._waiting = 0
        self._turn = asyncio.Lock()
        self.pushes_total = 0
        """Pushes whose metrics were taken."""
        self.bytes_total = 0
        """Their bytes as they came."""
        self.refused_total = 0
        """Pushes that got an error."""

    def subscriptions_of(self, instance_id: UUID | None, client: Attributes) -> ClientInstance:
        """Return what a client is to push. Raises KafkaError; see `ClientInstances.get`."""
        self.instances.update(self._configs())
        return self.instances.get(instance_id, client, self._now_ms())

    def forget_with(self, connection: Connection, instance_id: UUID) -> None:
        """Forget a client when its connection is lost; of several of a connection, the last."""
        connection.when_lost[self] = partial(self.instances.forget, instance_id)

    async def push(self, push: Push, payload: bytes, client: Attributes) -> None:
        """Take the metrics of a client. Raises KafkaError."""
        self.instances.update(self._configs())
        try:
            instance = self.instances.push(push, client, self._now_ms())
            if payload:
                await self._take(push, payload, client, instance)
        except KafkaError:
            self.refused_total += 1
            raise
        self.pushes_total += 1
        self.bytes_total += len(payload)

    async def _take(
        self, push: Push, payload: bytes, client: Attributes, instance: ClientInstance
    ) -> None:
        if self._waiting + len(payload) > WAITING_PUSHES * self.max_bytes:
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        self._waiting += len(payload)
        try:
            async with self._turn:
                read = partial(self._read, push, payload, client, instance.wanted)
                pushed, forwarded = await asyncio.get_running_loop().run_in_executor(None, read)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            self._waiting -= len(payload)
        self.metrics.add(pushed, self._clock.monotonic())
        if self.forwarder is not None:
            self.forwarder.offer(forwarded)

    def _read(
        self, push: Push, payload: bytes, client: Attributes, wanted: MetricsWanted
    ) -> tuple[PushedMetrics, bytes | None]:
        # Loaded at the first push: most nodes never need Protobuf.
        from lakehead.broker.telemetry import metrics_data

        data = metrics_data.parsed(metrics_data.inflated(payload, push.codec, self.max_bytes))
        pushed = metrics_data.read_metrics(data, wanted)
        if self.forwarder is None:
            return pushed, None
        attributes = {
            name: value[:ATTRIBUTE_MAX] for name, value in client.items() if value is not None
        }
        if push.instance_id is not None:
            attributes[CLIENT_INSTANCE_ID] = uuid_text(push.instance_id)
        return pushed, metrics_data.with_attributes(data, attributes, QUEUE_MAX)

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000
