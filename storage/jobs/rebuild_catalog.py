"""The job `rebuild-catalog`: the metadata of a cluster, made from what its objects say.

Plan: the objects that a listing shows. Run: each item reads the indexes of some of them. Result: a
state, shown by a dry run, and put in place of the old metadata as one checkpoint. Until that moment
nothing is touched; offsets that no object holds any more are bridged by empty batches, so that
records on both sides can be read. Nodes must not run meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakehead.storage.jobs.job import (
    LINES_MAX,
    Fields,
    Job,
    JobContext,
    JobResult,
    Planned,
    Report,
    Table,
    Unit,
)
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.rebuild.catalog import Rebuilt

_NOT_IN_OBJECTS = (
    "Not in objects, and to be set again: configs of topics, brokers and groups, quotas, access "
    "rules, credentials, leases of tables, topics and partitions without a record. Records that "
    "were deleted and whose objects are still there are back."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """The topics that are left out, and whether metadata that can be read are replaced."""

    without: tuple[str, ...] = option(
        (),
        "Leave this topic out. May be repeated.",
        title="Without",
        flag="--without",
        metavar="TOPIC",
        in_form=False,
    )
    replace: bool = option(
        False,
        "Replace metadata that can still be read.",
        title="Replace",
        flag="--replace",
        in_form=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult(JobResult):
    """The catalog that was made. `kept` is where the old metadata are now; empty if there were
    none, or in a dry run. `forgotten` are lines on keys that were forgotten before.
    """

    rebuilt: "Rebuilt" = field(repr=False)
    objects: int
    unreadable: tuple[tuple[str, str], ...]
    kept: str = ""
    forgotten: tuple[str, ...] = ()

    def as_fields(self) -> Fields:
        """Return the result as XCom has it."""
        rebuilt, state = self.rebuilt, self.rebuilt.state
        lost = [
            f"topic {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
            f"{one.end_offset - 1}"
            for one in rebuilt.lost[:LINES_MAX]
        ]
        return {
            "topics": len(state.topics),
            "partitions": len(state.streams),
            "objects": self.objects,
            "unused_objects": rebuilt.unused,
            "lost": lost,
            "lost_count": len(rebuilt.lost),
            "unreadable": [f"{key}: {reason}" for key, reason in self.unreadable[:LINES_MAX]],
            "unreadable_count": len(self.unreadable),
            "set_aside_count": len(rebuilt.set_aside),
            "old_metadata": self.kept,
            "forgotten": list(self.forgotten[:LINES_MAX]),
        }


def _plan(context: JobContext, options: RebuildOptions) -> Planned:
    """One unit; in a dry run with the catalog that would be made."""
    unit = Unit(key="catalog", size=0)
    if not context.is_dry_run or context.is_part:
        return Planned(units=(unit,))
    found = _rebuild(context, options)
    return Planned(units=(unit,), fields=found.as_fields(), found=found)


def _run(context: JobContext, options: RebuildOptions, _units: Sequence[Unit]) -> RebuildResult:
    return _rebuild(context, options)


def _rebuild(context: JobContext, options: RebuildOptions) -> RebuildResult:
    """Raises SettingsError, StoreUnavailable, UnsupportedFormat."""
    from lakehead.storage.rebuild.run import forgotten_keys, rebuild

    rebuilt, objects, unreadable, kept = rebuild(
        context,
        without=frozenset(options.without),
        replace=options.replace,
    )
    return RebuildResult(
        rebuilt=rebuilt,
        objects=objects,
        unreadable=unreadable,
        kept=kept,
        forgotten=forgotten_keys(context.path),
    )


def _show(result: RebuildResult) -> Report:
    rebuilt, state = result.rebuilt, result.rebuilt.state
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
    lines = [
        *(
            f"lost: {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
            f"{one.end_offset - 1}"
            for one in rebuilt.lost
        ),
        *(
            f"set aside: {one.topic}, partition {one.partition}, offsets {one.start_offset} to "
            f"{one.end_offset - 1}, behind an upload that a crash cut off"
            for one in rebuilt.set_aside
        ),
        *(f"cannot be read: {key}: {reason}" for key, reason in result.unreadable),
        *(
            f"left out: an older topic {name} ({topic_id})"
            for name, topic_id in rebuilt.superseded_topics
        ),
        *result.forgotten,
    ]
    columns = {"topic": "TOPIC", "partitions": "PARTITIONS", "offsets": "OFFSETS"}
    return Report(
        fields={
            "topics": len(state.topics),
            "objects": result.objects,
            "objects in use": len(state.objects),
            "objects that cannot be read": len(result.unreadable),
            "lost ranges of offsets": len(rebuilt.lost),
            "ranges set aside behind a crash": len(rebuilt.set_aside),
            "older topics left out": len(rebuilt.superseded_topics),
            "first entry": state.next_entry,
            "old metadata kept in": result.kept or None,
        },
        tables=(Table(columns=columns, rows=rows, lines=lines),),
        note=_NOT_IN_OBJECTS,
    )


JOB = Job(
    name="rebuild_catalog",
    help="""Rebuild a cluster's metadata from its objects.

    For metadata that are lost or damaged.

    Stop every node first. What is there of the old metadata is copied to meta-before-N/ and is not
    touched before the new catalog is complete.
    """,
    dry_run_help="Show what would be rebuilt, and write nothing.",
    options=RebuildOptions,
    plan=_plan,
    run=_run,
    show=_show,
    confirmation=lambda options: "Replace metadata that can be read?" if options.replace else "",
    takes_processes=True,
    is_for_broken_clusters=True,
)
