"""The base of triggers that look at a cluster: one poll of its metadata serves all of them."""

from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lakehead.connectors.airflow.triggers.cluster_looks import ClusterLook, cluster_looks


class ClusterTrigger(BaseEventTrigger):
    """Fires by looks at a cluster; which ones, `filter_shared_stream` says.

    :param lakehead_conn_id: the connection.
    :param poll_interval: seconds between two looks.
    """

    def __init__(self, lakehead_conn_id: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lakehead_conn_id = lakehead_conn_id
        self.poll_interval = poll_interval

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

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone, where looks are not shared."""
        _, kwargs = self.serialize()
        async with aclosing(self.open_shared_stream(kwargs)) as looks:
            async for event in self.filter_shared_stream(looks):
                yield event
