"""`lakehead rebuild-catalog`: the metadata from the objects alone, for when they are lost."""

from functools import partial
from typing import Annotated

import typer

from broker.cli.cluster import DEFAULT_PATH
from broker.cli.listing import JsonOption, show_fields, show_rows
from broker.cli.progress import ByteProgress
from storage.jobs.rebuild_catalog import RebuildResult, RebuildSettings, rebuild_catalog

_NOT_IN_OBJECTS = (
    "Not in objects, and to be set again: configs of topics, brokers and groups, quotas, access "
    "rules, credentials, leases of tables, topics and partitions without a record. Records that "
    "were deleted and whose objects are still there are back."
)


def rebuild(
    path: Annotated[
        str,
        typer.Option(
            "--path",
            "-p",
            metavar="PATH",
            envvar="LAKEHEAD_PATH",
            help="The cluster's store: its folder, or its URI (s3://bucket/prefix).",
        ),
    ] = f"{DEFAULT_PATH}/store",
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="TOPIC", help="Leave this topic out. May be repeated."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Even if there are metadata that can be read.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="How many work at once.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be rebuilt, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a cluster's metadata anew from what its objects say, when they are lost or damaged.

    Stop every node first. What is there of the old metadata is copied to meta-before-N/ and is not
    touched before the new catalog is complete.
    """
    from lake.jobs.local_pool import run_items

    settings = RebuildSettings(path=path, without=frozenset(without or ()), replace=replace)
    with ByteProgress("rebuild-catalog", shown=not as_json) as progress:
        result = rebuild_catalog(
            settings,
            dry_run=dry_run,
            runner=partial(run_items, processes=processes),
            on_progress=progress.update,
        )
    _show(result, as_json)
    if not as_json:
        typer.echo(f"\n{_NOT_IN_OBJECTS}")


def _show(result: RebuildResult, as_json: bool) -> None:
    state = result.rebuilt.state
    if not as_json:
        rows = [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "offsets": sum(
                    state.streams[one].end_offset - state.streams[one].start_offset
                    for one in topic.partitions
                ),
            }
            for topic in sorted(state.topics.values(), key=lambda one: one.name)
        ]
        headings = {"topic": "TOPIC", "partitions": "PARTITIONS", "offsets": "OFFSETS"}
        show_rows(rows, headings, as_json=False)
        for one in result.rebuilt.lost:
            typer.echo(
                f"lost: {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
                f"{one.end_offset - 1}"
            )
        for one in result.rebuilt.set_aside:
            typer.echo(
                f"set aside: {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
                f"{one.end_offset - 1}, behind an upload that a crash cut off"
            )
        for key, reason in result.unreadable:
            typer.echo(f"cannot be read: {key}: {reason}")
        for name, topic_id in result.rebuilt.superseded_topics:
            typer.echo(f"left out: an older topic {name} ({topic_id})")
        typer.echo("")
    show_fields(
        {
            "topics": len(state.topics),
            "objects": result.objects,
            "objects in use": len(state.objects),
            "objects that cannot be read": len(result.unreadable),
            "lost ranges of offsets": len(result.rebuilt.lost),
            "ranges set aside behind a crash": len(result.rebuilt.set_aside),
            "older topics left out": len(result.rebuilt.superseded_topics),
            "first entry": state.next_entry,
            "old metadata kept in": result.kept or None,
        },
        as_json,
    )
