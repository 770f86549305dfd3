"""Waits until a condition holds: what a deferred sensor leaves to the triggerer."""

from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from connectors.airflow.conditions import Condition, decoded, encoded
from connectors.airflow.triggers.cluster_looks import ClusterLook, cluster_looks


class ConditionTrigger(BaseEventTrigger):
    """Fires once, when a condition holds, with `{"found": …}`; or when it never will without
    somebody's doing, with `{"error": …, "is_final": …}`.

    All triggers of one connection and interval share one poll of the metadata log.

    :param lakehead_conn_id: the connection.
    :param condition: what `connectors.airflow.conditions.encoded` makes of a condition.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self, lakehead_conn_id: str, condition: dict[str, Any], poll_interval: float = 5.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lakehead_conn_id = lakehead_conn_id
        self.condition: Condition = decoded(condition)
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            "connectors.airflow.triggers.condition.ConditionTrigger",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "condition": encoded(self.condition),
                "poll_interval": self.poll_interval,
            },
        )

    def shared_stream_key(self) -> Hashable | None:
        """Triggers of the same connection and interval share their looks."""
        return ("lakehead", self.lakehead_conn_id, self.poll_interval)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[ClusterLook, None]:
        """Yield looks at the cluster."""
        every = cluster_looks(kwargs["lakehead_conn_id"], kwargs["poll_interval"])
        async with aclosing(every) as looks:
            async for look in looks:
                yield look

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at the first look that decides."""
        told = ""
        async for look in shared_stream:
            event, text = self._judged(look)
            if text != told:
                self.log.info(text)
                told = text
            if event is not None:
                yield event
                return

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone, where nobody shares looks."""
        _, kwargs = self.serialize()
        async with aclosing(self.open_shared_stream(kwargs)) as looks:
            async for event in self.filter_shared_stream(looks):
                yield event

    def _judged(self, look: ClusterLook) -> tuple[TriggerEvent | None, str]:
        """What to fire, if anything, and what to tell."""
        from airflow.sdk.exceptions import AirflowFailException

        from connectors.airflow.errors import airflow_error
        from storage.errors import LakeheadError

        error: Exception | None = look.error
        if look.state is not None:
            try:
                verdict = self.condition.verdict(look.state, look.at_ms)
            except LakeheadError as caught:
                error = caught
            else:
                return _event({"found": verdict.found}) if verdict.is_met else None, verdict.text
        assert error is not None
        failure = error if isinstance(error, AirflowFailException) else airflow_error(error)
        is_final = isinstance(failure, AirflowFailException)
        return _event({"error": str(failure), "is_final": is_final}), str(failure)


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
