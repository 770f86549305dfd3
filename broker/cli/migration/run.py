"""One run of an import: topics, records from where the last run ended, positions of groups.

A run may be killed at any moment and repeated: the end of a partition in the store is where it goes
on. Offsets without a record (markers of transactions, aborted and compacted records) stay without.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakehead.broker.cli.migration.imported_batch import RecordDigest
from lakehead.broker.cli.migration.source_cluster import SourceCluster, SourceTopic
from lakehead.broker.cli.migration.target_store import TargetStore
from lakehead.broker.cluster.replication_control import OFFSETS_CONFIGS
from lakehead.broker.configs.topic_configs import parse_topic_configs
from lakehead.broker.partition.partition import OFFSETS_TOPIC
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.errors import RequestRefused
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore


@dataclass(slots=True, kw_only=True)
class ImportedTopic:
    """The result of a run for one topic: records that came, the sum of the ends of its partitions,
    and configs that do not exist here.
    """

    topic: str
    partitions: int
    records: int = 0
    end_offsets: int = 0
    left_out: tuple[str, ...] = ()


async def import_topic(
    source: SourceCluster, target: TargetStore, topic: SourceTopic
) -> ImportedTopic:
    """Import what is new of a topic. Raises RequestRefused, BrokerUnavailable, StorageError."""
    configs, left_out = _known_configs(topic)
    done = ImportedTopic(topic=topic.name, partitions=topic.partitions, left_out=left_out)
    streams = await target.topic(topic.name, topic.partitions, configs)
    failpoint("import_topic_made")
    for partition, stream in enumerate(streams):
        low, high = await asyncio.to_thread(source.bounds, topic.name, partition)
        if stream.next_offset > high:
            raise RequestRefused(
                f"{topic.name}-{partition} ends at {stream.next_offset} here and at {high} at the "
                "source: it is another topic, or has other records here"
            )
        await target.begin_at(stream, low)
        if stream.next_offset < low:
            await target.fill(stream, low)  # deleted at the source between two runs
        found = source.records(topic.name, partition, stream.next_offset)
        while (some := await asyncio.to_thread(next, found)) is not None:
            if isinstance(some, int):
                await target.fill(stream, some)
                break
            await target.add(stream, some)
            done.records += len(some)
            failpoint("import_records_appended")
        done.end_offsets += stream.next_offset
    await target.upload()
    failpoint("import_topic_uploaded")
    return done


async def import_positions(
    source: SourceCluster, target: TargetStore, topics: Sequence[SourceTopic], partitions: int
) -> int:
    """Import the committed offsets of the source's groups; return how many groups there were.

    `partitions` is the number of `__consumer_offsets` if it has to be made.
    """
    names = [topic.name for topic in topics]
    groups = await asyncio.to_thread(source.positions, names)
    if not groups:
        return 0
    known = target.state.topics.get(OFFSETS_TOPIC)
    count = partitions if known is None else len(known.partitions)
    logs = await target.topic(OFFSETS_TOPIC, count, OFFSETS_CONFIGS)
    for group, offsets in sorted(groups.items()):
        await target.commit_positions(group, offsets, logs)
    await target.upload()
    failpoint("import_positions_uploaded")
    return len(groups)


def _known_configs(topic: SourceTopic) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the configs that topics have here too, and the names of the others."""
    known: dict[str, str] = {}
    left_out = []
    for name, value in sorted(topic.configs.items()):
        try:
            parse_topic_configs({name: value})
        except KafkaError:
            left_out.append(name)
        else:
            known[name] = value
    return known, tuple(left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """The records of a partition on both sides, below the end that it has here."""

    topic: str
    partition: int
    records: int
    digest: str
    source_records: int
    source_digest: str

    @property
    def is_same(self) -> bool:
        """Return true if both have the same records at the same offsets."""
        return (self.records, self.digest) == (self.source_records, self.source_digest)


async def compared(
    source: SourceCluster, store: ObjectStore, state: MetadataImage, topics: Sequence[SourceTopic]
) -> list[ComparedPartition]:
    """Read both sides, and compare. Raises as `import_topic`."""
    found = []
    for topic in topics:
        for partition, stream_id in enumerate(state.topics[topic.name].partitions):
            stream = state.stream(stream_id)
            low, _ = await asyncio.to_thread(source.bounds, topic.name, partition)
            start, end = max(low, stream.start_offset), stream.end_offset
            here = RecordDigest()
            async for batch in stored_batches(store, stream):
                here.add(_within(iter_kafka_records(batch), start, end))
            there = await asyncio.to_thread(
                _source_digest, source, topic.name, partition, start, end
            )
            found.append(
                ComparedPartition(
                    topic=topic.name,
                    partition=partition,
                    records=here.records,
                    digest=here.hex,
                    source_records=there.records,
                    source_digest=there.hex,
                )
            )
    return found


def _source_digest(
    source: SourceCluster, topic: str, partition: int, start: int, end: int
) -> RecordDigest:
    digest = RecordDigest()
    if start >= end:
        return digest
    for some in source.records(topic, partition, start):
        if isinstance(some, int) or some[0].offset >= end:
            break
        digest.add(_within(iter(some), start, end))
    return digest


def _within(records: Iterator[KafkaRecord], start: int, end: int) -> Iterator[KafkaRecord]:
    return (one for one in records if start <= one.offset < end)
