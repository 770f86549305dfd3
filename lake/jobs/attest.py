"""The job `attest`: shows from the bucket alone that a table is its topic, row for row.

Plan: the offsets that a version of the table has, cut where its commits' digests begin and end, and
what cannot be attested any more. Run: each item reads some offsets, all or a sample
(`table_attestation`). Result: counts, differences with range, object, file and row, and a verdict.
Nothing is written.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs.attest_result import (
    AttestResult,
    Difference,
    Unattestable,
    differs,
    verdict,
)
from lakehead.lake.jobs.table_jobs import TopicOptions, settings_of, table_keys
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import (
    LINES_MAX,
    DamageFound,
    Fields,
    Job,
    JobContext,
    Planned,
    Report,
    Table,
    Unit,
    sum_results,
)
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.lake.catalog import PartitionLog
    from lakehead.lake.jobs.table_attestation import ForgottenKeys, Part
    from lakehead.lake.store_reader import StoreReader
    from lakehead.lake.tables.delta_table import Table as DeltaTable
    from lakehead.lake.tables.layout import TableLayout
    from lakehead.lake.tables.range_digests import RangeDigest

_ITEM_BYTES = 32 * 1024 * 1024
_runs = count()
"""Numbers of the runs of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestOptions(TopicOptions):
    """The table of one topic, a version of it, and a share of its offsets."""

    version: int | None = option(
        None,
        "This version of the table, not the newest.",
        title="Version",
        flag="--version",
        metavar="N",
        least=0,
        in_form=False,
    )
    sample_percent: int = option(
        100,
        "Attest this share of the offset ranges.",
        title="Sample, %",
        flag="--sample",
        metavar="PERCENT",
        least=1,
        most=100,
        form={"description": "The percentage of offset ranges to attest."},
    )
    seed: int = option(
        0,
        "Random seed of the sample.",
        title="Seed",
        flag="--seed",
        metavar="N",
        form={"description": "Another one chooses other ranges."},
    )


# -------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A version of a table, and its topic."""

    table: "DeltaTable"
    logs: "Sequence[PartitionLog]"
    layout: "TableLayout"
    letters_uri: str
    is_upsert: bool
    is_compacted: bool
    digests: "Sequence[RangeDigest]"
    may_miss: int
    may_lack: int
    run: int
    forgotten: "tuple[ForgottenKeys, ...]" = ()

    def span(self, log: "PartitionLog") -> tuple[int, int]:
        """Return the offsets of a partition that the table has."""
        from lakehead.lake.tables.delta_table import first_id

        first = self.table.txn_version(first_id(log.topic_id, log.id.partition))
        return max(first, 0), self.table.last_offset(log.topic_id, log.id.partition) + 1

    def present(self, log: "PartitionLog") -> tuple[int, int]:
        """Return the offsets among them that the topic has in objects."""
        first, end = self.span(log)
        return max(first, log.start_offset), min(end, log.end_offset)


def _plan(context: JobContext, options: AttestOptions) -> Planned:
    """Look at the table's log and the topic's indexes.

    Raises SettingsError (no table, no such version), UnknownTopic, TableUnavailable.
    """
    keys = table_keys(context, options.checked_topic())
    if len(keys) > 1 and options.version is not None:
        raise SettingsError(f"--version is of one table, name it: {', '.join(keys)}")
    planned = [_plan_table(context, options, key) for key in keys]
    if len(planned) == 1:
        return planned[0]
    uneven = [
        key
        for key, one in zip(keys, planned, strict=True)
        if one.found is not None and (one.found.may_miss or one.found.may_lack)
    ]
    if uneven:  # what one of them may miss is not for another to miss
        raise SettingsError(
            f"{uneven[0]} has left records or fields out: attest the tables by their names, "
            f"{', '.join(keys)}"
        )
    units = [
        replace(unit, key=f"{key}:{unit.key}", words=f"{key}: {unit.words}")
        for key, one in zip(keys, planned, strict=True)
        for unit in one.units
    ]
    if context.is_part:
        return Planned(units=tuple(units))
    found, scopes = AttestResult(), []
    for key, one in zip(keys, planned, strict=True):
        scopes.append(
            f"{key} (version {one.found.version}{one.found.scope and ', '}{one.found.scope})"
        )
        found = found.plus(one.found)
    found = replace(found, version=-1, scope=f"for each of {', '.join(scopes)}")
    return Planned(units=tuple(units), fields=found.as_fields(), found=found)


def _plan_table(context: JobContext, options: AttestOptions, key: str) -> Planned:
    opened = _open(context, options, key)
    units = [unit for log in opened.logs for unit in _units(context, opened, log)]
    is_sample = options.sample_percent < 100
    if is_sample and units:
        count = max(1, round(len(units) * options.sample_percent / 100))
        units = random.Random(options.seed).sample(units, count)
    if context.is_part:
        return Planned(units=tuple(units))
    scope = []
    if is_sample:
        scope.append(f"in a sample of {options.sample_percent} %")
    if opened.is_upsert:
        scope.append("as far as a table by upsert shows it: each row is a record")
    found = AttestResult(
        version=opened.table.version,
        may_miss=opened.may_miss,
        may_lack=opened.may_lack,
        scope=", ".join(scope),
    )
    found = found.plus(_uncertified(context, opened))
    for log in opened.logs if not is_sample else ():
        found = found.plus(_unattested(opened, log)).plus(_unclaimed(opened, log))
    if not is_sample:
        gone = sum(one.rows for one in found.unattestable)
        found = found.plus(_beside(opened))
        if not context.is_dry_run:  # nothing is compared with them
            found = found.plus(_held_rows(opened, gone))
    return Planned(units=tuple(units), fields=found.as_fields(), found=found)


def _open(context: JobContext, options: AttestOptions, key: str) -> _Opened:
    import pyarrow as pa

    from lakehead.lake.committed import committed_now
    from lakehead.lake.jobs.table_schema import table_layout
    from lakehead.lake.store_reader import store_reader
    from lakehead.lake.tables.delta_table import open_table
    from lakehead.lake.tables.left_out import DROPPED, LEFT_OUT, counted
    from lakehead.lake.tables.range_digests import held_digests
    from lakehead.lake.tables.table_history import commits_since
    from lakehead.lake.tables.upsert import HISTORY_FIELDS

    settings = settings_of(context, key)
    reader = store_reader(context.path)
    catalog = reader.open_catalog()
    topic = catalog.topic(settings.topic)
    newest = table = open_table(settings.table)
    if options.version is not None:
        table = open_table(settings.table, options.version)
    if table is None or newest is None:
        raise SettingsError(f"topic {settings.topic} has no table at {settings.table} yet")
    logs = committed_now(reader, catalog, settings.topic)
    layout = table_layout(settings, table, reader, logs, topic_id=topic.topic_id)
    assert layout is not None, "a table has a layout"
    made = {field.name for field in HISTORY_FIELDS} if layout.is_history else set()
    schema = pa.schema([field for field in layout.schema if field.name not in made])
    later = commits_since(newest, table.version)
    replayed = sum(one.change.rows for one in later if one.change.kind == "replay")
    return _Opened(
        table=table,
        logs=logs,
        layout=replace(layout, schema=schema, is_upsert=False, is_history=False),
        letters_uri=settings.dead_letters,
        is_upsert=layout.is_upsert,
        is_compacted="compact" in topic.configs.get("cleanup.policy", ""),
        digests=held_digests(table),
        may_miss=counted(table, DROPPED) + replayed,
        may_lack=counted(table, LEFT_OUT),
        run=next(_runs),
        forgotten=_forgotten_since(reader, newest, table.version, topic.topic_id),
    )


def _forgotten_since(
    reader: "StoreReader", table: "DeltaTable", version: int, topic_id: str
) -> "tuple[ForgottenKeys, ...]":
    """Return the keys of a topic that were forgotten after a version of a table, of which the salt
    is there still.
    """
    from lakehead.lake.jobs.table_attestation import ForgottenKeys
    from lakehead.lake.tables.range_digests import noted_certificates
    from lakehead.storage.certificates import Certificates
    from lakehead.storage.errors import NotFound

    certificates, found = Certificates(reader.store, random.SystemRandom()), []
    for one in noted_certificates(table, version):
        try:
            request = reader.run(certificates.request(one.number))
        except NotFound:
            continue
        if request.topic_id != topic_id:
            continue
        salt = reader.run(certificates.salt(request))
        if salt is not None:
            keys = frozenset(request.hashes)
            found.append(ForgottenKeys(certificate=one.number, salt=salt, hashes=keys))
    return tuple(found)


def _units(context: JobContext, opened: _Opened, log: "PartitionLog") -> Iterator[Unit]:
    from lakehead.lake.jobs.table_attestation import AttestItem
    from lakehead.lake.moved_ranges import plan_moved
    from lakehead.lake.planner import OffsetRange
    from lakehead.lake.store_reader import store_reader

    start, end = opened.present(log)
    if start >= end:
        return
    requested = [OffsetRange(log=log, start=start, end=end)]
    splits = plan_moved(store_reader(context.path), requested, split_bytes=_ITEM_BYTES)
    sizes = {split.ranges[0].first_offset: split.length for split in splits}
    for parts in _grouped(_parts(opened, log, sorted(sizes)), sorted(sizes)):
        first, last = parts[0].first, parts[-1].end
        size = sum(one for at, one in sizes.items() if first <= at < last)
        extents = OffsetRange(log=log, start=first, end=last).extents()
        item = AttestItem(
            store_uri=context.path,
            table_uri=opened.table.uri,
            version=opened.table.version,
            run=opened.run,
            letters_uri=opened.letters_uri,
            log=replace(log, extents=extents),
            layout=opened.layout,
            parts=tuple(parts),
            is_upsert=opened.is_upsert,
            is_compacted=opened.is_compacted,
            may_lack_fields=opened.may_lack > 0,
            size=size,
            forgotten=opened.forgotten,
        )
        words = f"partition {log.id.partition}, offsets {item.first} to {item.end - 1}"
        key = f"{log.id.partition}:{item.first}"
        yield Unit(key=key, size=size, item=item, words=words)


def _parts(opened: _Opened, log: "PartitionLog", cuts: Sequence[int]) -> "Iterator[Part]":
    """Yield the parts of a partition: the ranges of digests, and what is between, cut at `cuts`."""
    from lakehead.lake.jobs.table_attestation import Part

    at, end = opened.present(log)
    noted = [one for one in opened.digests if one.partition == log.id.partition]
    for digest in noted:
        if digest.first < at or digest.end > end or digest.first >= digest.end:
            continue  # only a part of its records is there
        yield from _plain_parts(at, digest.first, cuts)
        yield Part(first=digest.first, end=digest.end, digest=digest)
        at = digest.end
    yield from _plain_parts(at, end, cuts)


def _plain_parts(first: int, end: int, cuts: Sequence[int]) -> "Iterator[Part]":
    from lakehead.lake.jobs.table_attestation import Part

    bounds = [first, *(cut for cut in cuts if first < cut < end), end]
    for start, stop in pairwise(bounds):
        if start < stop:
            yield Part(first=start, end=stop)


def _grouped(parts: "Iterator[Part]", cuts: Sequence[int]) -> "Iterator[list[Part]]":
    """Yield neighbouring parts that begin between the same two of `cuts`."""
    from bisect import bisect_right

    held: list[Part] = []
    for part in parts:
        if held and bisect_right(cuts, held[0].first) != bisect_right(cuts, part.first):
            yield held
            held = []
        held.append(part)
    if held:
        yield held


def _unattested(opened: _Opened, log: "PartitionLog") -> AttestResult:
    """Return what the topic does not have of the offsets that the table has of a partition."""
    first, end = opened.span(log)
    start, stop = opened.present(log)
    found = []
    if first < end and start > first:
        why = "retention or DeleteRecords removed the records: not attestable any more"
        found.append(_gone(opened, log, first, min(start, end), why))
    if stop < end:
        why = "the records are not in objects yet: attest the table again later"
        found.append(_gone(opened, log, max(stop, first), end, why))
    return AttestResult(unattestable=tuple(one for one in found if one.rows or one.digests))


def _gone(opened: _Opened, log: "PartitionLog", first: int, end: int, why: str) -> Unattestable:
    import pyarrow.dataset as ds

    from lakehead.lake.jobs.table_attestation import rows_by_file

    at, partition = ds.field("_offset"), log.id.partition
    within = (ds.field("_partition") == partition) & (at >= first) & (at < end)
    digests = tuple(
        f"offsets {one.first} to {one.end - 1}, {one.records} records, {one.digest}"
        for one in opened.digests
        if one.partition == partition and one.first < end and one.end > first
    )
    found = rows_by_file(opened.table, ("_offset",), within)
    return Unattestable(
        partition=partition,
        first=first,
        end=end,
        rows=sum(rows.num_rows for _, rows in found if not isinstance(rows, Exception)),
        why=why,
        digests=digests,
    )


def _beside(opened: _Opened) -> AttestResult:
    """Return the rows of offsets that the table does not claim to have, and the files that cannot
    be read.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from lakehead.lake.jobs.table_attestation import rows_by_file

    is_held = pc.scalar(False)
    for log in opened.logs:
        first, end = opened.span(log)
        at = ds.field("_offset")
        is_held |= (ds.field("_partition") == log.id.partition) & (at >= first) & (at < end)
    is_odd = ~is_held | ds.field("_partition").is_null() | ds.field("_offset").is_null()
    odd, number = [], 0
    for file, rows in rows_by_file(opened.table, ("_partition", "_offset"), is_odd):
        if isinstance(rows, Exception):
            number += 1
            odd.append(_odd(None, None, file, f"the data file cannot be read: {rows}"))
            continue
        number += rows.num_rows
        places = rows.slice(0, LINES_MAX).to_pydict()
        what = "the table has a row of an offset that none of its commits brought"
        for partition, offset in zip(places["_partition"], places["_offset"], strict=True):
            odd.append(_odd(partition, offset, file, what))
    return AttestResult(different=number, differences=tuple(odd))


def _held_rows(opened: _Opened, gone: int) -> AttestResult:
    """Return the number of rows that are to be compared: those of all files, but for `gone` ones,
    which are not attestable. Items find rows by the bounds that the log and the files have, and
    other readers may not: rows that no bounds let find are missing in the sum of the items. Files
    that cannot be read are differences of their items.
    """
    import pyarrow as pa

    from lakehead.storage.errors import StorageError

    held = 0
    for file in opened.table.data_files():
        with suppress(OSError, pa.ArrowException, StorageError):
            held += file.count()
    return AttestResult(held_rows=held - gone)


def _unclaimed(opened: _Opened, log: "PartitionLog") -> AttestResult:
    """Return the ranges of digests that reach beyond the offsets which the table claims to have."""
    first, end = opened.span(log)
    what = "a commit brought records of these offsets, and the table does not claim to have them"
    found = tuple(
        _of_range(one, what)
        for one in opened.digests
        if one.partition == log.id.partition
        and one.first < one.end
        and (one.first < first or one.end > end)
    )
    return AttestResult(different=len(found), differences=found)


def _uncertified(context: JobContext, opened: _Opened) -> AttestResult:
    """Return the ranges whose digest a commit has replaced for a certificate that the bucket does
    not have, or that is about other records.
    """
    from lakehead.lake.store_reader import store_reader
    from lakehead.storage.certificates import Certificates
    from lakehead.storage.errors import CorruptObject

    reader = store_reader(context.path)
    certificates = Certificates(reader.store, random.SystemRandom())
    topics = {log.id.partition: log.topic_id for log in opened.logs}
    by_number: dict[int, list[RangeDigest]] = {}
    for one in opened.digests:
        if one.certificate >= 0:
            by_number.setdefault(one.certificate, []).append(one)
    found = []
    for number, digests in by_number.items():
        certificate, fault = None, "the bucket does not have it"
        try:
            certificate = reader.run(certificates.certificate(number))
        except CorruptObject as error:
            fault = str(error)
        if certificate is not None:
            fault = certificate.fault("")  # a restored cluster has another secret
        for one in digests:
            place = topics.get(one.partition, ""), one.partition, one.first, one.end
            what = fault
            if not fault and certificate is not None and not certificate.covers(*place):
                what = "it is about other records"
            if what:
                what = f"certificate {number} does not explain the new digest of a commit: {what}"
                found.append(_of_range(one, what))
    return AttestResult(different=len(found), differences=tuple(found))


def _of_range(digest: "RangeDigest", what: str) -> Difference:
    return Difference(
        partition=digest.partition,
        first=digest.first,
        last=digest.end - 1,
        range_first=digest.first,
        range_last=digest.end - 1,
        object_key="",
        file="",
        what=what,
    )


def _odd(partition: int | None, offset: int | None, file: str, what: str) -> Difference:
    at = -1 if offset is None else offset
    return Difference(
        partition=-1 if partition is None else partition,
        first=at,
        last=at,
        range_first=-1,
        range_last=-1,
        object_key="",
        file=file,
        what=what,
    )


# ------------------------------------------------------------------------------------- run and show


def _run(context: JobContext, _options: AttestOptions, units: Sequence[Unit]) -> AttestResult:
    from lakehead.lake.jobs.table_attestation import attest_item

    items = [unit.item for unit in units]
    return sum_results(
        context, attest_item, items, empty=AttestResult(), size=lambda item: item.size
    )


def _finish(found: Fields) -> None:
    if lines := differs(found):
        more = f" (and {len(lines) - 1} more, see the report)" if len(lines) > 1 else ""
        raise DamageFound(f"{verdict(found)}: {lines[0]}{more}")


def _version(result: AttestResult) -> dict[str, int]:
    """Return the version of the table; of several tables, the scope has them."""
    return {} if result.version < 0 else {"version": result.version}


def _show_plan(planned: Planned) -> Report:
    return Report(
        fields={
            **_version(planned.found),
            "offset ranges": sum(len(unit.item.parts) for unit in planned.units),
            "bytes to read": planned.size,
        }
    )


def _show(result: AttestResult) -> Report:
    known = result.as_fields()
    return Report(
        fields={
            **_version(result),
            **result.labelled(),
            "verdict": verdict(known),
        },
        tables=(
            Table(
                name="not attestable",
                columns={
                    "partition": "PARTITION",
                    "offsets": "OFFSETS",
                    "rows": "ROWS",
                    "why": "NOT ATTESTABLE",
                },
                rows=[_gone_row(one) for one in result.unattestable],
            ),
            Table(
                name="differences found",
                columns={
                    "partition": "PARTITION",
                    "offsets": "OFFSETS",
                    "range": "RANGE",
                    "object": "OBJECT",
                    "file": "FILE",
                    "what": "WHAT",
                },
                rows=[_row(one) for one in result.found()],
            ),
        ),
    )


def _gone_row(one: Unattestable) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "offsets": f"{one.first} to {one.end - 1}",
        "rows": one.rows,
        "why": one.why,
        "digests": list(one.digests),
    }


def _row(one: Difference) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "offsets": f"{one.first} to {one.last}" if one.last > one.first else str(one.first),
        "range": f"{one.range_first} to {one.range_last}",
        "object": one.object_key,
        "file": one.file,
        "what": one.what,
    }


JOB = Job(
    name="attest",
    help="""Show that a table is its topic, row for row.

    Status 1 if it is not.

    Reads the topic's records and the table's rows from the bucket alone, compares them, and
    compares the records with the digests that the table's commits have of them. Names each
    difference: offset, range, object and data file. Writes nothing, and mends nothing.
    """,
    options=AttestOptions,
    plan=_plan,
    run=_run,
    finish=_finish,
    show_plan=_show_plan,
    show=_show,
    takes_processes=True,
    machinery="lakehead.lake.jobs.table_attestation",
    dry_run_help="Show how much there is to read, and read none of it.",
)
