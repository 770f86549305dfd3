"""Watches a topic for new records, as the trigger of an asset's watcher.

The offsets up to which events were fired are kept in Airflow's own store of the asset's state, so
records that come while no triggerer runs get their event when one does. The offsets are written at
the look after the event, when Airflow has long stored it: an event may come twice, and none is left
out.
"""

from collections.abc import AsyncIterator

from airflow.triggers.base import TriggerEvent

from lakehead.connectors.airflow.asset_events import growth
from lakehead.connectors.airflow.conditions import end_offsets
from lakehead.connectors.airflow.triggers.cluster_looks import ClusterLook
from lakehead.connectors.airflow.triggers.watcher_trigger import WatcherTrigger


class GrowthTrigger(WatcherTrigger):
    """Fires whenever a topic has at least `records` more records in objects, with what
    `lakehead.connectors.airflow.asset_events.growth` says. A topic that does not exist is waited for.

    :param lakehead_conn_id: the connection.
    :param topic: the topic.
    :param records: the least number of new records for an event.
    :param poll_interval: seconds between two looks.
    """

    kind = "offsets"

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[ClusterLook]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire at each look that sees enough new records. Without a store for the offsets, records
        that are there at the first look have no event.
        """
        topic_id, fired = await self._kept()
        is_kept, is_new, trouble = True, False, ""
        async for look in shared_stream:
            if look.state is None:
                if str(look.error) != trouble:
                    trouble = str(look.error)
                    self.log.error(trouble)
                continue
            trouble = ""
            if not is_kept:
                await self._keep(topic_id, fired)
                is_kept = True
            topic = look.state.topics.get(self.topic)
            if topic is None:
                is_new = True
                continue
            offsets = end_offsets(look.state, topic)
            ends = {str(partition): offset for partition, offset in enumerate(offsets)}
            if topic_id != topic.topic_id:
                # Records from before the watch have no event; all of a topic made since then do.
                fired = {} if topic_id or is_new else ends
                topic_id, is_kept = topic.topic_id, False
            found = growth(self.topic, fired, ends)
            if found["records"] >= self.records:
                yield TriggerEvent(found)  # type: ignore[no-untyped-call]
                fired, is_kept = ends, False

    async def _kept(self) -> tuple[str, dict[str, int]]:
        """The topic's id and the offsets up to which events were fired; nothing if not known."""
        kept = await self._load()
        if kept is None:
            return "", {}
        return str(kept["topic_id"]), dict(kept["offsets"])

    async def _keep(self, topic_id: str, fired: dict[str, int]) -> None:
        await self._store({"topic_id": topic_id, "offsets": fired})
