"""The share-partitions of the partitions that this node leads, and the share sessions of members.

A share-partition is loaded by the first request of its group for a partition, and let go when the
partition is handed over or deleted, or when no member of the group has a session here any more and
nothing is left to be done.
"""

from collections import defaultdict
from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Topic, TopicRegistry
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.broker.share.led_share_partition import (
    DeadLetterSink,
    LedSharePartition,
    Outcome,
    StateStore,
)
from lakehead.broker.share.share_counts import ShareCounts
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_session import Place, ShareSessionKey, ShareSessions
from lakehead.broker.share.share_settings import ShareSettings
from lakehead.storage.clock import Clock
from lakehead.storage.tasks import TaskScope


class SharePartitionManager:
    """Every share-partition of this node."""

    def __init__(
        self,
        topics: TopicRegistry,
        store: StateStore,
        dead_letters: DeadLetterSink,
        share_settings: ShareSettings,
        counts: ShareCounts,
        settings: Settings,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        self._topics = topics
        self._store = store
        self._dead_letters = dead_letters
        self._clock = clock
        self._scope = scope
        self.settings = share_settings
        self.counts = counts
        self.sessions = ShareSessions(settings.group_share_max_share_sessions, self._ended)
        self._led: dict[Place, dict[str, LedSharePartition]] = defaultdict(dict)
        """By partition and group."""

    def __len__(self) -> int:
        return sum(map(len, self._led.values()))

    def find(self, key: SharePartitionKey) -> LedSharePartition | None:
        """Return a share-partition that is loaded here, else None."""
        found = self._led.get((key.topic_id, key.partition), {}).get(key.group_id)
        return found if found is not None and found.is_loaded else None

    def get(self, key: SharePartitionKey) -> LedSharePartition:
        """Return a share-partition, which may have to be loaded. Raises KafkaError:
        UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        topic = self._topics.by_id.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        partition = topic.served(key.partition)
        groups = self._led[key.topic_id, key.partition]
        found = groups.get(key.group_id)
        if found is not None and found.partition is not partition:
            found.end()
            found = None
        if found is None:
            found = self._led[key.topic_id, key.partition][key.group_id] = LedSharePartition(
                key,
                partition,
                self._store,
                self._dead_letters,
                self.settings,
                self._clock,
                self._scope,
                self.counts,
                self._let_go,
                self._forget,
            )
        return found

    def release(self, member: ShareSessionKey) -> list[Outcome]:
        """Begin to release all records that a member has here."""
        return [one.release(member.member_id) for one in self._of_group(member.group_id)]

    def on_election(self, topic: Topic, index: int) -> None:
        """Do nothing: share-partitions are loaded by requests."""

    def on_resignation(self, topic: Topic, index: int) -> None:
        """Let go of a partition that this node does not lead any more."""
        for led in list(self._led.pop((topic.id_bytes, index), {}).values()):
            led.end()

    def close(self) -> None:
        """Let go of all; for the end of the node."""
        for place in list(self._led):
            for led in list(self._led.pop(place, {}).values()):
                led.end()

    def _of_group(self, group_id: str) -> Iterator[LedSharePartition]:
        for groups in list(self._led.values()):
            led = groups.get(group_id)
            if led is not None and led.is_loaded:
                yield led

    def _ended(self, member: ShareSessionKey) -> None:
        """A session has ended: free its records, and with the last one of a group let go."""
        self.release(member)
        for led in list(self._of_group(member.group_id)):
            if led.is_idle:
                self._let_go(led)

    def _let_go(self, led: LedSharePartition) -> None:
        """End a share-partition in which nothing is being done, if its group is gone from here."""
        if not self.sessions.has_group(led.key.group_id):
            led.end()

    def _forget(self, led: LedSharePartition) -> None:
        place = led.key.topic_id, led.key.partition
        groups = self._led.get(place)
        if groups is not None and groups.get(led.key.group_id) is led:
            del groups[led.key.group_id]
            if not groups:
                del self._led[place]
