"""One run of an import: topics, records from where the last run ended, positions of groups, ACLs
and quotas.

A run may be killed at any moment and repeated: the end of a partition in the store is where it goes
on. Offsets without a record (markers of transactions, aborted and compacted records) stay without.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from lakehead.broker.cli.migration.imported_batch import RecordDigest
from lakehead.broker.cli.migration.source_access import (
    ScramUser,
    source_acls,
    source_quotas,
    source_users,
)
from lakehead.broker.cli.migration.source_batches import (
    OldFormat,
    fetched_batches,
    partition_bounds,
)
from lakehead.broker.cli.migration.source_brokers import SourceBrokers
from lakehead.broker.cli.migration.source_cluster import (
    SourceCluster,
    SourcePartition,
    SourceTopic,
)
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
from lakehead.storage.stream.stream import Stream

ACLS, QUOTAS, USERS, POSITIONS = "acls", "quotas", "users", "positions"
PARTS = (ACLS, QUOTAS, USERS, POSITIONS)
"""Parts that a run can leave out."""


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
    source: SourceCluster, brokers: SourceBrokers, target: TargetStore, topic: SourceTopic
) -> ImportedTopic:
    """Import what is new of a topic. Raises RequestRefused, BrokerUnavailable, StorageError."""
    configs, left_out = _known_configs(topic)
    done = ImportedTopic(topic=topic.name, partitions=topic.partitions, left_out=left_out)
    streams = await target.topic(topic.name, topic.partitions, configs)
    failpoint("import_topic_made")
    bounds = await partition_bounds(brokers, topic.name, topic.partitions)
    for partition, (stream, (low, high)) in enumerate(zip(streams, bounds, strict=True)):
        if stream.next_offset > high:
            raise RequestRefused(
                f"{topic.name}-{partition} ends at {stream.next_offset} here and at {high} at the "
                "source: it is another topic, or has other records here"
            )
        await target.begin_at(stream, low)
        try:
            done.records += await _import_batches(
                brokers, target, stream, topic.name, partition, max(low, stream.next_offset), high
            )
        except OldFormat:
            with source.partition(topic.name, partition) as reader:
                done.records += await import_records(reader, target, stream, high)
        await target.fill(stream, high)  # markers, and what compaction or retention removed
        done.end_offsets += stream.next_offset
    await target.upload()
    for stream, (low, _) in zip(streams, bounds, strict=True):
        await stream.trim(low)
    failpoint("import_topic_uploaded")
    return done


async def _import_batches(
    brokers: SourceBrokers,
    target: TargetStore,
    stream: Stream,
    topic: str,
    partition: int,
    start: int,
    high: int,
) -> int:
    """Copy batches from `start` to `high`; return how many records they have."""
    records = 0
    async with aclosing(fetched_batches(brokers, topic, partition, start, high)) as responses:
        async for one in responses:
            records += await target.add(stream, one.batches)
            await target.fill(stream, one.end)
            failpoint("import_records_appended")
    return records


async def import_records(
    reader: SourcePartition, target: TargetStore, stream: Stream, high: int
) -> int:
    """Copy records up to `high` one by one, as a partition needs it that has messages of a format
    from before batches; return how many.
    """
    count = 0
    found = reader.records(max(stream.next_offset, await asyncio.to_thread(reader.start)))
    while (some := await asyncio.to_thread(next, found, None)) is not None:
        wanted = [one for one in some if one.offset < high]
        await target.add_records(stream, wanted)
        count += len(wanted)
        if len(wanted) < len(some):
            break
    return count


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAccess:
    """ACLs and entities with quotas that are here now, users that need a password, and quotas that
    do not exist here, in words.
    """

    acls: int = 0
    quotas: int = 0
    users: tuple[ScramUser, ...] = ()
    left_out: tuple[str, ...] = ()


async def import_access(
    brokers: SourceBrokers, target: TargetStore, without: Collection[str]
) -> ImportedAccess:
    """Have the ACLs and client quotas of the source, unless they are in `without`; find the users
    that are not here. Raises RequestRefused, BrokerUnavailable, StorageError.
    """
    acls = quotas = 0
    users, left_out = list[ScramUser](), tuple[str, ...]()
    part = ""
    try:
        if (part := ACLS) not in without:
            found = await source_acls(brokers)
            await target.set_acls(found)
            acls = len(found)
        if (part := QUOTAS) not in without:
            described = await source_quotas(brokers)
            await target.set_quotas(described.quotas)
            quotas, left_out = len(described.quotas), described.left_out
        if (part := USERS) not in without:
            users = await source_users(brokers)
    except RequestRefused as error:
        raise RequestRefused(f"{part}: {error}; leave them out by: --without {part}") from None
    failpoint("import_access_made")
    known = target.state.scram_credentials
    return ImportedAccess(
        acls=acls,
        quotas=quotas,
        users=tuple(one for one in users if (one.user, one.mechanism) not in known),
        left_out=left_out,
    )


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
            with source.partition(topic.name, partition) as reader:
                low = await asyncio.to_thread(reader.start)
                start, end = max(low, stream.start_offset), stream.end_offset
                here = RecordDigest()
                async for batch in stored_batches(store, stream):
                    here.add(_within(iter_kafka_records(batch), start, end))
                there = await asyncio.to_thread(_source_digest, reader, start, end)
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


def _source_digest(reader: SourcePartition, start: int, end: int) -> RecordDigest:
    digest = RecordDigest()
    if start >= end:
        return digest
    for some in reader.records(start):
        if some[0].offset >= end:
            break
        digest.add(_within(iter(some), start, end))
    return digest


def _within(records: Iterator[KafkaRecord], start: int, end: int) -> Iterator[KafkaRecord]:
    return (one for one in records if start <= one.offset < end)
