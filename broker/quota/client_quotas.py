"""Quotas of clients, enforced on one node as Kafka's ClientQuotaManagers do (KIP-13, 124, 219,
599).

A `ClientQuota` stands for one client, a user with a client id, and is kept while the quotas of the
cluster do not change. Its methods record what a request used, and return how long the client is to
be throttled: the time after which its rate is down at its limit. A limit counts on each node on its
own. Nothing here waits: the connection is muted by its caller.

Bytes have throttle times as long as the rate takes. The time of request_percentage is at most one
sample, as in Kafka.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.quota.entities import Limit, Quotas, QuotaType, limit_of
from lakehead.broker.quota.rates import QuotaWindow, SampledRate, TokenBucket
from lakehead.broker.quota.sensors import NAME_MAX, SENSORS_MAX, Sensors, short_name
from lakehead.broker.quota.throttles import Throttles
from lakehead.storage.clock import Clock

CLIENTS_MAX = 10_000
"""Clients whose limits are kept; beyond it they are looked up again."""
THROTTLE_MAX_S = (2**31 - 1) / 1000
"""The largest value of the field of responses."""
INT32_MAX = 2**31 - 1


class MutationQuota(Protocol):
    """The limit on new and deleted partitions for one request (KIP-599)."""

    def record(self, partitions: int) -> None:
        """Take tokens for partitions. Raises KafkaError (THROTTLING_QUOTA_EXCEEDED)."""

    def throttle_s(self) -> float:
        """Return the seconds that are left of the throttle time."""


class _Unlimited:
    """No limit."""

    def record(self, partitions: int) -> None:
        """See `MutationQuota.record`."""

    def throttle_s(self) -> float:
        """See `MutationQuota.throttle_s`."""
        return 0.0


UNLIMITED_MUTATIONS: MutationQuota = _Unlimited()


class _LimitedMutations:
    """A limit by a token bucket.

    A strict one refuses every topic while the tokens of the client are in debt. A permissive one
    refuses nothing, for clients that do not know the error, and throttles for the debt.
    """

    def __init__(
        self, client: "ClientQuota", limit: Limit, sensor: TokenBucket, *, is_strict: bool
    ) -> None:
        self._client = client
        self._limit = limit
        self._sensor = sensor
        self._is_strict = is_strict
        self._until: float | None = None

    def record(self, partitions: int) -> None:
        """See `MutationQuota.record`."""
        limit = self._limit
        now, window = self._client.now(), self._client.mutation_window
        debt_s = self._sensor.throttle_s(limit.value, now, window)
        if self._is_strict and debt_s > 0:
            self._until = now + debt_s
            raise KafkaError(
                ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded."
            )
        self._sensor.take(partitions, limit.value, now, window)
        if not self._is_strict:
            debt_s = self._sensor.throttle_s(limit.value, now, window)
            self._until = now + debt_s if debt_s > 0 else self._until

    def throttle_s(self) -> float:
        """See `MutationQuota.throttle_s`."""
        if self._until is None:
            return 0.0
        return _bounded(self._until - self._client.now(), THROTTLE_MAX_S)


class Fetched(NamedTuple):
    """The decision about a fetch response: throttle the client for so long, and send the records
    or not.
    """

    throttle_s: float
    sends_records: bool


class ClientQuota:
    """The limits of one client."""

    __slots__ = ("_fetch", "_mutation", "_owner", "_produce", "_request", "client_id", "user")

    def __init__(self, owner: "ClientQuotas", quotas: Quotas, user: str, client_id: str) -> None:
        self._owner = owner
        self.user = user
        self.client_id = client_id
        self._produce = limit_of(quotas, QuotaType.PRODUCE, user, client_id)
        self._fetch = limit_of(quotas, QuotaType.FETCH, user, client_id)
        self._request = limit_of(quotas, QuotaType.REQUEST, user, client_id)
        self._mutation = limit_of(quotas, QuotaType.CONTROLLER_MUTATION, user, client_id)

    @property
    def is_unlimited(self) -> bool:
        """Return true if no quota counts for the client."""
        return not (self._produce or self._fetch or self._request or self._mutation)

    @property
    def has_request_time(self) -> bool:
        """Return true if the time of requests is limited."""
        return self._request is not None

    @property
    def mutation_window(self) -> QuotaWindow:
        """The window of controller mutations."""
        return self._owner.mutation_window

    def now(self) -> float:
        """Return the monotonic time."""
        return self._owner.clock.monotonic()

    def produced(self, size: int) -> float:
        """Record the bytes of a produce request; return the throttle time in seconds."""
        limit = self._produce
        if limit is None:
            return 0.0
        now, window = self.now(), self._owner.window
        sensor = self._owner.rate(QuotaType.PRODUCE, limit, now)
        sensor.record(size, now, window)
        return _bounded(sensor.throttle_s(limit.value, now, window), THROTTLE_MAX_S)

    def fetch_bytes_max(self) -> int:
        """Return the bytes that a fetch response may have at most: what the samples that are whole
        may have together. More would be throttled for certain.
        """
        limit, window = self._fetch, self._owner.window
        if limit is None:
            return INT32_MAX
        return int(min(INT32_MAX, limit.value * max(1, window.samples - 1) * window.sample_s))

    def fetched(self, size: int, request_throttle_s: float) -> Fetched:
        """Record the bytes of a fetch response and decide on it, given the throttle time for
        request time. The records of a throttled response are not sent, and do not count, as in
        Kafka.

        A batch that is larger than all that the window allows would never be sent this way. It is
        sent if nothing else was within the window, and the client throttled for its size.
        """
        limit = self._fetch
        if limit is None:
            return Fetched(request_throttle_s, request_throttle_s <= 0)
        now, window = self.now(), self._owner.window
        sensor = self._owner.rate(QuotaType.FETCH, limit, now)
        was_quiet = sensor.total(now, window) <= 0
        sensor.record(size, now, window)
        throttle_s = _bounded(sensor.throttle_s(limit.value, now, window), THROTTLE_MAX_S)
        longest_s = max(throttle_s, request_throttle_s)
        if longest_s <= 0 or (was_quiet and request_throttle_s <= 0):
            return Fetched(longest_s, sends_records=True)
        sensor.record(-size, now, window)
        return Fetched(longest_s, sends_records=False)

    def request_took(self, seconds: float) -> float:
        """Record the time that a request took; return the throttle time in seconds."""
        limit = self._request
        if limit is None:
            return 0.0
        now, window = self.now(), self._owner.window
        sensor = self._owner.rate(QuotaType.REQUEST, limit, now)
        sensor.record(seconds * 100, now, window)
        return _bounded(sensor.throttle_s(limit.value, now, window), window.sample_s)

    def add_request_time(self, seconds: float) -> None:
        """Record time that a request took after its throttle time was decided."""
        limit = self._request
        if limit is not None:
            now = self.now()
            sensor = self._owner.rate(QuotaType.REQUEST, limit, now)
            sensor.record(seconds * 100, now, self._owner.window)

    def mutations(self, *, is_strict: bool) -> MutationQuota:
        """Return the limit on controller mutations for one request."""
        limit = self._mutation
        if limit is None:
            return UNLIMITED_MUTATIONS
        bucket = self._owner.bucket(limit, self.now())
        return _LimitedMutations(self, limit, bucket, is_strict=is_strict)

    def throttled(self, quota_type: QuotaType, throttle_s: float) -> None:
        """Count a throttled request, by the quota that throttles it longest."""
        limit = {
            QuotaType.PRODUCE: self._produce,
            QuotaType.FETCH: self._fetch,
            QuotaType.REQUEST: self._request,
            QuotaType.CONTROLLER_MUTATION: self._mutation,
        }[quota_type]
        if limit is not None:
            self._owner.throttles.count(
                quota_type.value,
                limit.level,
                throttle_s,
                self.now(),
                limit=limit.value,
                user=self.user,
                client_id=self.client_id,
            )


class ClientQuotas:
    """The quotas of all clients of a node. `quotas` returns those of the newest metadata image, and
    the same mapping as long as they do not change.
    """

    def __init__(
        self,
        quotas: Callable[[], Quotas],
        clock: Clock,
        window: QuotaWindow,
        mutation_window: QuotaWindow,
        throttles: Throttles,
        sensors_max: int = SENSORS_MAX,
    ) -> None:
        self.clock = clock
        self.window = window
        self.mutation_window = mutation_window
        self.throttles = throttles
        self._quotas = quotas
        self._seen: Quotas | None = None
        self._clients: dict[tuple[str, str], ClientQuota | None] = {}
        self._rates: dict[QuotaType, Sensors[SampledRate]] = {
            kind: Sensors(SampledRate, sensors_max)
            for kind in QuotaType
            if kind is not QuotaType.CONTROLLER_MUTATION
        }
        self._buckets: Sensors[TokenBucket] = Sensors(TokenBucket, sensors_max)

    def of(self, user: str, client_id: str | None) -> ClientQuota | None:
        """Return the quota of a client; None if none of its requests is limited."""
        quotas = self._quotas()
        if not quotas:
            return None
        if quotas is not self._seen:
            self._seen = quotas
            self._clients.clear()
        client_id = client_id or ""
        key = user, client_id
        clients = self._clients
        if key in clients:
            return clients[key]
        client: ClientQuota | None = ClientQuota(self, quotas, user, client_id)
        if client is not None and client.is_unlimited:
            client = None
        if len(user) <= NAME_MAX and len(client_id) <= NAME_MAX:
            if len(clients) >= CLIENTS_MAX:
                clients.clear()
            clients[key] = client
        return client

    def rate(self, kind: QuotaType, limit: Limit, now: float) -> SampledRate:
        """Return the measured rate of those that share a limit."""
        key = short_name(limit.user), short_name(limit.client_id)
        return self._rates[kind].get(key, now)

    def bucket(self, limit: Limit, now: float) -> TokenBucket:
        """Return the token bucket of those that share a limit."""
        return self._buckets.get((short_name(limit.user), short_name(limit.client_id)), now)

    @property
    def sensors(self) -> dict[str, int]:
        """The number of rates in memory, by type of quota."""
        counts = {kind.value: len(sensors) for kind, sensors in self._rates.items()}
        return counts | {QuotaType.CONTROLLER_MUTATION.value: len(self._buckets)}


def _bounded(seconds: float, most: float) -> float:
    """Return a throttle time of a whole millisecond at least, or none, as Kafka rounds it."""
    return min(milliseconds(seconds) / 1000, most)


def milliseconds(seconds: float) -> int:
    """Return a throttle time as responses have it."""
    return int(min(INT32_MAX, seconds * 1000 + 0.5)) if seconds > 0 else 0
