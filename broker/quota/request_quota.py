"""The quotas of one request: what it used, the time that it took, and the throttle time of its
response (KIP-219: the response leaves at once, and the connection is muted for that time).

The time of a request is what `request_percentage` counts (KIP-124). 100 % is one event loop that
does nothing else for a second. The time counts in which the loop, or a thread that helps
it, works on the request. Time in which a request waits (for the log, for records, for the object
store) does not count.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from lakehead.broker.quota.client_quotas import ClientQuota, MutationQuota, milliseconds
from lakehead.broker.quota.entities import QuotaType

T = TypeVar("T")
Mute = Callable[[float], None]


class RequestQuota:
    """One request of a client with quotas. `mute` mutes the client's connection for seconds.

    It is entered (`with`) wherever the loop works on the request, to measure that time; it may be
    nested.
    """

    __slots__ = (
        "_began",
        "_client",
        "_depth",
        "_is_reported",
        "_mutations",
        "_mute",
        "_spent",
        "_until",
        "is_timed",
    )

    def __init__(self, client: ClientQuota, mute: Mute) -> None:
        self._client = client
        self._mute = mute
        self.is_timed = client.has_request_time
        """True if the time of the request is limited, and so measured."""
        self._spent = 0.0
        self._began = 0.0
        self._depth = 0
        self._is_reported = False
        self._mutations: MutationQuota | None = None
        self._until = 0.0

    # Usage.

    def produced(self, size: int) -> None:
        """Record the bytes of a produce request, when it starts: the next one of the connection may
        start before the response to this one.
        """
        seconds = self._client.produced(size)
        if seconds > 0:
            self._throttle(QuotaType.PRODUCE, seconds)

    def fetch_bytes_max(self) -> int:
        """Return the bytes that a fetch response may have at most."""
        return self._client.fetch_bytes_max()

    def fetched(self, size: int) -> tuple[int, bool]:
        """Record the bytes of a fetch response; return its throttle time in milliseconds, and
        whether it may have its records.
        """
        request_s = self._request_throttle_s()
        decision = self._client.fetched(size, request_s)
        if decision.throttle_s > 0:
            is_for_bytes = decision.throttle_s > request_s
            kind = QuotaType.FETCH if is_for_bytes else QuotaType.REQUEST
            self._throttle(kind, decision.throttle_s)
        return milliseconds(self._left_s()), decision.sends_records

    def mutations(self, *, is_strict: bool) -> MutationQuota:
        """Return the limit on new and deleted partitions."""
        self._mutations = self._client.mutations(is_strict=is_strict)
        return self._mutations

    def finish(self) -> int:
        """Decide how long to throttle, just before the response is encoded; return it in
        milliseconds.
        """
        request_s = self._request_throttle_s()
        mutation_s = 0.0 if self._mutations is None else self._mutations.throttle_s()
        if mutation_s > max(request_s, self._left_s()):
            self._throttle(QuotaType.CONTROLLER_MUTATION, mutation_s)
        elif request_s > self._left_s():
            self._throttle(QuotaType.REQUEST, request_s)
        return milliseconds(self._left_s())

    def _throttle(self, kind: QuotaType, seconds: float) -> None:
        self._until = self._client.now() + seconds
        self._client.throttled(kind, seconds)
        self._mute(seconds)

    def _left_s(self) -> float:
        return max(0.0, self._until - self._client.now()) if self._until else 0.0

    # The time of the request.

    def __enter__(self) -> "RequestQuota":
        if self.is_timed:
            if not self._depth:
                self._began = self._client.now()
            self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_timed:
            self._depth -= 1
            if not self._depth:
                self._add(self._client.now() - self._began)

    def aside(self, work: Callable[..., T]) -> Callable[..., T]:
        """Return work for a helper thread so that its time counts, too: at the next exit. The
        request awaits that work.
        """
        if not self.is_timed:
            return work

        def timed(*arguments: Any) -> T:
            began = self._client.now()
            try:
                return work(*arguments)
            finally:
                self._spent += self._client.now() - began

        return timed

    def steps_of(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return work so that the time of its steps counts."""
        return _TimedSteps(work, self) if self.is_timed else work

    def _request_throttle_s(self) -> float:
        """Record the time so far and return the throttle time for it. Later time is recorded as
        well, and throttles the next request.
        """
        if not self.is_timed or self._is_reported:
            return 0.0
        if self._depth:
            now = self._client.now()
            self._spent += now - self._began
            self._began = now
        self._is_reported = True
        spent, self._spent = self._spent, 0.0
        return self._client.request_took(spent)

    def _add(self, seconds: float) -> None:
        self._spent += seconds
        if self._is_reported:
            spent, self._spent = self._spent, 0.0
            self._client.add_request_time(spent)


class _TimedSteps(Awaitable[T]):
    """Drives an awaitable step by step."""

    __slots__ = ("_quota", "_work")

    def __init__(self, work: Awaitable[T], quota: RequestQuota) -> None:
        self._work = work
        self._quota = quota

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                with self._quota:
                    # None is sent at every step: the loop sends nothing to a task.
                    awaited = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            error = None
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001  # it is thrown where the work waits
                error = thrown
