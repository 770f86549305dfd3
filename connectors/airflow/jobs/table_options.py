"""The options of the jobs of tables. A DAG is parsed with these, and without `lake`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from lakehead.storage.jobs.options import option

Engine = Literal["delta-rs", "spark"]
Beginning = int | Mapping[int, int] | None
"""The beginning of a table: a time (ms since the epoch), offsets by partition, or the earliest."""

_OFFSETS = re.compile(r"\d+:\d+(,\s*\d+:\d+)*")


def engine(value: Any) -> Engine:
    """Return it if it is one. Raises ValueError."""
    if value == "delta-rs":
        return "delta-rs"
    if value == "spark":
        return "spark"
    raise ValueError(value)


def beginning(value: Any) -> Beginning:
    """Return where a table is to begin: `earliest`, a time (ISO 8601), or `0:1200,1:3400`.

    Raises ValueError.
    """
    text = str(value).strip()
    if text == "earliest":
        return None
    if _OFFSETS.fullmatch(text):
        pairs = (one.split(":") for one in text.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _begin_option(value: Any) -> tuple[Beginning]:
    """In a tuple, since one beginning is None."""
    return (beginning(value),)


_TOPIC = "The topic, by its name."
_ENGINE = "The engine of a MERGE: delta-rs, or spark with delta-spark."


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """Which declared tables: of these topics, or all; also those that are not due."""

    topics: tuple[str, ...] = option(
        (), "The topics of these tables. None: all declared ones.", title="Topics"
    )
    all_of_them: bool | None = option(None, "Tables that are not due yet, too.", title="All")
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)

    @property
    def takes_every(self) -> bool:
        """Return true if tables that are not due are worked on too."""
        return bool(self.topics) if self.all_of_them is None else self.all_of_them


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(TablesOptions):
    """Which declared tables, and how many hours of versions stay; None: the least, 168."""

    retention_hours: int | None = option(
        None, "Hours of versions to keep, 168 at least.", title="Hours", in_form=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The table of one topic."""

    topic: str = option("", _TOPIC, title="Topic")
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The table of one topic, and where it is to begin."""

    topic: str = option("", _TOPIC, title="Topic")
    begin: tuple[Beginning] | None = option(
        None,
        "earliest, a time, or offsets by partition (0:12,1:3).",
        title="Beginning",
        parse=_begin_option,
    )
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTableOptions:
    """The table of one topic, and whether rows may be lost."""

    topic: str = option("", _TOPIC, title="Topic")
    without_history: bool = option(
        False, "Even if rows of records that retention has removed are lost.", title="Lose history"
    )
    engine: Engine = option("delta-rs", _ENGINE, parse=engine, in_form=False)
