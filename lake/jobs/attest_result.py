"""The findings of `attest`: differences, what is not attestable, counts, and the verdict."""

from dataclasses import dataclass, fields, replace

from lakehead.storage.jobs.job import LINES_MAX, Fields, JobResult, text, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between table and topic, at the offsets from `first` to `last` (inclusive) of a
    partition: the range that was attested (of a commit, if it has a digest), the topic's object and
    the table's data file, empty where there is none.
    """

    partition: int
    first: int
    last: int
    range_first: int
    range_last: int
    object_key: str
    file: str
    what: str

    def __str__(self) -> str:
        offsets = f"{self.first} to {self.last}" if self.last > self.first else str(self.first)
        where = [f"partition {self.partition}, offset {offsets}"] if self.partition >= 0 else []
        where += [f"object {self.object_key}"] if self.object_key else []
        where += [f"file {self.file}"] if self.file else []
        return f"{', '.join(where)}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattestable:
    """Offsets [first, end) of a partition whose records the topic does not have (any more, or in
    objects yet), the rows that the table has of them, and the digests of commits, in words.
    """

    partition: int
    first: int
    end: int
    rows: int
    why: str
    digests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestResult(JobResult):
    """The findings. `missing` records are neither rows nor dead letters: they are differences if
    they are more than the table has dropped, or turned into rows after its version (`may_miss`).
    `held_rows` is the number of rows that the data files have to compare, 0 if it was not counted.
    """

    version: int = total()
    ranges: int = total("offset ranges attested")
    digests: int = total("digests that match")
    records: int = total("records")
    bytes: int = total("bytes of records")
    rows: int = total("rows")
    held_rows: int = total()
    dead_letters: int = total("dead letters")
    overtaken: int = total("records that later ones of their key overtook")
    missing_records: int = total("records that were dropped")
    may_miss: int = total()
    rows_lacking_fields: int = total("rows without fields that were left out")
    may_lack: int = total()
    compacted_ranges: int = total("ranges that log compaction has changed")
    rows_of_compacted: int = total("rows whose records log compaction removed")
    forgotten_ranges: int = total("ranges of which keys were forgotten")
    forgotten_rows: int = total("rows of keys that were forgotten since")
    different: int = total()
    scope: str = text()
    differences: tuple[Difference, ...] = ()
    missing: tuple[Difference, ...] = ()
    unattestable: tuple[Unattestable, ...] = ()
    certificates: tuple[int, ...] = ()
    """Those by which records were forgotten."""

    def plus(self, more: "AttestResult") -> "AttestResult":
        """Return the findings of both, with differences in the order of their places."""
        both = JobResult.plus(self, more)
        return replace(
            both,
            differences=tuple(sorted(both.differences, key=_order)),
            missing=tuple(sorted(both.missing, key=_order)),
            certificates=tuple(sorted(set(both.certificates))),
        )

    def found(self) -> tuple[Difference, ...]:
        """Return the differences, and the missing records unless they are accounted for."""
        if self.missing_records <= self.may_miss:
            return self.differences
        return tuple(sorted((*self.differences, *self.missing), key=_order))

    def as_fields(self) -> Fields:
        """Return the result as XCom has it, with the first differences in words."""
        lists = {"failures", "differences", "missing", "unattestable", "certificates"}
        found: Fields = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in lists
        }
        return found | {
            "differences": [str(one) for one in self.differences[:LINES_MAX]],
            "missing": [str(one) for one in self.missing[:LINES_MAX]],
            "unattestable": [unattestable_words(one) for one in self.unattestable[:LINES_MAX]],
            "certificates": list(self.certificates[:LINES_MAX]),
        }


def differs(found: Fields) -> list[str]:
    """Return the differences that the fields of a result have, in words."""
    lines: list[str] = list(found.get("differences", ()))
    if found.get("missing_records", 0) > found.get("may_miss", 0):
        lines += found.get("missing", ())
    if found.get("rows_lacking_fields", 0) > found.get("may_lack", 0):
        lines.append("more rows lack fields than the table has noted as left out")
    held, rows = found.get("held_rows", 0), found.get("rows", 0)
    if not lines and held and held != rows:
        lines.append(
            f"the data files have {held} rows of these offsets, and {rows} are found by the bounds "
            "of columns that the log and the files have: readers that do not use bounds see others"
        )
    return lines


def verdict(found: Fields) -> str:
    """Return the verdict on the fields of a result, in one sentence."""
    if count := len(differs(found)):
        number = found.get("different", 0)
        if found.get("missing_records", 0) > found.get("may_miss", 0):
            number += found["missing_records"]
        return f"the table is NOT its topic: {max(number, count)} differences"
    words = "the table is its topic, row for row"
    if found.get("scope"):
        words += f", {found['scope']}"
    if numbers := sorted(set(found.get("certificates", ()))):
        words += f"; records were forgotten by certificate {', '.join(map(str, numbers))}"
    if found.get("unattestable"):
        words += "; some of its offsets are not attestable"
    return words


def _order(found: Difference) -> tuple[int, int]:
    return found.partition, found.first


def unattestable_words(one: Unattestable) -> str:
    return (
        f"partition {one.partition}, offsets {one.first} to {one.end - 1}, {one.rows} rows: "
        f"{one.why}"
    )
