"""The result of the job `forget`."""

from dataclasses import dataclass, fields

from lakehead.storage.jobs.job import (
    LINES_MAX,
    DamageFound,
    Fields,
    JobResult,
    Report,
    Table,
    text,
    total,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(JobResult):
    """The result of a run, or of a dry run what would be done; of a check what was found. Bytes are
    of objects and files. `held` are places with records that stay, `pending` those that are deleted
    later, both in words.
    """

    verdict: str = text("verdict")
    certificate: str = text("certificate")
    keys_digest: str = text("digest of the keys")
    records: int = total("records")
    batches: int = total("batches")
    objects: int = total("objects with such records")
    rows: int = total("rows and dead letters")
    tables: int = total("tables with such rows")
    bytes_read: int = total("bytes read")
    bytes_rewritten: int = total("bytes of objects and files to rewrite")
    requests: int = total()
    dollars: str = text("cost of requests")
    later: int = total("records above the ends, which stay")
    versions: int = total("old versions with such records")
    versions_deleted: int = total("old versions deleted")
    unreadable: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()

    def as_fields(self) -> Fields:
        """Return the result as XCom has it, with the first lines of each list."""
        lists = {"failures", "unreadable", "held", "pending", "ranges"}
        found: Fields = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in lists
        }
        for name in sorted(lists - {"failures"}):
            found[name] = list(getattr(self, name)[:LINES_MAX])
            found[f"{name}_count"] = len(getattr(self, name))
        return found


def shown(result: ForgetResult) -> Report:
    """Return the report of a result."""
    lists = ("ranges", "held", "pending", "unreadable")
    return Report(
        fields={**result.labelled()},
        tables=tuple(
            Table(
                name=name,
                columns={"what": name.upper()},
                rows=[{"what": one} for one in getattr(result, name)],
            )
            for name in lists
            if getattr(result, name)
        ),
    )


def refuse_held(found: Fields) -> None:
    """Raise DamageFound for the result of a check or a run that left records."""
    if not found.get("verdict"):
        return  # of a dry run
    for name in ("held", "unreadable", "pending"):
        if found.get(name):
            raise DamageFound(f"{found['verdict']}: {found[name][0]}")
