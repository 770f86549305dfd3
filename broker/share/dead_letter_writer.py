"""Writes dead letters to the topics of their groups, wherever these are led (KIP-1191).

The partition of a dead letter has the number of the record's, modulo the partitions of the topic.
Letters go in batches of at most `max.message.bytes`. Memory is held only while a batch is made and
sent, and all batches of a node share it. Errors that pass (a partition without a leader, a node
that cannot be reached) are tried again for a while; then the letters are given up. They are given
up at once for a topic that must not be used, and for a batch that is refused. Letters that are
given up are counted, and logged when the reason is a new one for their group.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.node_producer import NodeProducer
from lakehead.broker.configs.entries import BrokerValues
from lakehead.broker.network.request_memory import RequestMemory
from lakehead.broker.partition.partition import Partition, Topic, TopicRegistry
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame
from lakehead.broker.services import TopicAdmin
from lakehead.broker.share.dead_letters import DeadLetters, headers
from lakehead.broker.share.share_counts import LetterOutcome, ShareCounts
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.broker.share.share_settings import DeadLetterSettings, ShareSettings
from lakehead.broker.share.source_records import NO_CONTENT, SourceRecords
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, TopicExists
from lakehead.storage.format.batch_writer import encode_batch_of, encode_headers, encode_record
from lakehead.storage.format.record_batch import HEADER_SIZE
from lakehead.storage.memory_pool import MemoryPool
from lakehead.storage.metadata.state import MetadataImage

GROUP_ENABLE = "errors.deadletterqueue.group.enable"
"""The config of a topic that lets groups write dead letters to it."""
NAME_PREFIX = "errors.deadletterqueue.topic.name.prefix"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
BATCH_MAX = 1 << 20
"""Bytes of a batch of letters, for topics whose limit is not lower."""
MEMORY_MAX = 8 << 20
"""Bytes of the batches that are made or sent at the same time, and of what goes into them."""
RETRY_S = 60.0
"""Time for which errors that pass are tried again, in seconds."""
_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0
_TURN = 256
"""Letters after which other work has its turn."""
_PASSING = frozenset(
    {
        ErrorCode.broker_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_or_partition,  # the other node may be behind in the metadata
    }
)
_ERRORS = (LakeheadError, OSError, TimeoutError, MalformedFrame)
_log = structlog.get_logger("broker.dead_letters")


class _Refused(Exception):
    """The topic of a group takes no dead letters. The message says why."""


class _Batch(NamedTuple):
    """A batch of dead letters: those that it has, and those that are left."""

    data: bytearray
    letters: Sequence[DeadLetters]
    left: Sequence[DeadLetters]


class _Attempt(NamedTuple):
    """Letters that are written, or given up for a trouble, and those that are left."""

    letters: Sequence[DeadLetters]
    left: Sequence[DeadLetters] = ()
    trouble: str = ""


class DeadLetterWriter:
    """Writes the dead letters of all partitions that a node leads."""

    def __init__(
        self,
        producer: NodeProducer,
        admin: TopicAdmin,
        topics: TopicRegistry,
        request_memory: RequestMemory,
        settings: ShareSettings,
        state: Callable[[], MetadataImage],
        configs: Callable[[], BrokerValues],
        clock: Clock,
        counts: ShareCounts,
    ) -> None:
        self._producer = producer
        self._admin = admin
        self._topics = topics
        self._request_memory = request_memory
        self._memory = MemoryPool(MEMORY_MAX)
        self._settings = settings
        self._state = state
        self._configs = configs
        self._clock = clock
        self._counts = counts
        self._troubles: dict[str, str] = {}
        """By group: the trouble for which letters were given up last."""

    async def write(
        self,
        key: SharePartitionKey,
        partition: Partition,
        letters: Sequence[DeadLetters],
        on_done: Callable[[DeadLetters], None],
    ) -> None:
        """Write letters; see `DeadLetterSink.write`."""
        time = asyncio.get_running_loop().time
        until, pause_s = time() + RETRY_S, _PAUSE_S
        left: Sequence[DeadLetters] = letters
        while left:
            try:
                attempt = await self._try(key, partition, left)
            except _ERRORS as error:
                if time() + pause_s <= until:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                    continue
                attempt = _Attempt(left, trouble=str(error) or type(error).__name__)
            self._note(key, partition, attempt)
            for one in attempt.letters:
                on_done(one)
            left = attempt.left

    def _note(self, key: SharePartitionKey, partition: Partition, attempt: _Attempt) -> None:
        count, trouble = sum(one.records for one in attempt.letters), attempt.trouble
        outcome = LetterOutcome.FAILED if trouble else LetterOutcome.WRITTEN
        self._counts.dead_letters_total[outcome] += count
        if not trouble:
            self._troubles.pop(key.group_id, None)
        elif self._troubles.get(key.group_id) != trouble:
            self._troubles[key.group_id] = trouble
            _log.warning(
                "dead_letters_given_up",
                group=key.group_id,
                partition=f"{partition.topic.name}-{key.partition}",
                letters=count,
                reason=trouble,
            )

    async def _try(
        self, key: SharePartitionKey, partition: Partition, letters: Sequence[DeadLetters]
    ) -> _Attempt:
        """Write as many letters as a batch has. Raises errors that pass."""
        settings = self._settings.dead_letters(key.group_id)
        try:
            topic = await self._topic(settings)
        except _Refused as error:
            return _Attempt(letters, trouble=str(error))
        assert settings is not None
        async with self._memory.borrowed(2 * BATCH_MAX):
            batch = await self._batch(key, partition, letters, topic, settings)
            index = key.partition % len(topic.partitions)
            requests = self._counts.dead_letter_requests_total
            try:
                await self._producer.produce(topic, index, batch.data)
            except _ERRORS as error:
                requests[LetterOutcome.FAILED] += 1
                if not isinstance(error, KafkaError) or error.code in _PASSING:
                    raise
                trouble = f"{error.code.name}: {error.message}"
                return _Attempt(batch.letters, batch.left, trouble)
            requests[LetterOutcome.WRITTEN] += 1
        return _Attempt(batch.letters, batch.left)

    async def _topic(self, settings: DeadLetterSettings | None) -> Topic:
        """Return the topic of a group, created if that is allowed. Raises _Refused, and errors
        that pass.
        """
        if settings is None:
            raise _Refused("the group has no dead letter topic any more")
        name, configs = settings.topic, self._configs()
        prefix = configs.value(NAME_PREFIX) or ""
        if name.startswith("__"):
            raise _Refused(f"{name} is a name of internal topics")
        if not name.startswith(prefix):
            raise _Refused(f"the name {name} does not begin with {prefix} ({NAME_PREFIX})")
        topic = self._topics.by_name.get(name)
        if topic is None:
            if configs.value(AUTO_CREATE) != "true":
                raise _Refused(f"topic {name} does not exist, and {AUTO_CREATE} is false")
            return await self._created(name, int(configs.value("num.partitions") or 1))
        known = self._state().topics.get(name)
        if known is None or known.configs.get(GROUP_ENABLE) != "true":
            raise _Refused(f"topic {name} does not allow it ({GROUP_ENABLE})")
        return topic

    async def _created(self, name: str, partitions: int) -> Topic:
        # Letters have the time at which they are written, whatever the cluster's default.
        configs = {GROUP_ENABLE: "true", "message.timestamp.type": "CreateTime"}
        try:
            return await self._admin.create(name, partitions, configs)
        except TopicExists as error:
            raise KafkaError(ErrorCode.leader_not_available, str(error)) from None
        except KafkaError as error:
            if error.code in _PASSING:
                raise
            raise _Refused(f"{error.code.name}: {error.message}") from None

    async def _batch(
        self,
        key: SharePartitionKey,
        partition: Partition,
        letters: Sequence[DeadLetters],
        topic: Topic,
        settings: DeadLetterSettings,
    ) -> _Batch:
        """Return a batch of the first letters: at least one, however small the topic's limit."""
        size_max = min(topic.rules.batch_size_max, BATCH_MAX)
        now_ms = self._clock.now_ms()
        source = SourceRecords(partition, self._request_memory, size_max)
        records: list[bytes] = []
        size = HEADER_SIZE
        for number, one in enumerate(letters):
            for offset in range(one.first_offset, one.last_offset + 1):
                content = NO_CONTENT
                if settings.copies_records:
                    content = await source.content(offset, one.last_offset)
                encoded = encode_headers(headers(key, partition.topic.name, one, offset))
                record = encode_record(len(records), *content, encoded)
                if HEADER_SIZE + len(record) > size_max:
                    record = encode_record(len(records), *NO_CONTENT, encoded)
                if records and size + len(record) > size_max:
                    done, rest = _cut(one, offset)
                    return _Batch(
                        encode_batch_of(records, now_ms),
                        [*letters[:number], *done],
                        [rest, *letters[number + 1 :]],
                    )
                records.append(record)
                size += len(record)
                if not len(records) % _TURN:
                    await asyncio.sleep(0)
        return _Batch(encode_batch_of(records, now_ms), letters, ())


def _cut(letters: DeadLetters, offset: int) -> tuple[list[DeadLetters], DeadLetters]:
    """Return the letters before an offset, if there are any, and those from it on."""
    before = letters._replace(last_offset=offset - 1)
    return ([before] if before.records else []), letters._replace(first_offset=offset)
