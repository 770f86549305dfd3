"""A trigger of an asset's watcher: it fires whenever a topic, or its table, has grown by enough.

How far it has fired is kept in Airflow's own store of the asset's state, so growth that comes while
no triggerer runs is seen when one does.
"""

from typing import Any

from lakehead.connectors.airflow.triggers.cluster_trigger import ClusterTrigger


class WatcherTrigger(ClusterTrigger):
    """Watches a topic for `records` more records, with a look every `poll_interval` seconds."""

    kind: str
    """The first part of the key under which the store has how far it has fired."""

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
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "lakehead_conn_id": self.lakehead_conn_id,
                "topic": self.topic,
                "records": self.records,
                "poll_interval": self.poll_interval,
            },
        )

    async def _load(self) -> dict[str, Any] | None:
        """Return what was kept; None where nothing was, or there is no store."""
        kept: Any = None
        if self.asset_state_store is not None:
            try:
                kept = await self.asset_state_store.aget(self._key)
            except ValueError:  # several assets have this watcher: whose store it were is open
                self.asset_state_store = None
        return kept if isinstance(kept, dict) else None

    async def _store(self, kept: dict[str, Any]) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(self._key, kept)

    @property
    def _key(self) -> str:
        return f"{self.kind}_{self.records}"
