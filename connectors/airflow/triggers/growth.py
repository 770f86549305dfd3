"""Tells that a topic has grown: what a watcher of an asset leaves to the triggerer.

How far it was told is kept in Airflow's own store of the asset's state, so what came while no
triggerer ran is told when one does. That is written at the look after the one that told, when
Airflow has long stored the event: growth may be told twice, and is not left out.
"""

from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from connectors.airflow.assets.lakehead import growth
from connectors.airflow.conditions import end_offsets
from connectors.airflow.triggers.cluster_looks import ClusterLook
from connectors.airflow.triggers.watcher_trigger import WatcherTrigger


class GrowthTrigger(WatcherTrigger):
    """Fires whenever a topic has at least so many more records in objects, with what
    `connectors.airflow.assets.growth` says. A topic that does not exist is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: so many more.
    :param poll_interval: seconds between two looks.
    """

    kind = "offsets"

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
        kept = await self._load()
        if kept is None:
            return "", {}
        return str(kept["topic_id"]), dict(kept["offsets"])

    async def _keep(self, topic_id: str, told: dict[str, int]) -> None:
        await self._store({"topic_id": topic_id, "offsets": told})
