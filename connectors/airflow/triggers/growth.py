"""Tells that a topic, or its table, has grown: what a watcher of an asset leaves to the triggerer.

How far it was told is kept in Airflow's own store of the asset's state, so what came while no
triggerer ran is told when one does. That is written at the look after the one that told, when
Airflow has long stored the event: growth may be told twice, and is not left out.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import aclosing
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from connectors.airflow.assets.lakehead import Of, growth
from connectors.airflow.conditions import end_offsets, held_offsets
from connectors.airflow.triggers.cluster_looks import ClusterLook, cluster_looks

_KEY = "offsets"


class GrowthTrigger(BaseEventTrigger):
    """Fires whenever a topic or its table has at least so many more records, with what
    `connectors.airflow.assets.growth` says. A topic that does not exist is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param of: `topic`: records that lie in objects; `table`: those that its table holds.
    :param records: so many more.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self,
        lakehead_conn_id: str,
        topic: str,
        of: Of = "topic",
        records: int = 1,
        poll_interval: float = 10.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if records < 1:
            raise ValueError(f"records is {records}: give a number from 1")
        self.lakehead_conn_id = lakehead_conn_id
        self.topic = topic
        self.of: Of = of
        self.records = records
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            "connectors.airflow.triggers.growth.GrowthTrigger",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "topic": self.topic,
                "of": self.of,
                "records": self.records,
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
        """Fire at each look that sees enough growth. Without a place to keep how far it was told,
        what is there at the first look is not told.
        """
        topic_id, told = await self._kept()
        is_kept, is_new, trouble = True, False, ""
        async for look in shared_stream:
            if look.state is None:
                if str(look.error) != trouble:
                    trouble = str(look.error)
                    self.log.error(trouble)
                continue
            trouble = ""
            if not is_kept:
                await self._keep(topic_id, told)
                is_kept = True
            topic = look.state.topics.get(self.topic)
            if topic is None:
                is_new = True
                continue
            offsets = (end_offsets if self.of == "topic" else held_offsets)(look.state, topic)
            ends = {str(partition): offset for partition, offset in enumerate(offsets)}
            if topic_id != topic.topic_id:
                # What was there before it was watched is not told; all of one made since then is.
                told = {} if topic_id or is_new else ends
                topic_id, is_kept = topic.topic_id, False
            found = growth(self.topic, told, ends)
            if found["records"] >= self.records:
                yield TriggerEvent(found)  # type: ignore[no-untyped-call]
                told, is_kept = ends, False

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll alone, where nobody shares looks."""
        _, kwargs = self.serialize()
        async with aclosing(self.open_shared_stream(kwargs)) as looks:
            async for event in self.filter_shared_stream(looks):
                yield event

    async def _kept(self) -> tuple[str, dict[str, int]]:
        """The topic's id and how far it was told; nothing where that is not known."""
        kept: Any = None
        if self.asset_state_store is not None:
            try:
                kept = await self.asset_state_store.aget(self._key)
            except ValueError:  # several assets have this watcher: whose store it were is open
                self.asset_state_store = None
        if not isinstance(kept, dict):
            return "", {}
        return str(kept["topic_id"]), dict(kept["offsets"])

    async def _keep(self, topic_id: str, told: dict[str, int]) -> None:
        if self.asset_state_store is not None:
            kept: dict[str, Any] = {"topic_id": topic_id, "offsets": told}
            await self.asset_state_store.aset(self._key, kept)

    @property
    def _key(self) -> str:
        return f"{_KEY}_{self.of}_{self.records}"
