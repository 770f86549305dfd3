"""Tells that a topic has grown: what a watcher of an asset leaves to the triggerer.

How far it was told is kept in Airflow's own store of the asset's state, so what came while no
triggerer ran is told when one does. That is written at the look after the one that told, when
Airflow has long stored the event: growth may be told twice, and is not left out.
"""

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from connectors.airflow.assets.lakehead import growth
from connectors.airflow.conditions import end_offsets
from connectors.airflow.triggers.cluster_looks import ClusterLook
from connectors.airflow.triggers.cluster_trigger import ClusterTrigger

_KEY = "offsets"


class GrowthTrigger(ClusterTrigger):
    """Fires whenever a topic has at least so many more records in objects, with what
    `connectors.airflow.assets.growth` says. A topic that does not exist is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: so many more.
    :param poll_interval: seconds between two looks.
    """

    def __init__(
        self,
        lakehead_conn_id: str,
        topic: str,
        records: int = 1,
        poll_interval: float = 10.0,
    ) -> None:
        super().__init__(lakehead_conn_id, poll_interval)
        if records < 1:
            raise ValueError(f"records is {records}: give a number from 1")
        self.topic = topic
        self.records = records

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            "connectors.airflow.triggers.growth.GrowthTrigger",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "topic": self.topic,
                "records": self.records,
                "poll_interval": self.poll_interval,
            },
        )

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
            offsets = end_offsets(look.state, topic)
            ends = {str(partition): offset for partition, offset in enumerate(offsets)}
            if topic_id != topic.topic_id:
                # What was there before it was watched is not told; all of one made since then is.
                told = {} if topic_id or is_new else ends
                topic_id, is_kept = topic.topic_id, False
            found = growth(self.topic, told, ends)
            if found["records"] >= self.records:
                yield TriggerEvent(found)  # type: ignore[no-untyped-call]
                told, is_kept = ends, False

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
        return f"{_KEY}_{self.records}"
