"""`lakehead import`: topics of an Apache Kafka cluster, with offsets, positions of groups, ACLs and
quotas.
"""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.broker.cli.cluster import (
    COMMAND_CONFIG,
    DEFAULT_PATH,
    PathOption,
    open_at,
    place_uri,
    read_state,
    run,
    store_uri,
)
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.recorded_run import recorded_run
from lakehead.broker.cli.stop_signals import stopped_by_signal
from lakehead.broker.observability.event_log import configure_logs
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import RequestRefused, SettingsError
from lakehead.storage.format.record_batch import CODECS
from lakehead.storage.jobs.job import DamageFound
from lakehead.storage.jobs.run_recorder import RunRecorder

if TYPE_CHECKING:
    from lakehead.broker.cli.migration.run import (
        ImportedAccess,
        ImportedPositions,
        ImportedTopic,
        Progress,
    )
    from lakehead.broker.cli.migration.source_cluster import SourceCluster

_PROGRESS_S = 10.0
_SHOWN_MAX = 20
"""Differences of which there is a line."""
AS_PRODUCED = "producer"
"""The value of --compression that leaves batches as they are, as that of compression.type."""


def import_topics(
    source: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="A broker of the cluster to import.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="This topic only; not all. May be repeated."),
    ] = None,
    path: PathOption = DEFAULT_PATH,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            envvar=COMMAND_CONFIG,
            help="Settings of a Kafka client (client.properties), for a source with TLS or SASL.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="PART",
            help="Leave out acls, quotas, users or positions. May be repeated.",
        ),
    ] = None,
    compression: Annotated[
        str,
        typer.Option(
            "--compression",
            metavar="CODEC",
            help="Codec of the batches; producer: they are copied as they are.",
        ),
    ] = AS_PRODUCED,
    offsets_partitions: Annotated[
        int,
        typer.Option(
            "--offsets-partitions",
            min=1,
            metavar="N",
            help="Partitions of __consumer_offsets (offsets.topic.num.partitions).",
        ),
    ] = 50,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Go on with what comes, until Ctrl-C or SIGTERM; then import the rest and end.",
        ),
    ] = False,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start",
            help="Delete the topics given by --topic here first, and import all of them.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Import nothing: read both sides, and compare digests."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Import topics of an Apache Kafka cluster.

    With their configs, committed records at their offsets, the positions of groups, ACLs and client
    quotas.

    The cluster at --path is a new one, before its nodes start for the first time. Run it again for
    what came meanwhile; a run that was killed goes on where it was.
    """
    if verify and (follow or from_start):
        raise SettingsError("--verify imports nothing: give neither --follow nor --from-start")
    if from_start and not topic:
        raise SettingsError("--from-start is for topics given by --topic")
    parts, codec = _known_parts(without or ()), _codec(compression)
    options = _Options(topic or (), parts, codec, offsets_partitions, follow, from_start, as_json)
    configure_logs("warning")
    from lakehead.broker.cli.migration.source_cluster import SourceCluster

    cluster = SourceCluster(source, command_config, random.SystemRandom())
    if verify:
        run(_verify(cluster, store_uri(path), options))
    else:
        uri = _new_store_uri(path)
        with recorded_run("import", uri) as recorder:
            run(_import(cluster, uri, options, recorder))


def _new_store_uri(path: str) -> str:
    place = place_uri(path)
    if place.startswith("file:") and not place.endswith("/store"):
        place += "/store"  # as `lakehead start` has it in its folder
    return place


def _codec(compression: str) -> int | None:
    """Return the number of a codec; None: that of each batch."""
    if compression not in {AS_PRODUCED, *CODECS}:
        raise SettingsError(f"--compression is one of {AS_PRODUCED}, {', '.join(CODECS)}")
    return None if compression == AS_PRODUCED else CODECS.index(compression)


def _known_parts(without: Collection[str]) -> Collection[str]:
    from lakehead.broker.cli.migration.run import PARTS

    for part in without:
        if part not in PARTS:
            raise SettingsError(f"--without is one of {', '.join(PARTS)}, not {part}")
    return without


@dataclass(frozen=True, slots=True)
class _Options:
    """Those of the command, but for source and store."""

    topics: Sequence[str]
    without: Collection[str]
    codec: int | None
    offsets_partitions: int
    follow: bool
    from_start: bool
    as_json: bool


def _show_line(text: str) -> None:
    typer.echo(f"lakehead: {text}", err=True)


class _ProgressLines:
    """A line about the progress, at most every few seconds; consoles have it by `recorder`."""

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self._clock = SystemClock()
        self._next_s = self._clock.monotonic() + _PROGRESS_S

    def show(self, progress: "Progress") -> None:
        """Show it, if it is time to."""
        self._recorder.count(progress.topics_read, progress.topics)
        self._recorder.at(f"{progress.records} records came")
        now_s = self._clock.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PROGRESS_S
            _show_line(
                f"{progress.records} records came; {progress.topics_read} of {progress.topics} "
                "topics are read"
            )


async def _import(
    source: "SourceCluster", uri: str, options: _Options, recorder: RunRecorder
) -> None:
    from lakehead.broker.cli.migration.follow import Import
    from lakehead.broker.cli.migration.target_store import opened_target

    store = open_at(uri)
    try:
        if not options.follow:
            await source.brokers.topics()  # a wrong address leaves no cluster behind
        async with opened_target(store, options.codec) as target:
            lines = _ProgressLines(recorder)
            whole = Import(
                source,
                target,
                options.topics,
                clock=SystemClock(),
                on_progress=lines.show,
                from_start=options.from_start,
            )
            if options.follow:
                stopped = stopped_by_signal("imports what came since, and ends")
                await whole.follow(stopped, _show_line)
            await whole.copy()
            positions, access = await whole.finish(options.without, options.offsets_partitions)
    finally:
        source.brokers.close()
        await store.close()
    results = whole.results.values()
    recorder.count(len(results), len(results))
    recorder.found({"topics": len(results), "records": sum(one.records for one in results)})
    _show(results, options.as_json)
    for name in sorted(target.made_again):
        _show_line(f"topic {name} was imported from its start again, as another topic than before")
    for one in results:
        if one.is_gone:
            _show_line(f"topic {one.topic} was deleted at the source meanwhile, and stays here")
    _show_access(access, positions, options.as_json)
    if problems := whole.problems:
        for one in problems[1:]:
            _show_line(one.problem)
        others = f" ({len(problems)} topics were not imported whole)" if problems[1:] else ""
        raise RequestRefused(f"{problems[0].problem}{others}")


def _show(results: Iterable["ImportedTopic"], as_json: bool) -> None:
    rows = [
        {
            "topic": one.topic,
            "partitions": one.partitions,
            "records": one.records,
            "end_offsets": one.end_offsets,
            "left_out": ", ".join(one.left_out) or None,
        }
        for one in results
    ]
    columns = {
        "topic": "TOPIC",
        "partitions": "PARTITIONS",
        "records": "RECORDS",
        "end_offsets": "ENDS",
        "left_out": "CONFIGS LEFT OUT",
    }
    show_rows(rows, columns, as_json)


def _show_access(access: "ImportedAccess", positions: "ImportedPositions", as_json: bool) -> None:
    if access.users:
        users = [
            {"user": one.user, "mechanism": one.mechanism, "iterations": one.iterations}
            for one in access.users
        ]
        headings = {"user": "USER WITHOUT A PASSWORD", "mechanism": "MECHANISM"}
        show_rows(users, headings | {"iterations": "ITERATIONS"}, as_json)
    _show_line(
        f"positions of {positions.groups} groups and {positions.share_groups} share groups, "
        f"{access.acls} ACLs and quotas of {access.quotas} entities are those of the source"
    )
    if positions.not_served:
        _show_line(
            f"left out: positions of {positions.not_served} share groups, since the source does "
            "not serve DescribeShareGroupOffsets: set them by kafka-share-groups --reset-offsets"
        )
    for quota in access.left_out:
        _show_line(f"left out: quota {quota}")
    if access.users:
        one = access.users[0]
        _show_line(
            "Kafka gives no passwords away: set one for each of these users, as soon as "
            f"a node runs: kafka-configs --bootstrap-server HOST:PORT --alter --entity-type users "
            f"--entity-name {one.user} --add-config "
            f"'{one.mechanism}=[iterations={one.iterations},password=...]'"
        )


async def _verify(source: "SourceCluster", uri: str, options: _Options) -> None:
    from lakehead.broker.cli.migration.comparison import compared, differing_positions
    from lakehead.broker.cli.migration.run import POSITIONS

    store = open_at(uri)
    positions: list[str] = []
    try:
        state = await read_state(store)
        topics = await source.topics(options.topics)
        there = [one.name for one in topics]
        for name in options.topics or there:
            if name not in there:
                raise RequestRefused(f"the source has no topic {name}, or not for this user")
            if name not in state.topics:
                raise DamageFound(f"topic {name} is not here: import it")
        found = [one async for one in compared(source, store, state, topics)]
        if POSITIONS not in options.without:
            positions = await differing_positions(source, store, state, topics)
    finally:
        source.brokers.close()
        await store.close()
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "start": one.start,
            "end": one.end,
            "behind": one.behind,
            "records": one.records,
            "source_records": one.source_records,
            "superseded": one.superseded,
            "digest": one.digest,
            "source_digest": one.source_digest,
            "same": None if one.is_gone else one.is_same,
        }
        for one in found
    ]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "records": "RECORDS",
        "source_records": "AT THE SOURCE",
        "behind": "BEHIND",
        "same": "SAME",
    }
    show_rows(rows, columns, options.as_json)
    differing = [one for one in found if not one.is_same]
    for one in differing[:_SHOWN_MAX]:
        _show_line(f"{one.topic}-{one.partition} differs at {one.difference}")
    for text in positions[:_SHOWN_MAX]:
        _show_line(f"another position: {text}")
    for one in found:
        if one.is_gone:
            _show_line(f"{one.topic}-{one.partition} is not at the source any more: not compared")
    if behind := sum(one.behind for one in found):
        _show_line(f"the source has {behind} offsets that are not imported yet: import again")
    if differing:
        one = differing[0]
        raise DamageFound(
            f"{one.topic}-{one.partition} has other records than the source, at {one.difference} "
            f"({len(differing)} of {len(found)} partitions differ): import the topic from its "
            f"start by --topic {one.topic} --from-start"
        )
    if positions:
        raise DamageFound(f"{len(positions)} positions differ, first of {positions[0]}")
