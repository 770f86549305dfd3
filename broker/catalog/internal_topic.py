"""An internal topic as its coordinator sees it."""

from lakehead.broker.catalog.catalog import TopicCatalog
from lakehead.broker.partition.partition import Partition


class InternalTopic:
    """The topic's partitions on this node."""

    def __init__(self, catalog: TopicCatalog, name: str) -> None:
        self.name = name
        self._catalog = catalog

    def partition_count(self) -> int:
        """Partitions of the topic; 0 while it does not exist."""
        topic = self._catalog.topics.by_name.get(self.name)
        return 0 if topic is None else len(topic.partitions)

    def partition(self, index: int) -> Partition | None:
        """The partition, if this node leads it and is not giving it up."""
        partition = self._catalog.topics.partition(self.name, index)
        return partition if partition is not None and partition.stream.is_open else None

    def epoch(self, index: int) -> int:
        """The leader epoch of a partition that this node leads, -1 of another."""
        partition = self.partition(index)
        return -1 if partition is None else partition.leader_epoch

    async def create(self) -> None:
        """Create the topic if it does not exist."""
        await self._catalog.ensure(self.name)
