"""Digests of the records that commits of a table were made from, by partition and offset range.

A commit that brings records has the note `lakehead.digests`, JSON: the form of the digests and, for
each partition and work item, [partition, first offset, end offset, records, digest], and the form
after these where it is another. They are of the records as they were read from objects
(`lakehead.lake.decode.record_digest`), before values were decoded: dead letters and dropped
records count too.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakehead.lake.decode.invalid import InvalidBatch
from lakehead.lake.decode.record_digest import DIGEST_FORM, FORMS, RecordDigest
from lakehead.lake.planner import ByteRange
from lakehead.lake.tables.delta_table import Table, open_table
from lakehead.lake.tables.table_history import CHANGE, entries_since, noted

DIGESTS = "lakehead.digests"
FORGOTTEN = "lakehead.forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeDigest:
    """The digest of the records of a partition in the offsets [first, end), and its form.
    `certificate` is that by which records of the range were forgotten, if any were.
    """

    partition: int
    first: int
    end: int
    records: int
    digest: str
    form: str = DIGEST_FORM
    certificate: int = -1


class RangeDigester:
    """Digests the records of byte ranges in a form. They are in offset order in each partition."""

    def __init__(self, ranges: Iterable[ByteRange], form: str = DIGEST_FORM) -> None:
        self._form = form
        self._offsets: dict[int, tuple[int, int]] = {}
        for one in ranges:
            first, end = self._offsets.get(one.partition, (one.first_offset, one.end_offset))
            bounds = min(first, one.first_offset), max(end, one.end_offset)
            self._offsets[one.partition] = bounds
        self._digests = {partition: RecordDigest(form) for partition in self._offsets}

    def add(self, batch: Any) -> None:
        """Take records of one partition, see `RecordDigest.add`."""
        if batch.num_rows:
            self._digests[batch.column("partition")[0].as_py()].add(batch)

    def add_batch(self, found: InvalidBatch) -> None:
        """Take a batch that cannot be read."""
        self._digests[found.partition].add_batch(found)

    def cut(self, ends: Mapping[int, int]) -> tuple[RangeDigest, ...]:
        """Return the digests of what came since the last cut, up to these offsets by partition, and
        begin new ones there.
        """
        found = []
        for partition, cut in ends.items():
            first, end = self._offsets[partition]
            if first < cut:
                found.append(self._digest(partition, first, cut))
                self._offsets[partition] = cut, end
                self._digests[partition] = RecordDigest(self._form)
        return tuple(found)

    def digests(self) -> tuple[RangeDigest, ...]:
        """Return the digest of each partition, of what came since the last cut."""
        return tuple(
            self._digest(partition, first, end)
            for partition, (first, end) in self._offsets.items()
            if first < end
        )

    def _digest(self, partition: int, first: int, end: int) -> RangeDigest:
        return RangeDigest(
            partition=partition,
            first=first,
            end=end,
            records=self._digests[partition].records,
            digest=self._digests[partition].hexdigest(),
            form=self._form,
        )


def digest_note(digests: Iterable[RangeDigest]) -> dict[str, str]:
    """Return the note of a commit; none without digests."""
    ordered = sorted(digests, key=lambda one: (one.partition, one.first))
    rows = [
        [one.partition, one.first, one.end, one.records, one.digest]
        + ([one.form] if one.form != DIGEST_FORM else [])
        for one in ordered
    ]
    note = json.dumps({"form": DIGEST_FORM, "ranges": rows}, separators=(",", ":"))
    return {DIGESTS: note} if rows else {}


def held_digests(table: Table) -> tuple[RangeDigest, ...]:
    """Return the digests of the records that the version of `table` was made from, as far as its
    log has them, in the order of their offsets. Raises TableUnavailable.
    """
    newest = open_table(table.uri) or table
    held: list[RangeDigest] = []
    replaced: dict[tuple[int, int, int], RangeDigest] = {}
    for entry in sorted(entries_since(newest, -1), key=lambda one: -one["version"]):
        found = _digests(noted(entry, DIGESTS))
        if (certificate := _certificate(entry)) is not None:
            number = max(certificate.number, 0)  # below 0 it would pass for a range without one
            for one in found:
                replaced.setdefault(_place(one), replace(one, certificate=number))
        elif entry["version"] <= table.version:
            held += found
            if _replaces_all(noted(entry, CHANGE)):
                break
    now = (replaced.get(_place(one), one) for one in held)
    return tuple(sorted(now, key=lambda one: (one.partition, one.first)))


def _place(one: RangeDigest) -> tuple[int, int, int]:
    return one.partition, one.first, one.end


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCertificate:
    """A certificate by which a table has lost rows: its number, the name of its salt, and the
    version of the commit that notes it.
    """

    number: int
    salt: str
    version: int


def noted_certificates(table: Table, version: int) -> tuple[NotedCertificate, ...]:
    """Return the certificates that were noted in a table above a version, as far as its log has
    them. Raises TableUnavailable.
    """
    found = (_certificate(entry) for entry in entries_since(table, version))
    return tuple(one for one in found if one is not None)


def _certificate(entry: Mapping[str, Any]) -> NotedCertificate | None:
    found = _parsed(noted(entry, FORGOTTEN))
    try:
        return NotedCertificate(
            number=int(found["certificate"]), salt=str(found["salt"]), version=entry["version"]
        )
    except (KeyError, TypeError, ValueError):
        return None


def _replaces_all(note: Any) -> bool:
    return _parsed(note).get("kind") == "rebuild_table"


def _parsed(note: Any) -> dict[str, Any]:
    """Return a note, empty if it is none or was broken."""
    try:
        parsed = json.loads(note)
    except (TypeError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _digests(note: Any) -> tuple[RangeDigest, ...]:
    """Return the digests of a note that have a known form; none without a note."""
    found = _parsed(note)
    try:
        digests = [
            RangeDigest(
                partition=int(partition),
                first=int(first),
                end=int(end),
                records=int(records),
                digest=str(digest),
                form=str(form[0]) if form else str(found["form"]),
            )
            for partition, first, end, records, digest, *form in found["ranges"]
        ]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(one for one in digests if one.form in FORMS)
