"""The deadline of a request that changes the metadata.

While the object store does not respond no change is decided, and a client has to know by when it
gets a response. As with Kafka's controller a change that was not decided in time is reported as
REQUEST_TIMED_OUT: all of it may come into force later, or nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.errors import KafkaError

CHANGE_MAX_S = 60.0
"""Kafka's brokers wait as long for the response of their controller (`retryTimeoutMs`)."""


class Deadline:
    """The end of a request's time, `seconds` from now."""

    __slots__ = ("_at",)

    def __init__(self, seconds: float = CHANGE_MAX_S) -> None:
        self._at = asyncio.get_running_loop().time() + seconds

    @classmethod
    def of(cls, request: Any) -> "Deadline":
        """Return the deadline of a request, by its own timeout if it has one: of 60 s at most. A
        timeout of 0 or below counts as the longest.
        """
        timeout = getattr(request, "timeout", None)
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        return cls(min(seconds, CHANGE_MAX_S) if seconds > 0 else CHANGE_MAX_S)

    @property
    def left_s(self) -> float:
        """Seconds until then; 0 when it is over."""
        return max(0.0, self._at - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """End the block at the deadline. Raises KafkaError (REQUEST_TIMED_OUT)."""
        limit = asyncio.timeout_at(self._at)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise KafkaError(
                ErrorCode.request_timed_out,
                "The metadata log did not decide in time: the change may be made later.",
            ) from None
