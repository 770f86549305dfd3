"""`lakehead compact`, `lakehead compact-topic`, `lakehead retain`: the jobs of maintenance, one by
one.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH, PathOption, load_state, run, store_uri
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.cli.maintain import ConfigOption, DryRunOption, opened_maintainer, settings_of
from broker.cli.progress import ByteProgress
from broker.configs.entries import broker_values
from broker.maintenance.maintainer import MaintenanceFigures
from broker.maintenance.rules import DueWork, compacted_streams
from broker.settings import Settings
from storage.compaction.merge_batches import RebatchSettings
from storage.compaction.merge_plan import MergeRules
from storage.errors import SettingsError
from storage.jobs.compact import CompactItem, CompactSettings, compact, plan_compact
from storage.metadata.state import ClusterState

_MIB = 1024 * 1024
_REBATCH = RebatchSettings()

TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="These topics only.")
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
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="How many work at once.")
    ] = 1,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small objects into large ones.

    Every record keeps its offset, timestamp and producer. Topics that are compacted by keys are
    left to compact-topic. Safe to run beside a live cluster, to kill, and to run twice at once.
    """
    values = broker_values(run(load_state(path)), settings_of(config))
    settings = CompactSettings(
        path=store_uri(path),
        rules=MergeRules(target_bytes=target_mib * _MIB, count_min=count_min),
        rebatch=RebatchSettings(
            small_bytes=small_batch, small_compressed_bytes=small_compressed_batch
        ),
        excluded=compacted_streams(run(load_state(path)), values),
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
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the newest record of each key, in topics with cleanup.policy=compact, where it is due.

    Safe to run beside a live cluster, to kill at any moment, and to run twice at once.
    """
    figures = _partitions(
        "compact-topic",
        path,
        settings_of(config),
        lambda work: work.is_compaction and _is_among(work, topics),
        dry_run=dry_run,
        as_json=as_json,
    )
    if figures is not None:
        show_fields(
            {
                "compacted partitions": figures.compacted,
                "bytes before": figures.bytes_before,
                "bytes after": figures.bytes_after,
            },
            as_json,
        )


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
    figures = _partitions(
        "retain",
        path,
        settings_of(config),
        lambda work: not work.is_compaction and _is_among(work, topics),
        dry_run=dry_run,
        as_json=as_json,
    )
    if figures is not None:
        show_fields({"trimmed partitions": figures.trimmed}, as_json)


def _is_among(work: DueWork, topics: Sequence[str] | None) -> bool:
    return not topics or work.topic in topics


def _partitions(
    name: str,
    path: str,
    settings: Settings,
    is_wanted: Callable[[DueWork], bool],
    *,
    dry_run: bool,
    as_json: bool,
) -> MaintenanceFigures | None:
    """Do what is due of partitions, or show it."""

    async def work() -> tuple[list[DueWork], MaintenanceFigures]:
        async with opened_maintainer(path, settings) as maintainer:
            due = [one for one in maintainer.due() if is_wanted(one)]
            sizes = [maintainer.size_of(one) for one in due]
            if not dry_run:
                done, total = 0, sum(sizes)
                with ByteProgress(name, shown=not as_json) as progress:
                    for one, size in zip(due, sizes, strict=True):
                        progress.update(done, total)
                        await maintainer.perform(one)
                        done += size
            return due, maintainer.figures

    due, figures = run(work())
    if dry_run:
        rows = [{"topic": one.topic, "partition": one.partition, "due": one.words} for one in due]
        show_rows(rows, {"topic": "TOPIC", "partition": "PARTITION", "due": "DUE"}, as_json)
        return None
    if figures.failures:
        raise SettingsError(f"{figures.failures} partitions were left as they are; see above")
    return figures
