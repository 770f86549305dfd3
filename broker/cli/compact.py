"""`lakehead compact`, `lakehead compact-topic`, `lakehead retain`: the jobs of maintenance, one by
one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, load_state, run, store_uri
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.cli.maintain import ConfigOption, DryRunOption, settings_of
from broker.cli.progress import ByteProgress
from broker.configs.entries import upkeep_defaults
from storage.compaction.merge_plan import MergeRules, RebatchSettings
from storage.errors import SettingsError
from storage.jobs.compact import CompactItem, CompactSettings, compact, plan_compact
from storage.jobs.compact_topics import (
    CompactTopicsSettings,
    compact_topics,
    plan_compact_topics,
)
from storage.jobs.retain import RetainSettings, plan_retain
from storage.jobs.retain import retain as run_retain
from storage.metadata.state import ClusterState
from storage.upkeep.rules import DueWork

_MIB = 1024 * 1024
_REBATCH = RebatchSettings()

TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="These topics only.")
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, metavar="N", help="How many work at once.")
]
SmallBatchOption = Annotated[
    int,
    typer.Option(
        "--small-batch",
        min=0,
        metavar="BYTES",
        help="Record batches below this are merged, where a client cannot tell. 0: none.",
    ),
]
SmallCompressedOption = Annotated[
    int,
    typer.Option(
        "--small-compressed-batch",
        min=0,
        metavar="BYTES",
        help="Compressed batches below this are merged too. They are compressed anew, which takes "
        "ten times as long. 0: none.",
    ),
]


def compact_objects(
    path: PathOption = DEFAULT_PATH,
    config: ConfigOption = None,
    target_mib: Annotated[
        int,
        typer.Option(
            "--target",
            min=1,
            metavar="MIB",
            help="What an object is to have, and about what a process takes in memory.",
        ),
    ] = MergeRules().target_bytes // _MIB,
    count_min: Annotated[
        int,
        typer.Option(
            "--count", min=2, metavar="N", help="So many small objects are worth while in any case."
        ),
    ] = MergeRules().count_min,
    small_batch: SmallBatchOption = _REBATCH.small_bytes,
    small_compressed_batch: SmallCompressedOption = _REBATCH.small_compressed_bytes,
    processes: ProcessesOption = 1,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small objects into large ones.

    Every record keeps its offset, timestamp and producer. Topics that are compacted by keys are
    left to compact-topic. Safe to run beside a live cluster, to kill, and to run twice at once.
    """
    settings = CompactSettings(
        path=store_uri(path),
        rules=MergeRules(target_bytes=target_mib * _MIB, count_min=count_min),
        rebatch=RebatchSettings(
            small_bytes=small_batch, small_compressed_bytes=small_compressed_batch
        ),
        defaults=upkeep_defaults(settings_of(config)),
    )
    if dry_run:
        rows = _rows(plan_compact(settings), run(load_state(path)))
        headings = {"topic": "TOPIC", "partition": "PARTITION", "streams": "STREAMS"}
        show_rows(rows, headings | {"objects": "OBJECTS", "bytes": "BYTES"}, as_json)
        return
    from lake.jobs.local_pool import run_items

    with ByteProgress("compact", shown=not as_json) as progress:
        runner = partial(run_items, processes=processes)
        figures = compact(settings, runner=runner, on_progress=progress.update)
    show_fields({name.replace("_", " "): value for name, value in asdict(figures).items()}, as_json)


def _rows(items: Sequence[CompactItem], state: ClusterState) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for item in items:
        merge = item.merge
        stream = state.streams.get(merge.streams[0]) if len(merge.streams) == 1 else None
        rows.append(
            {
                "topic": None if stream is None else state.topic_names.get(stream.topic_id),
                "partition": None if stream is None else stream.partition,
                "streams": len(merge.streams),
                "objects": len(merge.sources),
                "bytes": merge.size,
            }
        )
    return rows


def compact_topic(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    config: ConfigOption = None,
    processes: ProcessesOption = 1,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the newest record of each key, in topics with cleanup.policy=compact, where it is due.

    Safe to run beside a live cluster, to kill at any moment, and to run twice at once.
    """
    settings = CompactTopicsSettings(
        path=store_uri(path),
        topics=frozenset(topics or ()),
        defaults=upkeep_defaults(settings_of(config)),
    )
    if dry_run:
        _show_due((item.work for item in plan_compact_topics(settings)), as_json)
        return
    from lake.jobs.local_pool import run_items

    with ByteProgress("compact-topic", shown=not as_json) as progress:
        runner = partial(run_items, processes=processes)
        figures = compact_topics(settings, runner=runner, on_progress=progress.update)
    show_fields(
        {
            "compacted partitions": figures.partitions,
            "bytes before": figures.bytes_before,
            "bytes after": figures.bytes_after,
            "left to others": figures.superseded,
            "waiting for transactions": figures.waiting,
        },
        as_json,
    )
    _raise_failures(figures.failures)


def retain(
    topics: TopicsArgument = None,
    path: PathOption = DEFAULT_PATH,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what retention.ms and retention.bytes are over for.

    Never what the table of a topic that declares one does not hold yet.
    """
    settings = RetainSettings(
        path=store_uri(path),
        topics=frozenset(topics or ()),
        defaults=upkeep_defaults(settings_of(config)),
    )
    if dry_run:
        _show_due((work for item in plan_retain(settings) for work in item.works), as_json)
        return
    with ByteProgress("retain", shown=not as_json) as progress:
        figures = run_retain(settings, on_progress=progress.update)
    show_fields(
        {
            "trimmed partitions": figures.partitions,
            "records": figures.records,
            "bytes": figures.bytes,
        },
        as_json,
    )
    _raise_failures(figures.failures)


def _show_due(works: Iterable[DueWork], as_json: bool) -> None:
    rows = [{"topic": one.topic, "partition": one.partition, "due": one.words} for one in works]
    show_rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "due": "DUE"}, as_json)


def _raise_failures(failures: Sequence[str]) -> None:
    if failures:
        more = f"; and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise SettingsError(f"left as it is: {failures[0]}{more}")
