"""The clients that push metrics: their ids, subscriptions and turns (KIP-714).

Synchronous, and bounded: beyond `INSTANCES_MAX` the client that was silent for longest is
forgotten, and one that comes again is a new one.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.configs.client_metrics_configs import CLIENT_INSTANCE_ID, DEFAULT_INTERVAL_MS
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import uuid_text
from lakehead.broker.telemetry.subscriptions import Attributes, MetricsWanted, Subscriptions

INSTANCES_MAX = 16_384
"""Clients that a node knows at once: Kafka's limit."""
COMPRESSION_TYPES = (4, 3, 1, 2)
"""Codecs that clients may compress their metrics with, the preferred one first."""
_CODECS = frozenset({0, *COMPRESSION_TYPES})
_KEPT_MS = 60_000
_INTERVALS_KEPT = 3
_NEVER = float("-inf")
_RESERVED = frozenset({UUID(int=0), UUID(int=1)})
_OUTDATED = frozenset({ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type})
"""Errors after which a client needs its subscriptions at once."""


@dataclass(slots=True, kw_only=True)
class ClientInstance:
    """A client and its subscription. Times are milliseconds of the monotonic clock."""

    instance_id: UUID
    wanted: MetricsWanted
    subscription_id: int
    version: int
    used_ms: float
    get_ms: float = _NEVER
    push_ms: float = _NEVER
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.none

    def may_get(self, now_ms: float) -> bool:
        """Return true if the interval is over since its last request, and note this one."""
        if now_ms - max(self.get_ms, self.push_ms) < self.wanted.interval_ms:
            return False
        self.get_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """Return true if it has not pushed since it got its subscriptions, or the interval is over;
        and note this push. Clients push up to half an interval early.
        """
        is_due = now_ms - self.push_ms >= self.wanted.interval_ms
        if not is_due and self.get_ms <= self.push_ms:
            return False
        self.push_ms = now_ms
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A push without its metrics, which have `size` bytes."""

    instance_id: UUID | None
    subscription_id: int
    is_terminating: bool
    codec: int
    size: int


class ClientInstances:
    """The clients that a node knows. `max_bytes` is the most that one push may have."""

    def __init__(self, rng: random.Random, max_bytes: int) -> None:
        self._rng = rng
        self._max_bytes = max_bytes
        self._subscriptions = Subscriptions()
        self._known: OrderedDict[UUID, ClientInstance] = OrderedDict()
        self.throttled_total = 0
        """Requests that came before the interval was over."""
        self.unknown_subscriptions_total = 0
        """Pushes for a subscription that is not the client's."""

    def __len__(self) -> int:
        return len(self._known)

    def update(self, configs: Map[str, Map[str, str]]) -> None:
        """Take the present configs of all subscriptions, by name."""
        self._subscriptions.update(configs)

    def forget(self, instance_id: UUID) -> None:
        """Forget a client, whose connection has ended."""
        self._known.pop(instance_id, None)

    def get(self, instance_id: UUID | None, client: Attributes, now_ms: float) -> ClientInstance:
        """Return a client's instance, with a new id if it has none, so that it learns what to push.

        Raises KafkaError of THROTTLING_QUOTA_EXCEEDED before its interval is over.
        """
        instance = self._instance(instance_id or self._new_id(), client, now_ms)
        if not instance.may_get(now_ms) and instance.last_error not in _OUTDATED:
            self.throttled_total += 1
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        instance.last_error = ErrorCode.none
        return instance

    def push(self, push: Push, client: Attributes, now_ms: float) -> ClientInstance:
        """Return the instance of a client that may push its metrics now. Raises KafkaError."""
        if push.instance_id is None or push.instance_id in _RESERVED:
            raise KafkaError(ErrorCode.invalid_request)
        instance = self._instance(push.instance_id, client, now_ms)
        try:
            self._check(push, instance, now_ms)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = push.is_terminating
        instance.last_error = ErrorCode.none
        return instance

    def _check(self, push: Push, instance: ClientInstance, now_ms: float) -> None:
        if instance.is_terminating:
            raise KafkaError(ErrorCode.invalid_request)
        if not instance.may_push(now_ms) and not push.is_terminating:
            self.throttled_total += 1
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        if push.subscription_id != instance.subscription_id:
            self.unknown_subscriptions_total += 1
            raise KafkaError(ErrorCode.unknown_subscription_id)
        if push.codec not in _CODECS:
            raise KafkaError(ErrorCode.unsupported_compression_type)
        if push.size > self._max_bytes:
            raise KafkaError(ErrorCode.telemetry_too_large)

    def _instance(self, instance_id: UUID, client: Attributes, now_ms: float) -> ClientInstance:
        found = self._known.get(instance_id)
        if found is None or found.version != self._subscriptions.version or _is_old(found, now_ms):
            found = self._known[instance_id] = self._made(instance_id, client, now_ms)
        self._known.move_to_end(instance_id)
        if len(self._known) > INSTANCES_MAX:
            self._known.popitem(last=False)
        found.used_ms = now_ms
        return found

    def _made(self, instance_id: UUID, client: Attributes, now_ms: float) -> ClientInstance:
        known = {**client, CLIENT_INSTANCE_ID: uuid_text(instance_id)}
        wanted = self._subscriptions.of(known, DEFAULT_INTERVAL_MS)
        return ClientInstance(
            instance_id=instance_id,
            wanted=wanted,
            subscription_id=_subscription_id(wanted, instance_id),
            version=self._subscriptions.version,
            used_ms=now_ms,
        )

    def _new_id(self) -> UUID:
        while True:
            instance_id = UUID(int=self._rng.getrandbits(128), version=4)
            if instance_id not in self._known and uuid_text(instance_id)[0] != "-":
                return instance_id


def _is_old(instance: ClientInstance, now_ms: float) -> bool:
    kept_ms = max(_KEPT_MS, _INTERVALS_KEPT * instance.wanted.interval_ms)
    return now_ms - instance.used_ms > kept_ms


def _subscription_id(wanted: MetricsWanted, instance_id: UUID) -> int:
    """Return the id of what a client is to push: the same at every node, and another after a
    change.
    """
    text = f"[{', '.join(wanted.metrics)}]{wanted.interval_ms}"
    bits = crc32c(text.encode()) ^ instance_id.int & 0xFFFF_FFFF
    return bits - (1 << 32) if bits >> 31 else bits
