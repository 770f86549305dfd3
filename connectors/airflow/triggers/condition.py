"""Waits until a condition holds: what a deferred sensor leaves to the triggerer."""

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from lakehead.connectors.airflow.conditions import Condition, decoded, encoded
from lakehead.connectors.airflow.triggers.cluster_looks import ClusterLook
from lakehead.connectors.airflow.triggers.cluster_trigger import ClusterTrigger


class ConditionTrigger(ClusterTrigger):
    """Fires once: with `{"found": …}` when a condition holds, or with `{"error": …, "is_final": …}`
    when it cannot hold until the operator acts.

    All triggers of one connection and interval share one poll of the metadata log.

    :param lakehead_conn_id: the connection.
    :param condition: what `lakehead.connectors.airflow.conditions.encoded` makes of a condition.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self, lakehead_conn_id: str, condition: dict[str, Any], poll_interval: float = 5.0
    ) -> None:
        super().__init__(lakehead_conn_id, poll_interval)
        self.condition: Condition = decoded(condition)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            "lakehead.connectors.airflow.triggers.condition.ConditionTrigger",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "condition": encoded(self.condition),
                "poll_interval": self.poll_interval,
            },
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at the first look that decides."""
        logged = ""
        async for look in shared_stream:
            event, text = self._judged(look)
            if text != logged:
                self.log.info(text)
                logged = text
            if event is not None:
                yield event
                return

    def _judged(self, look: ClusterLook) -> tuple[TriggerEvent | None, str]:
        """Return the event to fire, if there is one, and the text for the log."""
        from airflow.sdk.exceptions import AirflowFailException

        from lakehead.connectors.airflow.errors import airflow_error
        from lakehead.storage.errors import LakeheadError

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
