"""One run of an import: topics, records from where the last run ended, positions of groups, ACLs
and quotas.

A run may be killed at any moment and repeated: the end of a partition in the store is where it goes
on. Offsets without a record (markers of transactions, aborted and compacted records) stay without.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from lakehead.broker.cli.migration.share_positions import source_share_positions
from lakehead.broker.cli.migration.source_access import (
    ScramUser,
    source_acls,
    source_quotas,
    source_users,
)
from lakehead.broker.cli.migration.source_batches import (
    Bounds,
    OldFormat,
    fetched_batches,
    partition_bounds,
)
from lakehead.broker.cli.migration.source_brokers import (
    Place,
    SourceBrokers,
    TopicChanged,
    TopicGone,
)
from lakehead.broker.cli.migration.source_cluster import (
    SourceCluster,
    SourcePartition,
    SourceTopic,
)
from lakehead.broker.cli.migration.target_store import TargetStore
from lakehead.broker.configs.topic_configs import parse_topic_configs
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import RequestRefused
from lakehead.storage.failpoints import failpoint
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
    is_gone: bool = False
    """It was deleted at the source while it was imported."""
    problem: str = ""
    """The reason that not all of it came; the other topics are imported nevertheless."""
    has_changed: bool = False
    """It is not what was imported of it before, and may look so again once it has grown."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a round: topics, those of them that are read to their ends, and records."""

    topics: int
    topics_read: int = 0
    records: int = 0


OnProgress = Callable[[Progress], None]
"""Is called after each response of the source."""


async def import_topics(
    source: SourceCluster,
    target: TargetStore,
    topics: Sequence[SourceTopic],
    on_progress: OnProgress,
    *,
    from_start: bool = False,
) -> list[ImportedTopic]:
    """Import what is new of topics; with `from_start` everything. A topic that cannot be imported
    has a `problem`, and the others are imported. Raises RequestRefused, BrokerUnavailable,
    StorageError.
    """
    done, known = [], []
    for topic in topics:
        configs, left_out = _known_configs(topic)
        result = ImportedTopic(topic=topic.name, partitions=topic.partitions, left_out=left_out)
        done.append(result)
        if lacking := "" if from_start else target.lacking_partitions(topic):
            result.problem, result.has_changed = lacking, True
        else:
            known.append(replace(topic, configs=configs))
    streams = await target.topics(known, from_start=from_start)
    failpoint("import_topics_made")
    places = [(one, streams[topic.name][one.partition]) for topic in known for one in topic.places]
    bounds = await partition_bounds(source.brokers, [one for one, _ in places])
    there = [(one, stream, bounds[one]) for one, stream in places if one in bounds]
    results = {one.topic: one for one in done}
    for place, stream, (_, high) in there:
        result = results[place.topic.name]
        if stream.next_offset > high and not result.problem:
            result.has_changed = True
            result.problem = (
                f"{place} ends at {stream.next_offset} here and at {high} at the source, which has "
                "lost records or has another topic of this name: import it from its start by "
                f"--topic {place.topic.name} --from-start"
            )
    there = [one for one in there if not results[one[0].topic.name].problem]
    await target.begin([(stream, low) for _, stream, (low, _) in there])
    progress = Progress(topics=len(topics))

    def came(records: int) -> None:
        progress.records += records
        on_progress(progress)

    for topic, result in zip(topics, done, strict=True):
        try:
            for place in () if result.problem else topic.places:
                if place not in bounds:
                    raise TopicGone
                stream = streams[topic.name][place.partition]
                result.records += await _import_partition(
                    source, target, stream, place, bounds[place], came
                )
                result.end_offsets += stream.next_offset
        except TopicGone:
            result.is_gone = True
        except RequestRefused as error:
            result.problem, result.has_changed = str(error), isinstance(error, TopicChanged)
        progress.topics_read += 1
    await target.trim(
        [
            (stream, bounds.low)
            for _, stream, bounds in there
            if stream.start_offset < bounds.low <= stream.next_offset
        ]
    )
    return done


async def _import_partition(
    source: SourceCluster,
    target: TargetStore,
    stream: Stream,
    place: Place,
    bounds: Bounds,
    came: Callable[[int], None],
) -> int:
    """Copy what is new of a partition; return how many records that is. Raises TopicGone."""
    low, high = bounds
    start = max(low, stream.next_offset)
    records = 0
    try:
        async with aclosing(fetched_batches(source.brokers, place, start, high)) as responses:
            async for one in responses:
                added = await target.add(stream, one.batches)
                await target.fill(stream, one.end)
                came(added)
                records += added
                failpoint("import_records_appended")
    except OldFormat:
        with source.partition(place) as reader:
            start = max(low, stream.next_offset)
            async for added in import_records(reader, target, stream, start, high):
                came(added)
                records += added
    await target.fill(stream, high)  # markers, and what compaction or retention removed
    return records


async def import_records(
    reader: SourcePartition, target: TargetStore, stream: Stream, start: int, high: int
) -> AsyncGenerator[int, None]:
    """Copy records from `start` up to `high` one by one, as a partition needs it that has messages
    of a format from before batches; yield how many came.
    """
    async for some in reader.records(start, high):
        await target.add_records(stream, some)
        yield len(some)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPositions:
    """The number of groups with committed offsets, of share groups with positions, and of share
    groups of which the source does not serve them.
    """

    groups: int = 0
    share_groups: int = 0
    not_served: int = 0


async def import_positions(
    source: SourceCluster, target: TargetStore, topics: Sequence[SourceTopic], partitions: int
) -> ImportedPositions:
    """Have the committed offsets of the source's groups, and the positions of its share groups.

    `partitions` is the number of `__consumer_offsets` if it has to be made.
    """
    names = {topic.name for topic in topics}
    groups = await source.positions(names)
    await target.set_positions(groups, names, partitions)
    shares = await source_share_positions(source.brokers, names)
    await target.set_share_positions(shares.groups, names, partitions)
    return ImportedPositions(
        groups=len(groups), share_groups=len(shares.groups), not_served=shares.not_served
    )


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
